"""DynamicQuantizeLSTM: an LSTM layer whose input and state become codes at run time."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.unit import Operand, UnitSpec
from qfunc.numerics.kernels.integer import logistic
from qfunc.numerics.sums.saturating_pairs import outputs_at_risk, saturate_pairs_linear
from qfunc.specs import Int, PerTensor, SaturatesPairs, Scale, Scheme, ZeroPoint
from qfunc.specs._check import instance_of
from qfunc.specs._values import readable
from qfunc.targets.onnxruntime.mlas import tanh

RUN_TIME = Scheme(Int(8, signed=False), Scale(PerTensor(), dynamic=True), ZeroPoint())
"""The codes of the input of all steps, and of the state before each step: one scale and zero point for the whole batch."""
LARGEST = 255


@readable
@frozen
class DynamicLstm:
    """One layer in one direction; every tensor of codes is q = clamp(round(x / s) + z), s = (h - l) / 255, z = round(-l / s).

    l = min(x, 0) and h = max(x, 0) of all examples of the batch.  With the codes of the inputs of all steps, and of the state
    h_(t-1) before each step, in float32:

        v = acc_x (s_x s_w) + acc_h (s_h s_r) + (b_ih + b_hh), for the gates i, f, g, o
        c_t = c_(t-1) logistic(f) + logistic(i) tanh(g)
        h_t = logistic(o) tanh(c_t)

    acc_x and acc_h are exact sums of (q - z) q_w; s_w and s_r are the scales of a row of the weights.  An example in a batch
    has other codes than alone, because others of the batch have a part in its scale.  With several threads the runtime divides
    the batch, and each part has scales of its own: `threads=1` has those of the whole batch.

    Args:
        overflow: `SaturatesPairs()` where pairs of products saturate to 16 bits; None for exact sums.
        fma: False on processors without FMA: the polynomials of logistic and tanh round twice in a step.

    Source: ONNX Runtime, contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc, core/providers/cpu/rnn/uni_directional_lstm.cc
        and rnn_helpers.cc; measured on onnxruntime 1.31.

    >>> DynamicLstm()
    DynamicLstm()
    """

    overflow: SaturatesPairs | None = field(default=None, validator=instance_of(SaturatesPairs, optional=True))
    fma: bool = field(default=True, kw_only=True, validator=instance_of(bool))

    @property
    def run_time_input(self) -> Scheme:
        """The scheme of the input."""
        return RUN_TIME

    @property
    def float_bias(self) -> bool:
        """True: biases are real numbers."""
        return True

    def refuses(self, unit: UnitSpec) -> str:
        """Return the reason for other units than layers with two weights of codes."""
        if unit.kind != "lstm":
            return "it is no LSTM"
        codings = [w.coding for w in _weights(unit)]
        if any(c is None or not c.scheme.symmetric for c in codings):
            return "its weights are not both symmetric codes"
        return "" if unit.arguments["input"].run_time == RUN_TIME else "its input has no codes at run time"

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the steps, the last state and the last cell."""
        if unit.kind != "lstm":
            raise unit.unfit(self, ("lstm",))
        arguments, weights = unit.arguments, list[Any]()
        for operand in _weights(unit):
            assert operand.coding is not None  # `refuses` has no reason
            codes, scales = Constant(operand.constant.float(), of=operand), operand.coding.scales.flatten()
            weights += [codes, Constant(scales, f"{operand.name.rpartition('.')[2]}_scales")]
        states = [arguments[name] for name in ("input", "hx", "cx")]
        biases = [arguments[name] for name in ("bias_ih", "bias_hh")]
        return Computation(
            dynamic_lstm, (*states, *weights, *biases, arguments["reverse"], self.overflow is not None, self.fma)
        )


def _weights(unit: UnitSpec) -> tuple[Operand, Operand]:
    return unit.arguments["weight_ih"], unit.arguments["weight_hh"]


def dynamic_lstm(
    x: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weight_ih: Tensor,
    scale_ih: Tensor,
    weight_hh: Tensor,
    scale_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    reverse: bool,
    pairs: bool = False,
    fma: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output of each step, last h, last c) of a layer over [T, N, C] or [T, C]: see `DynamicLstm`.

    Args:
        x: The input.
        hx, cx: The initial states, [1, N, H] or [1, H]; None for zeros.
        weight_ih, weight_hh: Codes [4 H, C] and [4 H, H].
        scale_ih, scale_hh: Their scales: one, or one for each row.
        bias_ih, bias_hh: The biases [4 H], or None.
        reverse: The last step is the first.
        pairs: Pairs of products saturate to 16 bits.
        fma: The polynomials have fused multiply-adds.

    >>> y, h, c = dynamic_lstm(torch.ones(3, 2), None, None, torch.ones(4, 2), torch.ones(1), torch.ones(4, 1),
    ...                        torch.ones(1), None, None, False)
    >>> y.shape, h.shape, c.shape
    (torch.Size([3, 1]), torch.Size([1, 1]), torch.Size([1, 1]))
    """
    batched = x.ndim == 3
    steps = x.float() if batched else x.float().unsqueeze(1)
    size = weight_hh.shape[1]
    h, c = (steps.new_zeros(steps.shape[1], size) if s is None else s.float().reshape(-1, size) for s in (hx, cx))
    bias = None if bias_ih is None or bias_hh is None else bias_ih.float() + bias_hh.float()
    entering = _product(steps, weight_ih, scale_ih, pairs)
    found = []
    for v in entering.flip(0) if reverse else entering:
        v = v + _product(h, weight_hh, scale_hh, pairs)
        i, f, g, o = (v if bias is None else v + bias).chunk(4, -1)
        c = c * logistic(f, fma) + logistic(i, fma) * tanh(g, fma)
        h = logistic(o, fma) * tanh(c, fma)
        found.append(h)
    y = torch.stack(found[::-1] if reverse else found)
    return (y, h[None], c[None]) if batched else (y.squeeze(1), h, c)


def _product(x: Tensor, weight: Tensor, scale: Tensor, pairs: bool) -> Tensor:
    # The real product of a tensor whose codes have one scale, and a weight of codes [O, K].
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    span = high - low
    s = torch.where(span == 0, torch.ones_like(span), span / torch.full_like(span, LARGEST))
    z = (-(low / s)).clamp(0, LARGEST).round()
    codes = ((x / s).round() + z).clamp(0, LARGEST)
    acc = torch.matmul((codes - z).double(), weight.double().T)
    risky = outputs_at_risk(weight, 0, LARGEST).nonzero().flatten() if pairs else None
    if risky is not None and risky.numel():
        acc = saturate_pairs_linear(acc, codes, weight, risky)
    return torch.mul(acc.float(), s * scale)
