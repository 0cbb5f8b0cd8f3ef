"""Units as graph nodes: for each arithmetic of the vocabulary, the calls that compute it."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import EmulationError
from qfunc.graph.fold import read_attr
from qfunc.graph.units import Coding, Partition, Unit
from qfunc.graph.vocabulary import attribute, slots
from qfunc.numerics import fixed_point, integer
from qfunc.numerics.rounding import round_by
from qfunc.specs import (
    AveragePool,
    Copy,
    FixedPoint,
    FloatMultiplier,
    Interior,
    Shift,
    SoftmaxTable,
    SumFma,
    SumScaled,
    SumShifted,
    ThroughReal,
)
from qfunc.transforms.emitter import Codes, Emitter, Value

_PRODUCTS = ("conv", "linear", "matmul", "mul")


@frozen(eq=False)
class Job:
    """One integer unit to be written: its inputs' values by node name, its output's coding."""

    unit: Unit
    partition: Partition
    emitter: Emitter
    inputs: dict[str, Value]
    output: Coding

    @property
    def root(self) -> fx.Node:
        """The unit's op."""
        return self.unit.group.root

    @property
    def name(self) -> str:
        """The node name of the unit's result: that of the float tensor."""
        return self.unit.group.output.name

    def given(self, producer: fx.Node) -> Codes:
        """The codes of an activation input."""
        value = self.inputs[producer.name]
        assert isinstance(value, Codes)
        return value

    def range(self) -> tuple[int, int, int]:
        """(zero point, lowest code, highest code) of the output, within the bounds of fused activations.

        Rounding is monotonic, so clamping codes to R(bound / s) + z is clamping the real value.
        """
        zero, low, high = self.output.zero_point, self.output.format.qmin, self.output.format.qmax
        rounding = getattr(self.unit.kernel.arithmetic, "rounding", "half_away") if self.unit.kernel else "half_away"
        scale = torch.tensor(self.output.scale, dtype=torch.float32)
        for node in self.unit.group.nodes[1:]:
            kind = self.partition.context.kind(node)
            bounds = (0, None) if kind == "relu" else (attribute(node, "min"), attribute(node, "max")) if kind == "clip" else (None, None)
            codes = [None if v is None else int(round_by(torch.tensor(float(v)) / scale, rounding)) + zero for v in bounds]
            low = low if codes[0] is None else min(max(low, codes[0]), high)
            high = high if codes[1] is None else max(min(high, codes[1]), low)
        return zero, low, high

    def constant_codes(self, producer: fx.Node, coding: Coding) -> Tensor:
        """The integer codes of a weight or bias."""
        site = coding.seat.module.site
        value = read_attr(self.partition.network, producer).detach()
        codes: Tensor = site.function.export(coding.qparams, value, site.scheme)[0]
        return codes


def write(job: Job) -> fx.Node:
    """The node that computes the unit's output codes.

    Raises:
        EmulationError: the arithmetic does not fit the unit's op.
    """
    kernel = job.unit.kernel
    assert kernel is not None
    kind, arithmetic = job.unit.kind, kernel.arithmetic
    match arithmetic:
        case Copy():
            return _copy(job)
        case SumFma(rounding) if kind == "add":
            return _sum_fma(job, rounding)
        case SumShifted() if kind == "add":
            return _sum_shifted(job, arithmetic)
        case SumScaled() if kind == "add":
            return _sum_scaled(job, arithmetic)
        case SoftmaxTable() if kind == "softmax":
            return _softmax(job)
        case Interior():
            return _interior(job, arithmetic)
        case AveragePool(rounding, reciprocals) if kind in ("avg_pool", "global_avg_pool"):
            return _average(job, rounding, reciprocals)
        case FloatMultiplier() if kind == "global_avg_pool":
            x = job.given(slots(job.root)[0][1])
            return job.emitter.call(
                integer.global_average_codes, x.node, x.coding.zero_point, x.coding.scale, job.output.scale, *job.range(),
                arithmetic.rounding, attribute(job.root, "keepdim"), name=job.name, result=True,
            )  # fmt: skip
        case FloatMultiplier() | FixedPoint() | Shift() | ThroughReal() if kind in _PRODUCTS:
            return _requantized(job, arithmetic)
    raise EmulationError(
        where=f"unit {job.unit.path!r}",
        found=f"{type(arithmetic).__name__} for an op of kind {kind!r}",
        wanted="an arithmetic that this kind of op can have",
        do="Bind another arithmetic in the target's kernels.",
    )


