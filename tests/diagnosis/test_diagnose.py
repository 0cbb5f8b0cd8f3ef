"""diagnose finds the planted cause first, and its plans recover the loss when they are made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import estimators, targets
from qfunc.diagnosis import Plan
from qfunc.errors import CalibrationError, SpecError
from qfunc.specs import PerChannel, PerTensor, edit
from tests.diagnosis.failures import FAILURES, Failure, clipped_softmax, images, narrow_calibration, network, outlier_channel


def loss(case: Failure, calibrated: nn.Module) -> float:
    """What the case's metric loses; without one, noise / signal of the outputs in float64."""
    with torch.no_grad():
        pairs = [(case.model(x).double(), calibrated(x).double()) for x in case.batches]
        if case.metric is not None:
            return -float(torch.stack([case.metric([calibrated(x)], x).double() for x in case.batches]).mean())
    return float(sum((y - x).square().sum() for x, y in pairs) / sum(x.square().sum() for x, _ in pairs))


@pytest.mark.thorough
@pytest.mark.parametrize("make", FAILURES)
def test_the_planted_cause_is_first_and_is_removed(make: Callable[[], Failure]) -> None:
    torch.manual_seed(0)
    case = make()
    model = case.model.eval()
    study = qfunc.diagnose(case.target, case.batches, metric=case.metric, calibration=case.calibration, progress=False)
    report = study(model)
    assert report.causes[0].kind == case.cause, str(report)
    # The report's transform gives a model that recovers what the report promises, by a formula of the test's own.
    chosen, fixed = report.choose(integer=0.9), report.apply(integer=0.9)(model)
    calibration = case.calibration or case.batches
    before = loss(case, qfunc.calibrate(calibration, False)(qfunc.quantize(case.target)(model)))
    after = loss(case, fixed)
    assert after <= 0.1 * before
    assert chosen.recovered == pytest.approx(1 - after / before, abs=1e-5)  # the metric is a mean of float32 numbers
    assert chosen.plan != Plan()


@pytest.mark.thorough
@pytest.mark.parametrize("make", FAILURES)
def test_a_site_has_a_cause_or_rounding(make: Callable[[], Failure]) -> None:
    """Rounding is what remains: no tensor is in it that another cause names, and so it does not hide that cause."""
    torch.manual_seed(0)
    case = make()
    study = qfunc.diagnose(case.target, case.batches, metric=case.metric, calibration=case.calibration, progress=False)
    causes = study(case.model.eval()).causes
    rounded = {site for c in causes if c.kind.startswith("rounding") for site in c.sites}
    assert not rounded & {site for c in causes if not c.kind.startswith("rounding") for site in c.sites}


@pytest.mark.thorough
def test_plans_that_keep_the_same_ops_are_one() -> None:
    a, b = (Plan(floats=frozenset(names)) for names in (("head", "body.10", "body.9"), ("body.9", "head", "body.10")))
    assert (a, hash(a)) == (b, hash(b))
    assert repr(a) == "edit.skip(edit.name('body.9', 'body.10', 'head'))"
    assert a.joined(Plan(floats=frozenset({"head"}))) == a
    skipped = edit.skip(edit.name("body.9", "body.10", "head"))(targets.onnxruntime)
    assert a.target(targets.onnxruntime) == skipped
    torch.manual_seed(0)
    for make in FAILURES:
        case = make()
        study = qfunc.diagnose(case.target, case.batches, metric=case.metric, calibration=case.calibration, progress=False)
        report = study(case.model.eval())
        plans = [t.plan for t in (report.base, *report.trials)]
        assert len(set(plans)) == len(plans)


def test_the_text_of_a_plan_is_the_code_that_makes_it() -> None:
    torch.manual_seed(0)
    case = outlier_channel()
    report = qfunc.diagnose(case.target, case.batches, progress=False)(case.model.eval())
    names = {"qfunc": qfunc, "edit": edit, "batches": case.batches} | vars(estimators) | {"PerChannel": PerChannel}
    for trial in report.trials:
        plan = trial.plan
        changes = [eval(code, names) for code in repr(plan).split("; ") if not code.startswith("calibrate on")]
        made = edit.pipe(case.target, *(c for c in changes if getattr(c, "maker", None) is None))
        assert made == plan.target(case.target)
        corrections = [repr(c) for c in changes if getattr(c, "maker", None) is not None]
        wanted = [repr(c).removeprefix("qfunc.") for c in (*plan.before, *plan.after)]
        assert [c.split("(")[0] for c in corrections] == [c.split("(")[0] for c in wanted]
    assert "qfunc.equalize(deviations=3.0)" in {repr(t.plan) for t in report.trials}
    assert repr(qfunc.equalize(deviations=3.0)) == "equalize(deviations=3.0)"


