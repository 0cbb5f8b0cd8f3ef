"""The multiply-accumulates of each op are those of its formula, counted by loops over its indices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.analysis.lockstep import Ops
from qfunc.analysis.operations.multiply_accumulates import multiply_accumulates
from qfunc.analysis.operations.quantized_weights import weights_of
from qfunc.specs import Op, Trait, edit
from tests.conformance.modules import Apply

T, N, C, H = 5, 3, 4, 6


def layer(gates: int, inputs: int, ways: int = 1) -> int:
    """Of each gate, at each step of each example: an entry of each input and of each state for each entry of the state."""
    return sum(inputs + H for _ in range(ways * T * N * gates * H))


def attended(keys: int, width: int, value_width: int) -> int:
    """Of each query, over the keys: the score from the query's entries, and the weight of the value's entries."""
    return sum(width + value_width for _ in range(N * T * keys))


def _recurrent(kind: type[nn.Module], **options: object) -> nn.Module:
    return Apply(lambda x, rnn: rnn(x)[0], kind(C, H, **options))  # type: ignore[call-arg]


def _attention(keys: int = T, **options: bool) -> nn.Module:
    def attend(x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return F.scaled_dot_product_attention(x, x[:, :keys], x[:, :keys], **options)  # type: ignore[arg-type]

    return Apply(attend)


CASES = {
    "lstm": (_recurrent(nn.LSTM), layer(4, C)),
    "lstm, two levels, both directions": (
        _recurrent(nn.LSTM, num_layers=2, bidirectional=True), layer(4, C, 2) + layer(4, 2 * H, 2),
    ),
    "lstm, batch first": (_recurrent(nn.LSTM, bias=False), layer(4, C)),
    "gru": (_recurrent(nn.GRU), layer(3, C)),
    "rnn": (_recurrent(nn.RNN), layer(1, C)),
    "attention": (_attention(), attended(T, C, C)),
    "attention, other keys and values": (_attention(keys=2), attended(2, C, C)),
    "masked attention": (_attention(is_causal=True), attended(T, C, C)),
    "vectors": (Apply(lambda x: x[0, 0] @ x[0, 1]), C),
    "matrix and vector": (Apply(lambda x: x[0] @ x[0, 1]), N * C),
    "batch of matrices and a vector": (Apply(lambda x: x @ x[0, 1]), T * N * C),
    "batches of matrices": (Apply(lambda x: x @ x.transpose(1, 2)), T * N * N * C),
    "linear": (Apply(lambda x, linear: linear(x), nn.Linear(C, H)), T * N * C * H),
    "einsum": (Apply(lambda x: torch.einsum("tnc,tmc->tnm", x, x)), T * N * N * C),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_counts_are_those_of_the_formula(name: str) -> None:
    net, wanted = CASES[name]
    captured = qfunc.capture()(net.eval())
    counts = multiply_accumulates(Ops(captured), (torch.randn(T, N, C),))
    assert sum(counts.values()) == wanted


class Speech(nn.Module):
    """A recurrent layer in float between two layers on integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rnn, self.last = nn.Linear(C, C), nn.LSTM(C, H), nn.Linear(H, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rnn(self.first(x))[0])


def test_a_recurrent_layer_in_float_is_not_on_integers() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(T, N, C)]
    calibrated = qfunc.calibrate(batches)(qfunc.quantize(targets.onnxruntime)(Speech().eval()))
    report = qfunc.verify(targets.onnxruntime)(calibrated, batches)
    integer, total = T * N * (C * C + H * 2), T * N * (C * C + H * 2) + layer(4, C)
    assert (report.integer_products, report.products) == (integer, total)
    assert report.verdict.startswith(f"{1000 * integer // total / 10:g} % of the multiply-accumulates run on integers; ")
    assert report.verdict.endswith(" of the multiply-accumulates")  # those of the layer


def test_bit_operations_of_a_recurrent_layer_are_shared_by_its_weights() -> None:
    """W_ih costs T N |W_ih| products, W_hh T N |W_hh|."""
    torch.manual_seed(0)
    batch = torch.randn(T, N, C)
    product = targets.openvino.rules[0]
    target = edit.add(Op(Trait.RECURRENT), input=product.input, weight=product.weight)(targets.openvino)
    calibrated = qfunc.calibrate([batch])(qfunc.quantize(target)(Speech().eval()))
    found = {w.site: w for w in weights_of(Ops(calibrated), (4,), (batch,))}
    assert {"rnn.weight_ih_l0", "rnn.weight_hh_l0"} <= found.keys()
    for weight in found.values():
        assert [count for count, _ in weight.products] == [T * N * weight.elements], weight.site
