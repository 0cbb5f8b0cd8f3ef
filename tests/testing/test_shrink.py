"""A planted failure shrinks to a few lines, each of which it needs."""

from __future__ import annotations

import pytest

from qfunc.testing.fuzz.outcome import Outcome
from qfunc.testing.fuzz.shrink import shrink, smaller
from qfunc.testing.grammar.draft import MisfitError, replay
from qfunc.testing.grammar.families import common_program, program
from qfunc.testing.grammar.program import Input, Program
from qfunc.testing.grammar.pruning import prune

BAD = Outcome("wrong file", "run", "RuntimeError", "softmax")
X = (Input("x", "torch.randn(n, 3) * 1e3"),)


def fails_on(word):
    return lambda candidate: BAD if word in candidate.network() else Outcome("exact")


@pytest.mark.parametrize("word", ["softmax", "F.interpolate", "nn.MaxPool2d", "torch.roll"])
def test_a_planted_failure_shrinks_to_one_statement(word):
    drawn = map(common_program, range(400))
    large = next(one for one in drawn if word in one.network() and len(one.steps) > 5)
    small = shrink(large, BAD, fails_on(word))
    assert word in small.network()
    assert len(small.steps) + len(small.layers) <= 2
    assert (small.edits, small.changes, small.export, len(small.inputs)) == ((), (), False, 1)
    replay(small)


def test_options_stay_if_the_failure_needs_them():
    layers, steps = ("self.a = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Tanh())",), ("y = self.a(x) + x",)
    one = Program(X, layers, steps, ("y",), ("model.a[0].weight[0] = 0",), ("edit.weights(bits=4)",), True)

    def run(candidate):
        return BAD if candidate.edits and candidate.export and "nn.ReLU" in candidate.network() else Outcome("exact")

    small = shrink(one, BAD, run)
    assert small.network().count("nn.") == 3  # nn.Module, nn.Sequential, nn.ReLU
    assert (small.changes, small.edits, small.export) == ((), one.edits, True)
    assert (small.steps, small.inputs[0].code) == (("y = self.a(x)",), "torch.randn(n, 3)")


def test_another_failure_is_no_reason_to_shrink():
    one = Program(X, (), ("y = x + 1", "z = y * 2"), ("z",))
    assert shrink(one, BAD, lambda candidate: Outcome("raw error", "deploy")) == one


def test_the_search_ends_with_its_time(monkeypatch):
    """On a clock that only the runs of candidates advance, a second each."""
    ran = []
    monkeypatch.setattr("qfunc.testing.fuzz.shrink.time.monotonic", lambda: float(len(ran)))
    shrink(program(1), BAD, lambda candidate: ran.append(candidate) or Outcome("exact"), seconds=3.5)
    assert len(ran) == 4


def test_smaller_programs_run_and_differ():
    one = program(2)
    found = list(smaller(one))
    assert len(set(found)) == len(found) > 5
    assert one not in found
    assert all(len(f.source()) < len(one.source()) + 40 for f in found)


def test_what_no_output_needs_is_pruned():
    layers = ("self.a = nn.Linear(3, 3)", 'self.register_buffer("t", torch.ones(3))', "self.b = nn.ReLU()")
    steps = ("y = self.a(x)", "a, b = y.shape", "z = self.b(x)", "w = z + self.t")
    one = Program((*X, Input("v", "torch.randn(n)")), layers, steps, ("w",), ("model.a.weight[0] = 0",))
    assert prune(one) == Program(X, layers[1:], steps[2:], ("w",))
    with pytest.raises(MisfitError, match="a network without inputs"):
        prune(Program(X, (), ("y = torch.ones(3)",), ("y",)))