def test_a_metric_counts_per_example() -> None:
    torch.manual_seed(0)
    case = narrow_calibration()
    batches = [(x, case.model(x).flatten(1).argmax(1)) for x in case.batches]

    def same_place(outputs: list[Tensor], batch: Any) -> Tensor:
        return outputs[0].flatten(1).argmax(1) == batch[1]

    study = qfunc.diagnose(case.target, batches, metric=same_place, calibration=case.calibration, progress=False)
    report = study(case.model.eval())  # without a warning of the labels
    assert (report.metric, report.best) == ("same_place", 1.0)
    calibrated = qfunc.calibrate(case.calibration, False)(qfunc.quantize(case.target)(case.model))
    with torch.no_grad():
        hits = torch.cat([calibrated(x).flatten(1).argmax(1) == y for x, y in batches])
    assert report.base.score.value == float(hits.double().mean())


def test_what_a_target_refuses_is_listed_with_its_reason() -> None:
    torch.manual_seed(0)
    case = outlier_channel()
    report = qfunc.diagnose(targets.litert, case.batches, progress=False)(case.model.eval())
    assert [plan for plan, _ in report.refused] == ["qfunc.smooth_quant(batches)", "edit.activations(bits=16)"]
    assert "found Int(16), wanted Int(8): TensorFlow Lite 8-bit quantization specification" in report.refused[1][1]


