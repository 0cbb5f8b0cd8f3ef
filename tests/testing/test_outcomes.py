"""Each planted kind of failure is put into its class; a runtime that ends its process ends one trial."""

from __future__ import annotations

import pytest
import torch

from qfunc import targets
from qfunc.analysis.verification_report import Comparison, Report
from qfunc.errors import CalibrationError, CaptureError, DeployError, EmulationError, SpecError, VerifyError
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import edit
from qfunc.targets.runtimes import OnnxRuntimeRunner, OpenVinoRunner
from qfunc.testing.fuzz import trial
from qfunc.testing.fuzz.outcome import Outcome, refused_op, summary
from qfunc.testing.fuzz.campaign import run_in_process
from qfunc.testing.fuzz.trial import Trial, kind_of
from qfunc.testing.grammar.program import Input, Program
from tests.testing.runners import Checker, Crasher, Liar, Raiser, Sleeper

TARGET = edit.weights(bits=7)(targets.onnxruntime)
X = (Input("x", "torch.randn(n, 3)"),)
LINEAR = Program(X, ("self.a = nn.Linear(3, 2)",), ("y = F.relu(self.a(x))",), ("y",))
FOUR = {"where": "here", "found": "the kind 'roll' of 3 axes", "wanted": "another", "do": "Change it."}


def outcome(program=LINEAR, runner=None):
    return Trial(program, TARGET, runner).outcome()


def test_a_right_network_is_exact():
    assert outcome() == Outcome("exact", "verify", message=outcome().message)
    assert outcome().message.startswith("bit-exact: 0 of ")
    assert not outcome().bad


def test_a_runner_that_lies_is_a_mismatch():
    found = outcome(runner=Liar())
    assert (found.kind, found.stage, found.bad) == ("mismatch", "verify", True)
    assert found.signature == "mismatch, verify: codes; first at output #"
    assert found.failure == "mismatch, verify: codes"


def test_a_runner_that_raises_is_a_wrong_file():
    found = outcome(runner=Raiser())
    assert found == Outcome("wrong file", "run", "RuntimeError", "node 3 (PAD) failed to prepare")
    assert found.signature == "wrong file, run: RuntimeError: node # # failed to prepare"


def test_a_runner_that_raises_on_another_batch_is_a_wrong_file():
    found = outcome(runner=Checker([]))
    assert (found.kind, found.stage, found.error) == ("wrong file", "verify", "VerifyError")
    assert "ValueError: got shape (3, 4)" in found.message


def test_a_function_as_a_runner_returns_other_shapes():
    found = outcome(runner=lambda artifact, inputs: [torch.zeros(1).numpy()])
    assert (found.kind, found.stage, found.error) == ("mismatch", "verify", "VerifyError")


def test_a_network_that_is_nan_as_codes_is_refused():
    """Of y + 1, 1 is less than half a code: float divides 0 by 1, and the codes 0 by 0."""
    inputs = (Input("x", "torch.cat([torch.zeros(1, 3), torch.randn(n, 3)]) * 1e3"),)
    steps = ("y = self.a(x).relu()", "w = y + 1", "z = self.b(y / w) + self.b(w)")
    program = Program(inputs, ("self.a = nn.Linear(3, 4, bias=False)", "self.b = nn.Linear(4, 2)"), steps, ("z",))
    found = outcome(program)
    assert (found.kind, found.stage, found.error) == ("refused", "verify", "VerifyError")
    assert found.op == "NaN before the quantizer in # of # elements; wanted numbers, which have codes"


def test_a_process_that_aborts_is_a_wrong_file():
    found = run_in_process(LINEAR, TARGET, Crasher())
    assert (found.kind, found.stage, found.error) == ("wrong file", "run", "SIGABRT")
    assert "double free or corruption" in found.message