def _copy(job: Job) -> fx.Node:
    codes = job.given(slots(job.root)[0][1]).node
    source = slots(job.root)[0][1]
    arguments = fx.map_arg(job.root.args, lambda n: codes if n is source else job.inputs[n.name].node)
    return job.emitter.call(job.root.target, *arguments, name=job.name, result=True)  # type: ignore[arg-type]


def _two(job: Job) -> tuple[Codes, Codes]:
    a, b = (job.given(n) for _, n in slots(job.root))
    return a, b


def _sum_fma(job: Job, rounding: str) -> fx.Node:
    (a, b), (zero, low, high) = _two(job), job.range()
    return job.emitter.call(
        integer.add_codes, a.node, a.coding.scale, a.coding.zero_point, b.node, b.coding.scale, b.coding.zero_point,
        job.output.scale, zero, low, high, rounding, name=job.name, result=True,
    )  # fmt: skip


def _sum_shifted(job: Job, arithmetic: SumShifted) -> fx.Node:
    # TFLite: both inputs at twice the larger scale, shifted left; the sum is scaled back to the output.
    a, b = _two(job)
    twice = 2 * max(a.coding.scale, b.coding.scale)
    scales = [a.coding.scale / twice, b.coding.scale / twice, twice / (2.0**arithmetic.left_shift * job.output.scale)]
    pairs = [tuple(int(t) for t in fixed_point.fixed_multiplier(torch.tensor(s, dtype=torch.float64))) for s in scales]
    zeros = (a.coding.zero_point, b.coding.zero_point)
    return job.emitter.call(
        add_shifted, a.node, b.node, zeros, pairs, arithmetic.left_shift, list(arithmetic.steps), *job.range(), name=job.name, result=True
    )


def add_shifted(
    a: Tensor, b: Tensor, zeros: tuple[int, int], pairs: list[tuple[int, int]], left_shift: int, steps: list[str],
    zero_point: int, low: int, high: int,
) -> Tensor:  # fmt: skip
    """Codes of a + b in fixed point: see `specs.SumShifted`."""
    m = [(torch.tensor(p), torch.tensor(e)) for p, e in pairs]
    terms = [fixed_point.scale_fixed((t - z).long() << left_shift, *q, steps) for t, z, q in zip((a, b), zeros, m, strict=False)]
    return (fixed_point.scale_fixed(terms[0] + terms[1], *m[2], steps) + zero_point).clamp(low, high).float()


def _sum_scaled(job: Job, arithmetic: SumScaled) -> fx.Node:
    # XNNPACK: both multipliers on one shift, such that the larger one has all its bits.
    a, b = _two(job)
    ratios = [v.coding.scale / job.output.scale for v in (a, b)]
    shift = arithmetic.bits - math.frexp(max(ratios))[1]
    m = [round(Fraction(r) * Fraction(2) ** shift) for r in ratios]
    zeros = (a.coding.zero_point, b.coding.zero_point)
    return job.emitter.call(
        add_scaled, a.node, b.node, zeros, m, shift, arithmetic.rounding, *job.range(), name=job.name, result=True
    )


def add_scaled(
    a: Tensor, b: Tensor, zeros: tuple[int, int], m: list[int], shift: int, rounding: str, zero_point: int, low: int, high: int
) -> Tensor:
    """Codes of a + b by two integer multipliers and one shift: see `specs.SumScaled`."""
    total = (a - zeros[0]).long() * m[0] + (b - zeros[1]).long() * m[1]
    left = total << max(-shift, 0)
    return (fixed_point.shift_right(left, torch.tensor(max(shift, 0)), rounding) + zero_point).clamp(low, high).float()


def _softmax(job: Job) -> fx.Node:
    x = job.given(slots(job.root)[0][1])
    zero, _, high = job.range()
    return job.emitter.call(
        integer.softmax_codes, x.node, attribute(job.root, "dim"), x.coding.scale, job.output.scale, zero, high, name=job.name, result=True
    )