class Residual(nn.Module):
    """Channel 2 is a constant of 300 behind a SiLU, and no op with weights reads it: equalize cannot reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.a, self.b = (nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(2))
        self.stem.bias.data[2] = 300.0
        for reader in (self.a.weight[2], self.b.weight[2]):
            reader.data.zero_()
        self.head.weight.data[:, 2].zero_()

    def forward(self, x: Tensor) -> Any:
        h = nn.functional.silu(self.stem(x))
        return self.head(nn.functional.silu(self.b(h + self.a(h))))


def test_a_quantizer_that_moves_behind_a_float_op_is_followed() -> None:
    """With `add` in float, `b` quantizes the sum; no plan of the ops that were sensitive before names `b`."""
    torch.manual_seed(0)
    report = qfunc.diagnose(targets.litert, images(2), progress=False)(Residual().eval())
    assert report.causes[0].kind == "channels of activations"
    chosen = report.choose(recovered=0.9)
    assert chosen.plan.floats >= {"add", "b"}
    assert chosen.causes[-1] == "sensitive ops"
    assert all(t.recovered < 0.9 for t in report.trials if not t.plan.floats >= {"add", "b"})


def test_a_function_in_place_of_a_metric_is_required() -> None:
    with pytest.raises(SpecError) as e:
        qfunc.diagnose(targets.litert, images(1), metric="accuracy")
    assert str(e.value) == (
        "diagnose, metric: found 'accuracy', wanted a function. Pass a function (outputs, batch) -> one number per example."
    )


@pytest.mark.parametrize("metric", [lambda outputs, batch: outputs["digit"], lambda outputs, batch: outputs[0]["digit"]])
def test_a_metric_that_raises_is_told_of_its_arguments(metric: Any) -> None:
    with pytest.raises(CalibrationError) as e:
        qfunc.diagnose(targets.litert, images(1), metric=metric, progress=False)(network().eval())
    error = e.value.__cause__
    assert str(e.value) == (
        f"diagnose, metric: found {type(error).__name__}: {error}, wanted one number per example. Its arguments are the list "
        "of all output tensors, in the model's order, and the batch."
    )


def test_a_model_without_loss_has_no_causes() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    model[0].weight.data.fill_(1.0)
    report = qfunc.diagnose(targets.onnxruntime, [torch.tensor([[0.0], [255.0]])], progress=False)(model)
    assert report.causes == ()
    assert report.choose(recovered=0.0) is report.base


def test_a_budget_that_no_plan_meets() -> None:
    torch.manual_seed(0)
    report = qfunc.diagnose(targets.onnxruntime, images(1), progress=False)(network().eval())
    with pytest.raises(CalibrationError) as e:
        report.apply(recovered=1.1, integer=1.0)
    nearest = max((report.base, *report.trials), key=lambda t: (t.integer >= 1.0, t.recovered))
    assert str(e.value) == (
        f"Diagnosis: found {nearest.recovered:.1%} with {nearest.integer:.1%} on integers, by {nearest.plan!r}, wanted a plan "
        "that recovers 110.0% with at least 100.0% on integers. Lower one of the two, reconstruct (docs/reconstruction.md) or "
        "train the model (docs/training.md)."
    )


def test_a_budget_counts_the_share_on_integers() -> None:
    torch.manual_seed(0)
    case = outlier_channel()
    report = qfunc.diagnose(case.target, case.batches, progress=False)(case.model.eval())
    # The first layer has 3 * 16 * 9 multiply-accumulates a pixel, of 3 * 16 * 9 + 16 * 16 * 9 + 16 * 8.
    (first,) = (t for t in report.trials if repr(t.plan) == "edit.skip(edit.name('0'))")
    assert first.integer == 1 - 432 / (432 + 2304 + 128)
    width = 7 if case.target.overrides else 8  # 7 on a CPU without VNNI
    assert report.base.bits == width * (432 + 2304 + 128)
    assert first.bits == 32 * 432 + width * (2304 + 128)
    # Only plans that keep the large layers in float recover so much.
    assert report.choose(recovered=0.9999, integer=0.0).integer < 0.1
    with pytest.raises(CalibrationError):
        report.choose(recovered=0.9999, integer=0.99)


def test_batches_must_be_iterable_again() -> None:
    with pytest.raises(CalibrationError) as e:
        qfunc.diagnose(targets.onnxruntime, iter(images(1)))
    assert str(e.value) == (
        "diagnose, batches: found an iterator, wanted batches that can be iterated again. Put them into a list, or pass a "
        "DataLoader."
    )


def test_the_report_shows_causes_and_plans() -> None:
    torch.manual_seed(0)
    case = clipped_softmax()
    report = qfunc.diagnose(case.target, case.batches, progress=False)(case.model.eval())
    text, page = str(report), report.html()
    for words in ("clipping", "edit.override(edit.name('matmul'), activations=dict(estimator=MinMax()))", "100.0%"):
        assert words in text
    assert "<h2>Causes</h2>" in page
    assert repr(report) == f"Diagnosis('onnxruntime', {len(report.causes)} causes, {len(report.trials)} plans)"


class Pair(nn.Module):
    """A channel of the first convolution is 500 times larger, and 500 times smaller in both readers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.left, self.right = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)
        with torch.no_grad():
            self.stem[1].weight[5], self.stem[1].bias[5] = 500, 0
            for reader in (self.left, self.right):
                reader.weight[:, 5] /= 500

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.left(x) + self.right(x)


def test_a_tensor_is_named_with_the_ops_on_both_sides() -> None:
    torch.manual_seed(0)
    net, x = Pair().eval(), torch.randn(8, 3, 6, 6)
    wanted = net(x).detach()

    def near(outputs: list[Tensor], batch: Any) -> Tensor:
        return (outputs[0] - batch[1]).flatten(1).abs().amax(1) < 0.1

    report = qfunc.diagnose(targets.onnxruntime, [(x, wanted)], metric=near, progress=False)(net)
    (cause,) = (c for c in report.causes if c.kind == "channels of activations")
    assert re.fullmatch(
        "1 of [0-9] tensors with one scale have channels of unlike ranges: in 'stem.2' channel 5 reaches [0-9.]+, [0-9]+ times "
        "the median; 'stem.0' writes it and 'left', 'right' read it: it is in float only if all of them are",
        cause.text,
    )
    start = f"onnxruntime: near {report.base.score.value:.4g}, of the float network 1; first cause: channels of activations"
    assert str(report).splitlines()[0] == start


