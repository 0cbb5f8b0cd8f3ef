"""What qfunc writes as a float ONNX file, it reads again as the same function: records, and drawn networks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError, QfuncError
from qfunc.execution.batches import tensors_of
from qfunc.ops.definition import Op
from qfunc.ops.opset import OPS
from qfunc.specs import Everything, edit
from qfunc.testing.grammar.families import program
from tests.conformance.modules import Apply

FLOAT = edit.skip(Everything())(targets.qdq)
X = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
OTHERS = {
    "cached_attention": "of language models, which another target writes", "bitwise_and": "of integers, which no file has",
    "bitwise_or": "likewise", "bitwise_xor": "likewise", "bitwise_not": "likewise", "max_pool3d": "of volumes without a batch",
    "avg_pool3d": "likewise", "adaptive_avg_pool3d": "likewise", "local_response_norm": "of an even number of neighbours",
    "lstm": "below, as layers", "gru": "below", "rnn": "below",
}  # fmt: skip
"""Records whose examples are not written."""
LAYERS = [kind(6, 4, 2, bidirectional=ways, batch_first=first)
          for kind in (nn.LSTM, nn.GRU, nn.RNN) for ways in (False, True) for first in (False, True)]  # fmt: skip


def written(model: nn.Module, inputs: tuple[Any, ...], export: bool = False) -> bytes:
    """The float file of a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no op is quantized is meant
        unquantized = qfunc.quantize(FLOAT, inputs if export else None)(model)
        return qfunc.deploy(FLOAT, inputs)(unquantized).files["model.onnx"]


def apart(found: Any, wanted: Any) -> float:
    """The largest difference as a part of the largest value; NaN and infinities must be at the same places."""
    worst = 0.0
    for a, b in zip(tensors_of(found), tensors_of(wanted), strict=True):
        a, b = a.detach().double(), b.detach().double()
        assert a.shape == b.shape
        assert torch.equal(a.isfinite(), b.isfinite())
        finite = b.isfinite()
        scale = float(b[finite].abs().max()) if bool(finite.any()) else 0.0
        worst = max(worst, float((a - b)[finite].abs().max()) / max(scale, 1e-6) if bool(finite.any()) else 0.0)
    return worst


@pytest.mark.parametrize("op", [o for o in OPS if o.call.__name__ not in OTHERS], ids=lambda o: f"{o.kind}-{o.call.__name__}")
def test_each_record(op: Op) -> None:
    """1e-5: float32 sums in another order, and curves that ONNX writes by other functions."""
    assert op.example is not None
    model = Apply(op.example).eval()
    try:
        content = written(model, (X,))
    except CaptureError:  # the example branches on values
        content = written(model, (X,), export=True)
    assert apart(qfunc.read(content)(X), model(X)) < 1e-5


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_each_recurrent_layer(layer: Any) -> None:
    x = torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(1))
    model = Steps(layer).eval()
    assert apart(qfunc.read(written(model, (x,)))(x), model(x)) < 1e-5


class Steps(nn.Module):
    """The output at each step, and the first state."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        steps, states = self.layer(x)
        return steps, states[0] if isinstance(self.layer, nn.LSTM) else states


def trip(seed: int) -> str:
    """What became of a drawn network, with a batch of two and one of three: "same", "other" or "not written"."""
    drawn = program(seed)
    made = drawn.build()
    model, batches = made["model"], [made["batches"][0], made["probes"][1]]
    try:
        content = written(model, batches[0], drawn.export)
    except QfuncError:
        return "not written"
    read = qfunc.read(content)
    for batch in batches:
        with torch.no_grad():
            found, wanted = read(*batch), model.eval()(*batch)
        try:
            difference = apart(found, wanted)
        except AssertionError:
            return "other"
        if difference > 1e-4:  # sums in another order, through a whole network
            return f"other, by {difference:.1e}"
    return "same"


@pytest.mark.parametrize("seed", range(30))
def test_drawn_networks(seed: int) -> None:
    assert trip(seed) in ("same", "not written")


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(10))
def test_more_drawn_networks(block: int) -> None:
    outcomes = {seed: trip(seed) for seed in range(1000 + 40 * block, 1040 + 40 * block)}
    assert not [seed for seed, outcome in outcomes.items() if outcome.startswith("other")]
    assert sum(outcome == "same" for outcome in outcomes.values()) > 20
