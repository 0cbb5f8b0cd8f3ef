"""Places, counts and comparisons: what `quantize` accepts, `deploy` writes, and ONNX Runtime gives the same integers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from tests.conformance.modules import Apply
from tests.each import failures

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "padded places": lambda y: F.pad(y.argmax(1), (0, 2)),
    "padded masks": lambda y: F.pad(y > 0, (0, 2), value=True),
    "padded reals": lambda y: F.pad((y > 0).float(), (1, 1), value=3.0),
    "padded order": lambda y: F.pad(y.argsort(1), (0, 2), value=-1),
    "reflected": lambda y: F.pad(y.argmax(1), (1, 1), mode="reflect"),
    "rolled": lambda y: torch.roll(y.argmax(1), 1, 1),
    "reversed": lambda y: torch.flip(y.argmax(1), [1]),
    "repeated": lambda y: y.argmax(1).repeat(1, 2),
    "lower part": lambda y: torch.tril(y.argsort(1)),
    "clipped": lambda y: y.argmax(1).clamp(1, 3),
    "clipped by reals": lambda y: y.argmax(1).clamp(0.5, 2.5),
    "clipped order": lambda y: y.argsort(1).clamp(min=2),
    "rectified": lambda y: torch.relu(y.argsort(1) - 2),
    "chosen": lambda y: torch.where(y > 0, y.argsort(1), 0),
    "filled": lambda y: y.argsort(1).masked_fill(y > 0, 7),
    "counted": lambda y: (y > 0).sum(1),
    "counted along": lambda y: (y > 0).cumsum(1),
    "joined": lambda y: torch.cat([y.argsort(1), torch.zeros_like(y.argsort(1))], 1),
    "differences": lambda y: torch.diff(y.argmax(1)),
    "product": lambda y: y.argsort(1).prod(1),
    "largest": lambda y: y.argsort(1).amax(1),
    "magnitudes": lambda y: (y.argsort(1) - 2).abs(),
    "signs": lambda y: torch.sign(y.argsort(1) - 2),
    "lesser": lambda y: torch.minimum(y.argsort(1), y.argsort(2)),
    "squares": lambda y: y.argsort(1) ** 2,
    "best": lambda y: y.argsort(1).topk(2, 1)[0],
    "sorted": lambda y: y.argsort(1).sort(2)[0],
    "gathered": lambda y: torch.gather(y.argsort(1), 1, y.argsort(2).clamp(0, 3)),
    "mean": lambda y: y.argsort(1).float().mean(1),
    "halves": lambda y: y.argmax(1) // 2,
    "remainders": lambda y: y.argmax(1) % 3,
    "negated": lambda y: -y.argmax(1),
    "equal": lambda y: y.argmax(1) == 2,
    "coded": lambda y: F.one_hot(y.argmax(1), 4),
    "windows": lambda y: y.argmax(1).unfold(1, 2, 1),
    "stacked": lambda y: torch.stack([y.argmax(1)] * 2, 1),
    "expanded": lambda y: y.argmax(1)[:, None].expand(-1, 2, -1),
    "products": lambda y: y.argmax(1)[:, :, None] * y.argmax(1)[:, None],
    "quotients": lambda y: y.argmax(1) / 2,
    "rounded": lambda y: (y.argmax(1) * 0.6).round(),
    "any": lambda y: (y > 0).any(1),
    "all": lambda y: (y > 0).all(1),
}


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "litert", "executorch_xnnpack", "tosa", "ncnn"])
def test_deploy_writes_the_integers_that_quantize_accepts(name: str) -> None:
    """On ONNX Runtime they are those of the emulation."""
    target, runs = getattr(targets, name), name == "onnxruntime" and importlib.util.find_spec("onnxruntime") is not None
    g = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, 4, 32, generator=g) for _ in range(2)]

    def check(form: str) -> None:
        torch.manual_seed(0)
        net = Apply(lambda x, layer: FORMS[form](layer(x)), nn.Linear(32, 16)).eval()
        try:
            quantized = qfunc.quantize(target)(net)
        except SpecError:
            return
        calibrated = qfunc.calibrate(batches, progress=False)(quantized)
        assert qfunc.deploy(target)(calibrated).files
        if runs:
            report = qfunc.verify(target)(calibrated, batches)
            assert report.verdict.startswith("bit-exact: 0 of "), report

    assert failures(check, FORMS) == {}
