"""Drawn networks: the same by seed everywhere, programs that run in PyTorch, of many kinds of ops."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from functools import cache

import pytest
import torch
from torch import nn

from qfunc import targets
from qfunc.testing.grammar.draft import BATCH, LARGEST, Draft, MisfitError, replay
from qfunc.testing.grammar.families import EDITS, FAMILIES, common_program, program
from qfunc.testing.grammar.naming import COMMON, rename_parts
from qfunc.testing.grammar.program import Input, Program
from qfunc.testing.grammar.pruning import attribute_of, names_assigned
from qfunc.testing.grammar.rare import RARE
from qfunc.testing.grammar.rearrangements import SINGLE_OPS, size_formula
from qfunc.testing.grammar.windows import WINDOW_BLOCKS
from tests.installed import ROOT

SEEDS = range(40)
WORDS = (
    "nn.Conv2d", "groups=", "nn.BatchNorm2d", "nn.GroupNorm", "nn.ConvTranspose2d", "F.interpolate", "torch.cat",
    ".expand(", "scaled_dot_product_attention", ".permute(2, 0, 3, 1, 4)", ".size(-1)", "math.sqrt", "torch.roll", "F.glu",
    "F.silu", "F.pad", "F.adaptive_avg_pool2d", "F.pixel_shuffle", "torch.stack", ".chunk(", "torch.split", ".repeat(",
    "torch.meshgrid", ".to(", "** 2", "+ 1", "* 0.5", ".amax(", "argmax", ".contiguous()", ".view(", "nn.Embedding",
    "nn.LayerNorm", "count_include_pad=False", "ceil_mode=True", "softmax", ".mean(", ".dim() - 1",
    ".size(-1) // 2", "nn.LSTM", "nn.GRU", "nn.RNN", "bidirectional=True", "self.shared", "self.norm", "torch.zeros(", "* 0",
)  # fmt: skip


@cache
def drawn() -> list[Program]:
    """300 programs."""
    return [program(seed) for seed in range(300)]


@pytest.mark.thorough
def test_a_seed_is_the_same_program_in_another_process():
    code = "from qfunc.testing.grammar.families import program; print(''.join(program(s).source() for s in range(3)))"
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    ).stdout  # fmt: skip
    assert other == "".join(program(s).source() for s in range(3)) + "\n"


def test_programs_fit_every_number_of_examples():
    for one in (program(7340), *drawn()):  # the first draft of 7340 has a layer as wide as the draft's number of examples
        replay(one, 1)
        replay(one, 2)


@pytest.mark.parametrize("start", range(0, len(SEEDS), 10))
def test_programs_run_in_pytorch(start):
    for seed in SEEDS[start : start + 10]:
        before = torch.random.get_rng_state()
        made = program(seed).build()
        assert torch.equal(torch.random.get_rng_state(), before)
        with torch.no_grad():
            shapes = [[v.shape[1:] for v in _tuple(made["model"](*b))] for b in made["probes"]]
        assert shapes[0] == shapes[1] == shapes[2], seed
        assert [len(b[0]) for b in made["probes"]] == [2, 3, 1]


def _tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.thorough
def test_programs_have_ops_of_every_kind_that_authors_write():
    text = "".join(one.source() for one in drawn())
    assert [w for w in WORDS if w not in text] == []


@pytest.mark.thorough
def test_programs_have_both_roads_options_and_unusual_weights():
    assert 90 < sum(p.export for p in drawn()) < 210
    assert {len(p.inputs) for p in drawn()} == {1, 2, 3}
    assert any("* 1e3" in i.code for p in drawn() for i in p.inputs)
    assert any("weight[0] = 0" in c for p in drawn() for c in p.changes)
    assert {e for p in drawn() for e in p.edits} == set(EDITS)
    assert len({len(p.outputs) for p in drawn()}) == 2


@pytest.mark.parametrize("code", EDITS)
def test_edits_are_edits_of_a_target(code):
    edited = Program((), (), (), (), edits=(code,)).with_edits(targets.litert)
    assert edited != targets.litert or "granularity" not in code


@pytest.mark.parametrize("family", [*FAMILIES, *RARE], ids=lambda f: f.__name__)
def test_a_family_draws_what_its_draft_computes(family):
    for seed in range(40):
        draft = Draft(str(seed))
        try:
            outputs = family(draft)
        except MisfitError:
            continue
        assert {draft.shape(o)[:1] for o in outputs if draft.is_tensor(o)}
        return
    raise AssertionError("no draft fits")


def test_a_block_that_does_not_fit_leaves_the_draft_as_it_was():
    draft = Draft("0")
    x = draft.input("torch.randn(n, 3, 4)")

    def block(d, value):
        return d.let(f"{d.layer('fc', 'nn.Linear(7, 2)')}({d.let(f'{value} + 1')})")

    assert draft.attempt(block, x) == x
    assert (draft.layers, draft.steps) == ([], [])


@pytest.mark.parametrize("shape", ["n", "n, 3", "n, 4, 6", "n, 4, 6, 6", "n, 2, 4, 6, 6"])
def test_blocks_that_a_family_mixes_fit_or_do_not_fit_a_tensor_of_any_rank(shape):
    for block in {*WINDOW_BLOCKS, *SINGLE_OPS, size_formula}:
        for seed in range(8):
            draft = Draft(str(seed))
            draft.attempt(block, draft.input(f"torch.randn({shape})"))


def scopes(one: Program) -> tuple[list[str], list[str]]:
    """The attributes of `self`, and the inputs with the values of `forward`."""
    values = [i.name for i in one.inputs] + [n for s in one.steps for n in names_assigned(s)]
    return [attribute_of(s).removeprefix("self.") for s in one.layers], values


@pytest.mark.parametrize("seed", [2, 5, 12, 13, 33])
def test_a_renamed_network_computes_the_same(seed):
    before = common_program(seed)
    for number in range(3):
        after = rename_parts(before, random.Random(number))
        one, two = before.build(), after.build()
        with torch.no_grad():
            pairs = zip(_tuple(one["model"](*one["batches"][0])), _tuple(two["model"](*two["batches"][0])), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), after.network()


def test_names_meet_between_scopes_and_never_within_one():
    renamings = [rename_parts(common_program(seed), random.Random(seed)) for seed in range(60)]
    found = [scopes(one) for one in renamings]
    assert all(len(set(names)) == len(names) for scope in found for names in scope)
    assert sum(bool({*attributes} & {*values}) for attributes, values in found) > 25
    assert sum(bool({*attributes, *values} & {*COMMON} - {"x"}) for attributes, values in found) > 5
    inputs = [{i.name for i in one.inputs} for one in renamings]
    assert sum(bool(names & {*attributes}) for names, (attributes, _) in zip(inputs, found, strict=True)) > 5


def test_the_rare_networks_are_drawn_in_useful_numbers():
    """Of 300 networks: constants and norms with two readers, zeros, recurrent layers, names that meet."""

    def shared(one: Program, kind: str) -> bool:
        reads = Counter(re.findall(r"self\.\w+", " ".join((*one.steps, *one.outputs))))
        return any(reads[attribute_of(s)] > 1 for s in one.layers if kind in s)

    assert sum(shared(one, "nn.Parameter") or shared(one, "register_buffer") for one in drawn()) > 15
    assert sum(shared(one, "nn.BatchNorm") for one in drawn()) > 10
    assert sum(shared(one, "nn.Linear") for one in drawn()) > 5
    assert sum(bool(re.search(r"nn\.(LSTM|GRU|RNN)\(", one.network())) for one in drawn()) > 12
    assert sum(bool(re.search(r"zeros\(|\* 0\b(?!\.)|zero_\(\)", one.source())) for one in drawn()) > 35
    assert sum(bool(set.intersection(*map(set, scopes(one)))) for one in drawn()) > 30


def test_values_that_are_too_large_or_empty_do_not_fit():
    draft = Draft("0")
    x = draft.input("torch.randn(n, 3)")
    with pytest.raises(MisfitError, match="elements"):
        draft.let(f"{x}.repeat(1, {LARGEST})")
    with pytest.raises(MisfitError, match="elements"):
        draft.let(f"{x}[:, 3:]")


def test_a_replayed_program_has_its_shapes_and_no_weights():
    one = Program((Input("x", "torch.randn(n, 3)"),), ("self.a = nn.Linear(3, 2)",), ("y = self.a(x)",), ("y",))
    draft = replay(one)
    assert draft.shape("y") == (BATCH, 2)
    assert isinstance(draft.module.a, nn.Linear)
    assert draft.module.a.weight.is_meta


def test_a_script_prints_the_verdict(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edits = ("edit.activations(bits=8)",)
        one = Program((Input("x", "torch.randn(n, 3)"),), (), ("y = x.softmax(1)",), ("y",), edits=edits)
        exec(compile(one.script("onnxruntime"), "script", "exec"), {})
    assert "bit-exact: 0 of" in capsys.readouterr().out
