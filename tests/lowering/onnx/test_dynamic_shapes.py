"""Sizes that vary from call to call: the artifact of a program with varying axes holds for sizes far apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.targets.runtimes import OnnxRuntimeRunner


class Windows(nn.Module):
    """Pads to a multiple of 7, as transformers with windows do, and keeps the upper half, rounded up."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2], x.shape[3]
        y = self.conv(F.pad(x, (0, (7 - width % 7) % 7, 0, (7 - height % 7) % 7)))
        return y[:, :, : -(-y.shape[2] // 2)]


@pytest.fixture(scope="module")
def example() -> Tensor:
    return torch.randn(2, 3, 9, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore")
def test_neighbouring_sizes_that_give_one_result_are_not_taken_for_a_constant(example: Tensor) -> None:
    """9 and 10 rows are both padded to 14, of which 6 come out of the convolution and 3 are kept; of 36 rows it is 10."""
    auto = torch.export.Dim.AUTO
    program = torch.export.export(Windows().eval(), (example,), dynamic_shapes=({2: auto, 3: auto},))
    calibrated = qfunc.calibrate([example], progress=False)(qfunc.quantize(targets.onnxruntime)(program))
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    heights = []
    for height, width in ((9, 12), (13, 8), (36, 21), (7, 50)):
        x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(height))
        found = torch.as_tensor(OnnxRuntimeRunner(optimise=False).run(artifact, [x])[0])
        with torch.no_grad():
            simulated = calibrated(x)
        scale = max(float(m.qparams().scale) for m in calibrated.modules() if hasattr(m, "site") and not m.site.constant)
        assert found.shape == simulated.shape
        assert (found - simulated).abs().max() <= 1.001 * scale  # a tie may fall to the other side: one step
        heights.append(found.shape[2])
    assert heights == [3, 3, 10, 2]


def test_sizes_of_one_input_are_constants_on_the_other_road(example: Tensor) -> None:
    """Traced symbolically only the batch varies; the pads that the model computes are numbers."""
    calibrated = qfunc.calibrate([example], progress=False)(qfunc.quantize(targets.onnxruntime)(Windows().eval()))
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    (found,) = OnnxRuntimeRunner(optimise=False).run(artifact, [example[:1]])
    with torch.no_grad():
        assert tuple(found.shape) == tuple(calibrated(example[:1]).shape) == (1, 4, 3, 6)


class Decoder(nn.Module):
    """One step of a decoder: attention over what is remembered and what is new; causal where nothing is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(40, 16), nn.Embedding(64, 16)
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 40)

    def forward(self, ids: Tensor, past_k: Tensor | None = None, past_v: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        batch, count = ids.shape
        done = 0 if past_k is None else past_k.shape[2]
        x = self.token(ids) + self.place(torch.arange(done, done + count, device=ids.device))
        q, k, v = (t.view(batch, count, 4, 4).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        if past_k is not None and past_v is not None:
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past_k is None)
        return self.out(y.transpose(1, 2).reshape(batch, count, 16)), k, v


def _step(batch: int, count: int, done: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch + count + done)
    ids = torch.randint(0, 40, (batch, count), generator=generator)
    past = (torch.randn(batch, 4, done, 4, generator=generator) for _ in "kv")
    return (ids, *past) if done else (ids,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", [(2, 2, 5), (2, 5, 5), (3, 4, 0)], ids=["new as the batch", "new as the old", "no past"])
def test_a_decoder_is_deployed_whatever_sizes_its_example_has(example: tuple[int, int, int]) -> None:
    """Two axes of one size in the example are not one; those of keys and values are, for their sums must agree."""
    torch.manual_seed(0)
    auto, inputs = torch.export.Dim.AUTO, _step(*example)
    axes = {"ids": {0: auto, 1: auto}, "past_k": {0: auto, 2: auto}, "past_v": {0: auto, 2: auto}}
    dynamic = axes if example[2] else {"ids": axes["ids"]}
    program = torch.export.export(Decoder().eval(), inputs, dynamic_shapes=dynamic)
    calibrated = qfunc.calibrate([inputs], progress=False)(qfunc.quantize(targets.onnxruntime)(program))
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    for batch, count, done in ((3, 1, 7), (1, 6, 2), (4, 9, 9)):
        given = _step(batch, count, done if example[2] else 0)
        found = OnnxRuntimeRunner(optimise=False).run(artifact, list(given))
        with torch.no_grad():
            simulated = calibrated(*given)
        for ours, theirs in zip(simulated, found, strict=True):
            assert tuple(theirs.shape) == tuple(ours.shape)
            error = (torch.as_tensor(theirs) - ours).abs()
            # A tie may fall to the other side, and push others over theirs: a few steps of some elements.
            assert error.max() <= 0.1
            assert error.mean() <= 0.002