def _interior(job: Job, arithmetic: Interior) -> fx.Node:
    sources = {n.name: job.emitter.real(job.inputs[n.name], n.name) for _, n in slots(job.root) if n.name in job.inputs}
    dtype = getattr(torch, arithmetic.dtype)
    if dtype != torch.float32:
        sources = {k: job.emitter.call(torch.Tensor.to, v, dtype, name=f"{k}_wide") for k, v in sources.items()}
    if arithmetic.function == "window_sum":
        return _window_sum(job, arithmetic)
    function = integer.logistic if arithmetic.function == "mlas_logistic" else job.root.target
    constants = [n for _, n in slots(job.root) if n.name not in sources]
    for node in constants:
        sources[node.name] = job.emitter.constant(read_attr(job.partition.network, node).detach().clone(), str(node.target))
    arguments = fx.map_arg(job.root.args, lambda n: sources[n.name])
    real = job.emitter.call(function, *arguments, name=f"{job.name}_real")  # type: ignore[arg-type]
    zero, low, high = job.range()
    return job.emitter.call(
        quantize_interior, real, job.output.scale, zero, low, high, arithmetic.rounding, arithmetic.division, arithmetic.zero_point,
        name=job.name, result=True,
    )  # fmt: skip


def quantize_interior(
    real: Tensor, scale: float, zero_point: int, low: int, high: int, rounding: str, division: bool, place: str
) -> Tensor:
    """clamp(R(v/s) + z), or clamp(R(v/s + z)) with place "before": see `specs.Interior`."""
    if place == "after":
        return integer.quantize_codes(real, scale, zero_point, low, high, rounding, division)
    s = torch.tensor(scale, dtype=torch.float32)
    return round_by((real / s if division else real * (1 / s)) + zero_point, rounding, low).clamp(low, high)


def _window_sum(job: Job, arithmetic: Interior) -> fx.Node:
    x, (zero, low, high) = job.given(slots(job.root)[0][1]), job.range()
    if job.unit.kind == "adaptive_avg_pool":
        return job.emitter.call(
            adaptive_pool_codes, x.node, x.coding.scale, x.coding.zero_point, attribute(job.root, "output_size"), job.output.scale,
            zero, low, high, arithmetic.rounding, name=job.name, result=True,
        )  # fmt: skip
    rank = 1 if job.root.target is F.avg_pool1d else 2 if job.root.target is F.avg_pool2d else 3

    def each(name: str) -> list[int]:
        value = attribute(job.root, name)
        return [value] * rank if isinstance(value, int) else [int(v) for v in value]

    return job.emitter.call(
        average_pool_codes, x.node, x.coding.scale, x.coding.zero_point, each("kernel_size"), each("stride"), each("padding"),
        attribute(job.root, "ceil_mode"), attribute(job.root, "count_include_pad"), job.output.scale, zero, low, high,
        arithmetic.rounding, name=job.name, result=True,
    )  # fmt: skip


def average_pool_codes(
    codes: Tensor, scale_in: float, zero_in: int, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool,
    include_pad: bool, scale: float, zero_point: int, low: int, high: int, rounding: str,
) -> Tensor:  # fmt: skip
    """Codes of average pooling in float, zero point before rounding; a window over everything is a global average."""
    if list(codes.shape[2:]) == kernel and not any(padding) and codes.ndim == 4:
        return integer.global_average_codes(codes, zero_in, scale_in, scale, zero_point, low, high, rounding, True)
    real = integer.dequantize_codes(codes, scale_in, zero_in)
    mean = integer.average_pool_real(real, tuple(kernel), tuple(stride), tuple(padding), ceil_mode, include_pad)
    return quantize_interior(mean, scale, zero_point, low, high, rounding, True, "before")