def test_a_concat_in_float_ties_nothing() -> None:
    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            return torch.cat([100 * 0 + self.a(x), self.b(x)], 1)

    torch.manual_seed(0)
    model = Join().eval()
    model.a.weight.data.mul_(100)
    for target, shared in ((targets.litert, True), (edit.skip(edit.name("cat"))(targets.litert), False)):
        calibrated = qfunc.calibrate([torch.randn(8, 4)], False)(qfunc.quantize(target)(model))
        scales = {s.tensor: s.scale for s in qfunc.explain(calibrated).sites if s.slot == "output"}
        assert (len({scales[n] for n in scales if n in ("add", "a", "b")}) == 1) == shared


def test_causes_that_hide_each_other_are_both_found() -> None:
    """A channel that is large in a weight and in its output: without either of them alone, the other spoils the network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 8, 1)).eval()
    with torch.no_grad():
        model[0].weight[5] *= 500
        model[2].weight[:, 5] /= 500
    chip = edit.weights(granularity=PerTensor())(targets.onnxruntime)
    report = qfunc.diagnose(chip, [torch.randn(4, 3, 8, 8) for _ in range(2)], progress=False)(model)
    shares = {c.kind: c.share for c in report.causes}
    assert shares["channels of weights"] > 0.25
    assert shares["channels of activations"] > 0.25
    assert repr(report.choose(recovered=0.9).plan) == "qfunc.equalize(deviations=3.0)"


def narrow_layer() -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    return net, [torch.randn(64, 16)]


def test_a_layer_with_an_override_can_be_left_in_float() -> None:
    """2 bits for one layer are the loss; the plan that skips it runs on the target, as its code does."""
    net, batches = narrow_layer()
    target = edit.override(edit.name("2"), weights={"bits": 2})(targets.tensorrt)
    report = qfunc.diagnose(target, batches, progress=False)(net)
    chosen = report.choose()
    assert (repr(chosen.plan), chosen.integer) == ("edit.skip(edit.name('2'))", 5 / 13)  # 32^2 of 16 32 + 32^2 + 32 4
    assert not any("edit.skip" in plan for plan, _ in report.refused)
    by_hand = qfunc.calibrate(batches, progress=False)(qfunc.quantize(edit.skip(edit.name("2"))(target))(net))
    assert torch.equal(by_hand(batches[0]), report.apply()(net)(batches[0]))


def test_a_plan_without_integers_is_not_recommended() -> None:
    """Only the float network recovers all of the loss, and it is no quantized network."""
    net, batches = narrow_layer()
    target = edit.weights(bits=2)(targets.tensorrt)
    report = qfunc.diagnose(target, batches, progress=False)(net)
    whole = next(t for t in report.trials if t.integer == 0)
    assert whole.recovered == 1
    nearest = max((t for t in (report.base, *report.trials) if t.integer > 0), key=lambda t: t.recovered)
    with pytest.raises(CalibrationError) as caught:
        report.choose(recovered=1.0)
    assert str(caught.value) == (
        f"Diagnosis: found {nearest.recovered:.1%} with {nearest.integer:.1%} on integers, by {nearest.plan!r}, wanted a plan "
        "that recovers 100.0% with any on integers. Lower recovered, reconstruct (docs/reconstruction.md) or train the model "
        "(docs/training.md)."
    )
    assert report.choose(recovered=1.0, integer=0.0) == whole


class Classes(nn.Module):
    """Returns classes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net, _ = narrow_layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x)
        return scores.argmax(1)


def test_classes_need_a_metric() -> None:
    _, batches = narrow_layer()
    net, target = Classes().eval(), edit.weights(bits=2)(targets.tensorrt)
    with pytest.raises(CalibrationError) as caught:
        qfunc.diagnose(target, batches, progress=False)(net)
    assert str(caught.value) == (
        "diagnose, outputs: found outputs of int64 only, wanted at least one floating-point output. "
        "Pass metric=, a function (outputs, batch) -> one number per example."
    )
    labelled = [(x, net(x)) for x in batches]
    report = qfunc.diagnose(target, labelled, metric=lambda outputs, batch: outputs[0] == batch[1], progress=False)(net)
    assert report.causes
    assert any("edit.skip" in repr(t.plan) for t in report.trials)
