"""Labels in dicts go to the metric as those in tuples do: the numbers are the same, and misspelt arguments are refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError
from qfunc.specs import edit

COARSE = edit.weights(bits=2)(targets.onnxruntime)


class Two(nn.Module):
    """A model of two inputs, of which one may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, features: Tensor, shift: Any = 0.0) -> Tensor:
        """Return [N, 5]."""
        return self.b(torch.relu(self.a(features + shift)))


class FromDict(Two):
    """The same model of a dict."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return [N, 5]."""
        return super().forward(batch["features"], batch["shift"])


def model(kind: type[Two] = Two) -> nn.Module:
    """The same network each time."""
    torch.manual_seed(0)
    return kind().eval()


def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Features, shifts and the classes that the float network gives them."""
    draws = [torch.Generator().manual_seed(i) for i in range(3)]
    inputs = [(torch.randn(32, 8, generator=g), torch.randn(32, 1, generator=g)) for g in draws]
    with torch.no_grad():
        return [(x, s, model()(x, s).argmax(1)) for x, s in inputs]


TUPLES = batches()
DICTS = [{"labels": y, "features": x, "shift": s, "id": [3]} for x, s, y in TUPLES]
EXAMPLE = TUPLES[0][:2]


def of_tuples(outputs: list[Tensor], batch: Any) -> Tensor:
    """One for each right class."""
    return outputs[0].argmax(1) == batch[2]


def of_dicts(outputs: list[Tensor], batch: Any) -> Tensor:
    """One for each right class."""
    return outputs[0].argmax(1) == batch["labels"]


def accuracy() -> float:
    """The accuracy by the single steps."""
    calibrated = qfunc.calibrate([b[:2] for b in TUPLES], progress=False)(qfunc.quantize(COARSE, EXAMPLE)(model()))
    with torch.no_grad():
        return float(torch.cat([calibrated(x, s).argmax(1) == y for x, s, y in TUPLES]).double().mean())


@pytest.mark.parametrize(
    ("batches", "metric", "calibration"), [(DICTS, of_dicts, None), (DICTS, of_dicts, DICTS), (TUPLES, of_tuples, None)]
)
def test_a_sweep_is_that_of_the_single_steps(batches: Any, metric: Any, calibration: Any) -> None:
    run = qfunc.sweep([COARSE], batches, metric=metric, calibration=calibration, example_inputs=EXAMPLE, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = run(model())
    assert report.best == 1.0
    assert report.rows[0].value == accuracy() < 1.0
    assert report.rows[0].why == ""


@pytest.mark.parametrize("exported", [False, True])
def test_a_model_of_one_dict(exported: bool) -> None:
    example: Any = ({"features": EXAMPLE[0], "shift": EXAMPLE[1]},)
    given: Any = model(FromDict)
    if exported:
        sizes = {"batch": {"features": {0: torch.export.Dim("n")}, "shift": {0: torch.export.Dim("n")}}}
        given = torch.export.export(given, example, dynamic_shapes=sizes)
    report = qfunc.sweep([COARSE], DICTS, metric=of_dicts, example_inputs=None if exported else example, progress=False)(given)
    assert report.rows[0].value == accuracy()


@pytest.mark.thorough
def test_a_diagnosis_of_dicts_is_that_of_tuples() -> None:
    dicts = qfunc.diagnose(COARSE, DICTS, metric=of_dicts, example_inputs=EXAMPLE, progress=False)(model())
    tuples = qfunc.diagnose(COARSE, TUPLES, metric=of_tuples, example_inputs=EXAMPLE, progress=False)(model())
    assert dicts.base.score.value == accuracy()
    assert dicts.trials == tuples.trials
    assert [(c.kind, c.share) for c in dicts.causes] == [(c.kind, c.share) for c in tuples.causes]


def test_an_optional_argument_may_be_left_out() -> None:
    given = [{"labels": batch["labels"], "features": batch["features"]} for batch in DICTS]
    report = qfunc.sweep([COARSE], given, metric=of_dicts, progress=False)(model())
    with torch.no_grad():
        right = torch.cat([model()(x).argmax(1) == y for x, _, y in TUPLES])
    assert report.best == float(right.double().mean()) < 1.0


WRONG = {
    "missing": {"labels": 0, "shift": EXAMPLE[1]},
    "misspelt": {"labels": 0, "feature": EXAMPLE[0], "shift": EXAMPLE[1]},
    "optional and misspelt": {"labels": 0, "features": EXAMPLE[0], "shifts": EXAMPLE[1]},
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("step", ["sweep", "diagnose"])
def test_missing_and_misspelt_arguments_are_refused(case: str, step: str) -> None:
    example = None if case.startswith("optional") else EXAMPLE
    run: Any = {
        "sweep": qfunc.sweep([COARSE], [WRONG[case]], metric=of_dicts, example_inputs=example, progress=False),
        "diagnose": qfunc.diagnose(COARSE, [WRONG[case]], metric=of_dicts, example_inputs=example, progress=False),
    }[step]
    with pytest.raises(CalibrationError) as caught:
        run(model())
    keys = ", ".join(sorted(map(repr, WRONG[case])))
    assert f"batch: found a dict with keys {keys}, wanted a tensor, tuple or dict for the inputs" in str(caught.value)


def test_without_a_metric_no_key_is_ignored() -> None:
    with pytest.raises(CalibrationError, match="found a dict with keys 'features', 'id', 'labels', 'shift'"):
        qfunc.sweep([COARSE], DICTS, example_inputs=EXAMPLE, progress=False)(model())


def test_other_labels_are_measured_again(tmp_path: Path) -> None:
    run: Any = qfunc.sweep
    first = run([COARSE], DICTS, metric=of_dicts, folder=tmp_path, example_inputs=EXAMPLE, progress=False)(model())
    others = [{**batch, "labels": torch.zeros(32)} for batch in DICTS]
    second = run([COARSE], others, metric=of_dicts, folder=tmp_path, example_inputs=EXAMPLE, progress=False)(model())
    assert first.rows[0].value != second.rows[0].value