@pytest.mark.thorough
def test_a_process_that_hangs_is_killed():
    found = run_in_process(LINEAR, TARGET, Sleeper(), seconds=4)
    assert (found.kind, found.stage, found.message) == ("time limit", "run", "more than 4 s")


@pytest.mark.thorough
def test_a_process_returns_what_the_trial_returns():
    assert run_in_process(LINEAR, TARGET) == outcome()


@pytest.mark.parametrize(
    ("stage", "error"),
    [("quantize", SpecError), ("quantize", CaptureError), ("calibrate", CalibrationError), ("deploy", DeployError),
     ("verify", EmulationError)],
)  # fmt: skip
def test_an_error_of_four_parts_is_a_refusal(monkeypatch, stage, error):
    monkeypatch.setattr(trial, NAMES.get(stage, stage), lambda *a, **k: _raises(error(**FOUR)))
    assert outcome() == Outcome("refused", stage, error.__name__, str(error(**FOUR)), "roll")


NAMES = {"verify": "compared"}
"""Stages whose function has another name."""


def _raises(error):
    raise error


@pytest.mark.parametrize("stage", ["quantize", "calibrate", "emulate", "deploy", "verify"])
def test_another_error_is_a_raw_one(monkeypatch, stage):
    monkeypatch.setattr(trial, NAMES.get(stage, stage), lambda *a, **k: _raises(KeyError("argmax_1")))
    found = outcome()
    assert (found.kind, found.stage, found.error) == ("raw error", stage, "KeyError")
    assert found.message == "'argmax_1'\nin test_outcomes.py, _raises"
    assert found.signature == f"raw error, {stage}: KeyError: # in test_outcomes.py, _raises"


def test_an_error_that_wraps_an_error_of_python_is_a_raw_one(monkeypatch):
    def refuse(*arguments, **options):
        cause = TypeError("sqrt(): not an int")
        raise CalibrationError(**FOUR | {"found": f"TypeError: {cause}"}) from cause

    monkeypatch.setattr(trial, "calibrate", refuse)
    found = outcome()
    assert (found.kind, found.stage, found.error) == ("raw error", "calibrate", "CalibrationError")


def test_roads_with_other_codes_differ(monkeypatch):
    made, emulate = [], trial.emulate

    def other(target):
        made.append(target)
        return (
            emulate(target)
            if len(made) == 1
            else lambda model: torch.nn.Sequential(emulate(target)(model), torch.nn.Softplus())
        )

    monkeypatch.setattr(trial, "emulate", other)
    found = outcome()
    assert (found.kind, found.stage) == ("captures differ", "emulate")
    assert found.message.startswith("4 of 4 elements, by ")


@pytest.mark.parametrize(("ulps", "kind"), [(2, "exact"), (16, "captures differ")])
def test_scales_of_the_other_road_may_differ_by_reordered_sums(monkeypatch, ulps, kind):
    made, calibrate = [], trial.calibrate

    def scaled(batches, progress):
        def calibrated(model):
            model = calibrate(batches, progress=progress)(model)
            made.append(model)
            for module in model.modules() if len(made) > 1 else ():
                if isinstance(module, FakeQuantize) and not module.site.constant:
                    own = module.qparams()
                    module.set_qparams(own._replace(scale=own.scale * (1 + ulps * 2**-23)))
            return model

        return calibrated

    monkeypatch.setattr(trial, "calibrate", scaled)
    assert (len(made), outcome().kind, len(made)) == (0, kind, 2)


def test_a_raw_error_on_the_other_road_is_one(monkeypatch):
    quantize = trial.quantize
    monkeypatch.setattr(trial, "quantize", lambda t, inputs: _raises(KeyError("a")) if inputs else quantize(t, inputs))
    assert (outcome().kind, outcome().stage) == ("raw error", "quantize, by torch.export")


def test_what_cannot_be_traced_is_exported():
    loop = Program(X, (), ("y = x", "for v in x.unbind(1): y = y + v[:, None]"), ("y",))
    assert outcome(loop).kind == "exact"


