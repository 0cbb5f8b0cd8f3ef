"""A program that the user exported takes the sizes to which torch.export fixed it, and those that it left dynamic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc.errors import CaptureError
from tests.onnxruntime_target import ONNXRUNTIME

TARGET, VARIES = ONNXRUNTIME, {0: torch.export.Dim.AUTO}


class Loop(nn.Module):
    """It counts its images when it is exported: with others it would leave some out."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, images: dict[str, torch.Tensor], gain: torch.Tensor) -> torch.Tensor:
        x = images["left"] + images["right"]
        return torch.stack([self.head(x[i]) * gain for i in range(x.shape[0])])


def given(batch: int) -> tuple[Any, ...]:
    """Two images, and a number for all of them."""
    return {"left": torch.randn(batch, 3), "right": torch.randn(batch, 1)}, torch.ones(4)


@pytest.mark.parametrize("as_module", [False, True])
def test_another_batch_is_refused(as_module: bool) -> None:
    exported: Any = torch.export.export(Loop().eval(), given(2))
    program = exported.module() if as_module else exported
    quantized = qfunc.quantize(TARGET)(program)
    calibrated = qfunc.calibrate([given(2)], progress=False)(quantized)
    exact = qfunc.emulate(TARGET)(calibrated)
    text = (
        "call of an exported program, input 'images_left': found a tensor of shape [4, 3], wanted [2, 3], to which torch."
        "export fixed it. Export it with dynamic_shapes, such as {'x': {0: torch.export.Dim.AUTO}}, and an example of two; or "
        "quantize the nn.Module itself."
    )
    for use in (
        lambda: qfunc.calibrate([given(4)], progress=False)(quantized),
        lambda: calibrated(*given(4)),
        lambda: exact(*given(4)),
    ):
        with pytest.raises(CaptureError) as e:
            use()
        assert str(e.value) == text
    artifact = qfunc.deploy(TARGET)(calibrated)
    run = TARGET.runtime.runner.run  # type: ignore[union-attr]
    assert [list(t.shape) for t in run(artifact, [*given(2)[0].values(), torch.ones(4)])] == [[2, 4]]
    with pytest.raises(Exception, match="Got: 4 Expected: 2"):
        run(artifact, [*given(4)[0].values(), torch.ones(4)])


def test_keywords_and_entries_come_in_any_order() -> None:
    exported = torch.export.export(Loop().eval(), (), dict(zip(("images", "gain"), given(2), strict=True)))
    captured = qfunc.capture()(exported)
    images, gain = given(2)
    turned = dict(reversed(images.items()))
    captured(gain=gain, images=turned)
    with pytest.raises(CaptureError, match=r"input 'gain': found a tensor of shape \[5\], wanted \[4\]"):
        captured(gain=torch.ones(5), images=turned)


def test_an_axis_that_varies_may() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).eval()
    image = torch.randn(2, 3, 4, 4)
    calibrated = qfunc.calibrate([torch.randn(1, 3, 4, 4)], progress=False)(
        qfunc.quantize(TARGET)(torch.export.export(net, (image,), dynamic_shapes=(VARIES,)))
    )
    assert calibrated(torch.randn(5, 3, 4, 4)).shape == (5, 2)
    with pytest.raises(CaptureError, match=r"found a tensor of shape \[5, 3, 4, 6\], wanted \[any, 3, 4, 4\]"):
        calibrated(torch.randn(5, 3, 4, 6))