def adaptive_pool_codes(
    codes: Tensor, scale_in: float, zero_in: int, size: Any, scale: float, zero_point: int, low: int, high: int, rounding: str
) -> Tensor:
    """Codes of average pooling to a size that divides the input's: windows that do not overlap."""
    spatial = list(codes.shape[2:])
    wanted = [size] * len(spatial) if isinstance(size, int) else [s if s is not None else n for s, n in zip(size, spatial, strict=True)]
    kernel = [n // s for n, s in zip(spatial, wanted, strict=True)]
    none = [0] * len(kernel)
    return average_pool_codes(codes, scale_in, zero_in, kernel, kernel, none, False, True, scale, zero_point, low, high, rounding)


def _average(job: Job, rounding: str, reciprocals: Any) -> fx.Node:
    # Integer average: equal scales in and out; sum, then a rounded division or the chip's reciprocal.
    x = job.given(slots(job.root)[0][1])
    kernel = None if job.unit.kind == "global_avg_pool" else attribute(job.root, "kernel_size")
    table = {tuple(k): (m, s) for k, m, s in reciprocals}
    arguments = (kernel, *(attribute(job.root, n) for n in ("stride", "padding"))) if kernel else (None, None, 0)
    return job.emitter.call(
        average_codes, x.node, x.coding.zero_point, *arguments, x.coding.scale / job.output.scale,
        [[*k, m, s] for k, (m, s) in table.items()], rounding, *job.range(), name=job.name, result=True,
    )  # fmt: skip


def average_codes(
    codes: Tensor, zero_in: int, kernel: Any, stride: Any, padding: Any, ratio: float, reciprocals: list[list[int]],
    rounding: str, zero_point: int, low: int, high: int,
) -> Tensor:  # fmt: skip
    """Codes of an integer average: R(sum * ratio / n), or R(sum * n * m / (n * 2^s) * ratio) with a reciprocal (m, s)."""
    window = list(codes.shape[-2:]) if kernel is None else [kernel] * 2 if isinstance(kernel, int) else list(kernel)
    total = F.avg_pool2d((codes - zero_in).double(), window, stride or window, padding, divisor_override=1)
    chosen = next((r for r in reciprocals if r[:2] == window), None)
    share = chosen[2] / 2.0 ** chosen[3] if chosen else 1 / (window[0] * window[1])
    exact = total * (ratio * share) if chosen else total * ratio / (window[0] * window[1])
    return (round_by(exact, rounding, low) + zero_point).clamp(low, high).float()


def _requantized(job: Job, arithmetic: FloatMultiplier | FixedPoint | Shift | ThroughReal) -> fx.Node:
    acc, product, bias = _accumulator(job, arithmetic)
    zero, low, high = job.range()
    scale = torch.tensor(job.output.scale, dtype=torch.float32)
    path = job.unit.path
    match arithmetic:
        case FloatMultiplier(rounding, place, fused):
            m = job.emitter.constant(product / scale, f"{path}.multiplier")
            if bias is not None or fused:
                offset = torch.zeros(()) if bias is None else bias / scale
                held = job.emitter.constant(offset, f"{path}.offset")
                return job.emitter.call(
                    requantize_offset, acc, m, held, zero, low, high, rounding, place, fused, name=job.name, result=True
                )
            return job.emitter.call(integer.requantize, acc, m, zero, low, high, rounding, place, name=job.name, result=True)
        case ThroughReal(rounding, fused, division):
            m = job.emitter.constant(product, f"{path}.multiplier")
            held = job.emitter.constant(torch.zeros(()) if bias is None else bias, f"{path}.offset")
            return job.emitter.call(
                through_real, acc, m, held, float(scale), zero, low, high, rounding, fused, division, name=job.name, result=True
            )
        case FixedPoint(steps, bits):
            m, e = fixed_point.fixed_multiplier(product.double() / scale.double(), bits)
            held = [job.emitter.constant(t, f"{path}.{n}") for t, n in ((m, "multiplier"), (e, "shift"))]
            return job.emitter.call(requantize_fixed, acc, *held, list(steps), zero, low, high, name=job.name, result=True)
        case Shift(rounding):
            k = -torch.log2(product.double() / scale.double())
            if not bool((k == k.round()).all()):
                do = "Calibrate with power-of-two scales (Scale(power_of_two=True))."
                raise EmulationError(where=f"unit {path!r}", found="scales that are no powers of two", wanted="powers of two", do=do)
            held = job.emitter.constant(k.long(), f"{path}.shift")
            return job.emitter.call(requantize_shift, acc, held, zero, low, high, rounding, name=job.name, result=True)


def requantize_offset(
    acc: Tensor, m: Tensor, offset: Tensor, zero_point: int, low: int, high: int, rounding: str, place: str, fused: bool
) -> Tensor:
    """clamp(R(acc*M + bias/s_y) + z): a float bias, fused with the product or not."""
    offset = offset + zero_point if place == "before" else offset
    value = integer.fma(acc.float(), m, offset) if fused else acc.float() * m + offset
    return (round_by(value, rounding, low) + (0 if place == "before" else zero_point)).clamp(low, high)


def through_real(
    acc: Tensor, m: Tensor, bias: Tensor, scale: float, zero_point: int, low: int, high: int, rounding: str, fused: bool, division: bool
) -> Tensor:
    """quantize(acc * s_x*s_w + bias): see `specs.ThroughReal`."""
    value = integer.fma(acc.float(), m, bias) if fused else acc.float() * m + bias
    return integer.quantize_codes(value, scale, zero_point, low, high, rounding, division)


def requantize_fixed(acc: Tensor, m: Tensor, e: Tensor, steps: list[str], zero_point: int, low: int, high: int) -> Tensor:
    """clamp(steps(acc * m * 2^-e) + z): see `specs.FixedPoint`."""
    return (fixed_point.scale_fixed(acc, m, e, steps) + zero_point).clamp(low, high).float()


def requantize_shift(acc: Tensor, shift: Tensor, zero_point: int, low: int, high: int, rounding: str) -> Tensor:
    """clamp(R(acc * 2^-k) + z): see `specs.Shift`; a negative k shifts left."""
    left = acc.long() << (-shift).clamp(min=0)
    return (fixed_point.shift_right(left, shift.clamp(min=0), rounding) + zero_point).clamp(low, high).float()


def _accumulator(job: Job, arithmetic: Any) -> tuple[fx.Node, Tensor, Tensor | None]:
    # (exact accumulator, float32(s_x*s_w) shaped for it, float bias or None)
    if job.unit.kind == "mul":
        a, b = _two(job)
        left, right = (job.emitter.call(operator.sub, v.node, v.coding.zero_point, name=f"{job.name}_{i}") for i, v in zip(("left", "right"), (a, b), strict=True))
        acc = job.emitter.call(operator.mul, left, right, name=f"{job.name}_product")
        return acc, a.coding.qparams.scale * b.coding.qparams.scale, None
    tensors = dict(slots(job.root))
    if "weight" not in tensors:
        a, b = _two(job)
        largest = math.prod(float(_largest(v.coding)) for v in (a, b))
        acc = job.emitter.call(
            integer.matmul_codes, a.node, a.coding.zero_point, b.node, b.coding.zero_point, largest, name=f"{job.name}_acc"
        )
        return acc, a.coding.qparams.scale * b.coding.qparams.scale, None
    return _weighted(job, tensors)


def _weighted(job: Job, tensors: dict[str, fx.Node]) -> tuple[fx.Node, Tensor, Tensor | None]:
    x, network = job.given(tensors["input"]), job.partition
    weight_coding = network.coding(tensors["weight"], job.root)
    assert weight_coding is not None
    weight = job.constant_codes(tensors["weight"], weight_coding).float()
    matmul = job.unit.kind == "matmul"
    weight = weight.T if matmul and weight.ndim == 2 else weight
    if weight.ndim != 2 and matmul:
        held = job.emitter.constant(weight.contiguous(), str(tensors["weight"].target))
        largest = float(_largest(x.coding) * weight.abs().max())
        acc = job.emitter.call(integer.matmul_codes, x.node, x.coding.zero_point, held, 0, largest, name=f"{job.name}_acc")
        return acc, x.coding.qparams.scale * weight_coding.qparams.scale, None
    largest, groups = _largest(x.coding), attribute(job.root, "groups") if job.unit.kind == "conv" else 1
    ends = integer.exact_chunks(weight, largest)
    if groups > 1:
        whole = float(weight.abs().double().flatten(1).sum(1).max()) * largest
        ends = [weight.shape[1]] if whole < integer.EXACT_FLOAT32 else []
    bias_node, real_bias, bias = tensors.get("bias"), None, None
    if bias_node is not None:
        coding = network.coding(bias_node, job.root)
        if coding is None:
            real_bias = read_attr(network.network, bias_node).detach().float()
        else:
            codes = job.constant_codes(bias_node, coding).double()
            bound = float(weight.abs().double().flatten(1).sum(1).max()) * largest + float(codes.abs().max())
            small = bound < integer.EXACT_FLOAT32
            bias = job.emitter.constant(codes.float() if small else codes, str(bias_node.target))
    held = job.emitter.constant(weight.contiguous(), str(tensors["weight"].target))
    product = x.coding.qparams.scale * weight_coding.qparams.scale.flatten()
    if weight_coding.qparams.scale.ndim == 0:
        product = product.reshape(())
    if job.unit.kind != "conv":
        acc = job.emitter.call(integer.linear_codes, x.node, x.coding.zero_point, held, bias, ends, name=f"{job.name}_acc")
        return acc, product, real_bias
    arguments = [attribute(job.root, n) for n in ("stride", "padding", "dilation")]
    acc = job.emitter.call(
        integer.conv_codes, x.node, x.coding.zero_point, held, bias, *arguments, groups, ends, name=f"{job.name}_acc"
    )
    shape = (-1, *[1] * (weight.ndim - 2))
    along = product.reshape(shape) if product.ndim else product
    return acc, along, None if real_bias is None else real_bias.reshape(shape)


def _largest(coding: Coding) -> int:
    return max(coding.format.qmax - coding.zero_point, coding.zero_point - coding.format.qmin)


__all__ = ["Job", "write"]