def test_a_network_that_is_not_finite_is_no_trial():
    assert outcome(Program(X, (), ("y = x / 0",), ("y",))) == Outcome("not finite in float")


def test_a_refusal_is_named_by_the_kind_or_by_what_is_found():
    assert refused_op(DeployError(**FOUR)) == "roll"
    assert refused_op(DeployError(**FOUR | {"found": "mode 'area' of 3", "wanted": "'x'"})) == "mode 'area' of #; wanted #"


def test_the_table_counts_each_kind_and_each_refusal():
    refused = Outcome("refused", "deploy", "DeployError", "", "roll")
    each = [(Outcome("exact"), False), (refused, False), (refused, True), (Outcome("wrong file", "run", "SIGABRT"), False)]
    lines = [" ".join(line.split()) for line in summary("litert", each).splitlines()]
    assert lines[0] == "litert: 4 networks, 1 bad; refused: 1 of 3 (33.3 %) without edits of the target, 1 of 1 with"
    assert [line for line in lines if line[-1:].isdigit()] == [
        "exact 1",
        "refused, deploy 2",
        "wrong file, run 1",
        "roll deploy 2",
    ]


def test_mismatches_of_units_are_told_apart():
    text = (
        "mismatch: the runtime's units are not the predicted ones (conv: predicted integer, but the runtime runs it as float)"
    )
    assert Outcome("mismatch", "verify", message=text).signature.endswith(
        "predicted integer, but the runtime runs it as float)"
    )
    assert VerifyError(**FOUR)


def report(mismatches, lsb, exact=True, **fields):
    rows = tuple(Comparison("a", kind, 4000, mismatches, lsb, exact) for kind in ("codes", "alone"))
    return Report(target="a", runtime="b", predicted=1, rows=rows, **fields)


def within_sums(**fields):
    rows = Comparison("a", "codes", 4000, 12, 8.0), Comparison("a", "alone", 4000, 0, 0.0)
    return Report(target="a", runtime="b", predicted=1, rows=rows, rounded=12, **fields)


def test_codes_within_the_bounds_of_float32_sums_have_a_verdict():
    counts = "12 of 4,000 elements differ"
    assert within_sums().verdict == f"at most 8 LSB at rate 0.003, within the bounds of float32 sums: {counts}"
    assert within_sums().within_bounds
    assert not within_sums(disagreements=("conv: predicted integer",)).within_bounds
    assert not within_sums(unknown="no public arithmetic").within_bounds


@pytest.mark.parametrize(
    ("found", "kind", "flipping"),
    [
        (report(0, 0.0), "exact", "exact"),
        (report(1, 1.0), "mismatch", "exact outside float units"),  # a share of 1e-3 of the codes may flip
        (report(1, 1 + 2**-15), "mismatch", "exact outside float units"),  # an output is one code off, as a real value
        (report(5, 1.0), "mismatch", "mismatch"),
        (report(1, 2.0), "mismatch", "mismatch"),
        (report(4000, 1e-5), "mismatch", "exact outside float units"),
        (report(0, 0.0, rounded=3), *["exact"] * 2),  # no code differs
        (within_sums(), *["exact outside float units"] * 2),
        (report(5, 1.0, rounded=3), *["mismatch"] * 2),  # others differ, too
        (report(4000, 1.0, exact=False, float_units=(("b", "c"),)), *["exact outside float units"] * 2),
        (report(4000, 9.0, incomparable="no VNNI"), *["not comparable"] * 2),
        (report(0, 0.0, disagreements=("conv: predicted integer",)), *["mismatch"] * 2),
    ],
)
def test_a_report_is_judged_by_what_its_runner_declares(found, kind, flipping):
    assert kind_of(found, OnnxRuntimeRunner()) == kind
    assert kind_of(found, OpenVinoRunner()) == flipping
