"""What stays float stays float in the runtime too, and graph outputs need no codes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

from qfunc import targets
from qfunc.specs import Everything, GraphOutput, KeepFloat, Rule, edit
from tests.conformance.modules import INTEGER
from tests.conformance.running import verified


class Net(nn.Module):
    """Convolutions with a residual, a global mean and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.up, self.fc, self.head = nn.ConvTranspose2d(6, 6, 2, 2), nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, 4]."""
        x = F.relu(self.a(x))
        x = F.relu(x + self.b(x))
        x = self.up(F.relu(self.c(x)))
        return self.head(F.relu(self.fc(x.mean((2, 3)))))


class Words(nn.Module):
    """Linear layers over three axes, a softmax and a constant matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 9), nn.Linear(9, 9), nn.Linear(9, 9)
        self.register_buffer("w", torch.randn(9, 7))

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, 12] -> [N, T, 7]."""
        x = self.a(x)
        x = self.b(x) + x
        return torch.softmax(self.c(x), -1) @ self.w


NET, WORDS = (Net, (2, 3, 9, 11)), (Words, (2, 5, 12))


def _keep(**slots):
    def change(target):
        return evolve(target, rules=(Rule(Everything(), **slots), *target.rules))

    return change


EDITS = {
    **{f"skip {n}": (NET, edit.skip(edit.name(n))) for n in ("a", "b", "c", "fc", "head")},
    **{f"skip {k}": (NET, edit.skip(edit.op(k))) for k in ("conv", "linear", "add", "global_avg_pool")},
    **{f"words, skip {n}": (WORDS, edit.skip(edit.name(n))) for n in ("a", "b", "c")},
    **{f"words, skip {k}": (WORDS, edit.skip(edit.op(k))) for k in ("softmax", "matmul", "linear", "add")},
    **{f"net, {s} kept": (NET, _keep(**{s: KeepFloat()})) for s in ("input", "weight", "bias", "output")},
    **{f"words, {s} kept": (WORDS, _keep(**{s: KeepFloat()})) for s in ("input", "weight", "bias", "output")},
    "net, weights alone": (NET, _keep(input=KeepFloat(), output=KeepFloat())),
    "words, weights alone": (WORDS, _keep(input=KeepFloat(), output=KeepFloat())),
}
_OUTPUTS = ("conv2d", "conv relu", "linear rank 2", "linear rank 2 no bias", "linear rank 3", "matmul constant rank 3", "bmm", "add itself",
            "sigmoid", "softmax last", "adaptive to 1", "concat", "mul itself", "mean", "flatten", "attention")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", EDITS)
def test_a_unit_left_float_stays_float(name):
    (make, shape), change = EDITS[name]
    torch.manual_seed(0)
    report = verified(make(), *shape, target=edit.pipe(targets.onnxruntime, change))
    # Without codes of activations only float results are compared, whose last bits depend on the processor.
    within = ("within 1 LSB or their bounds: ",) if name.endswith("weights alone") else ()
    assert report.agreement.startswith(("bit-exact", *within)), report


@pytest.mark.parametrize("name", _OUTPUTS)
def test_an_output_without_codes_is_no_mismatch(name):
    torch.manual_seed(0)
    make, shape = INTEGER[name]
    target = edit.pipe(targets.onnxruntime, lambda t: evolve(t, rules=(Rule(GraphOutput(), output=KeepFloat()), *t.rules)))
    report = verified(make(), *shape, target=target)
    assert report.agreement.startswith("bit-exact"), report


def test_a_skipped_weight_stays_float_in_the_artifact_and_in_the_runtime():
    torch.manual_seed(0)
    report = verified(Net(), 2, 3, 9, 11, target=edit.pipe(targets.onnxruntime, edit.skip(edit.name("b"))))
    assert dict(report.float_units)["b"] == "its weight carries no qparams"
    assert max(r.largest_lsb for r in report.of("alone") if r.name == "b") <= 1 if report.of("alone") else True
