"""Choose the kernel that runs a fused group, or state why no integer kernel runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from qfunc.arithmetic import UnitSpec
from qfunc.errors import SpecError
from qfunc.graph.selectors import Context, matches
from qfunc.numerics.affine import implies_clamp
from qfunc.ops.definition import Trait
from qfunc.placement.encoding import Encoding, takes_float_bias
from qfunc.placement.fusion import FusedGroup, clamp_bounds
from qfunc.specs import (
    FLOAT32,
    ClampImplied,
    Format,
    FusesOnly,
    InputRatios,
    Int,
    Kernel,
    NoZeroPoint,
    OutputQParams,
    PerBlock,
    ProductRatio,
    SameQParams,
    Scheme,
)
from qfunc.specs.placement import Condition
from qfunc.specs.protocols import Arithmetic, FusingArithmetic, RunTimeArithmetic


class Operand(NamedTuple):
    """A tensor that a group reads or returns: its slot at a node, and its encoding, None if it has no qparams.

    `run_time` is the scheme of a tensor whose qparams are computed at run time.
    """

    node: fx.Node
    slot: str
    encoding: Encoding | None
    run_time: Scheme | None = None


def integer_kernel(
    group: FusedGroup,
    operands: Sequence[Operand],
    kernels: Sequence[Kernel],
    context: Context,
    unit: Callable[[Kernel], UnitSpec],
) -> tuple[Kernel | None, str]:
    """Return the first integer kernel that computes a group, or None and the reason why none does.

    Args:
        group: The group.
        operands: Its inputs, weights and biases, and its output.
        kernels: The kernels of a target.
        context: The graph.
        unit: The unit as an arithmetic sees it.
    """
    integer = [k for k in kernels if not k.in_float]
    missing = [o.slot for o in operands if o.encoding is None and o.slot != "bias"]
    no_qparams = f"its {missing[0]} carries no qparams" if missing else ""
    if missing and not any(_takes_real(k, missing) for k in integer):
        return None, no_qparams
    encoded = [(o.slot, o.encoding) for o in operands if o.encoding is not None]
    by_channel = [slot for slot, encoding in encoded if encoding.quantizer.module.site.by_channel]
    if by_channel:
        return None, f"its {by_channel[0]} has one scale per channel, which no integer kernel supports"
    weights = [(o.encoding, o.node) for o in operands if o.slot == "weight"]
    by_outputs = all(weight is None or weight.of_outputs(context.channel_axis(node)) for weight, node in weights)
    if not by_outputs and not any(isinstance(k.arithmetic, RunTimeArithmetic) for k in integer):
        return None, "its weight has a scale an input channel, which no integer kernel takes"
    float_bias = any(o.slot == "bias" and o.encoding is None for o in operands)
    reason = "the target has no integer kernel for it"
    for kernel in integer:
        if not matches(kernel.unit, group.root, context):
            continue
        conditions = (*kernel.integer_if, *(group.fusion.integer_if if group.fusion and len(group.nodes) > 1 else ()))
        unmet = [c for c in conditions if not _holds(c, group, encoded, missing, context)]
        if not _takes_real(kernel, missing):
            reason = no_qparams
        elif unmet:
            reason = f"{type(unmet[0]).__name__} does not hold"
        elif not _takes(kernel, encoded):
            reason = "the kernel does not take its formats"
        elif float_bias and not takes_float_bias(kernel.arithmetic):
            reason = "its bias carries no qparams"
        elif not by_outputs and not isinstance(kernel.arithmetic, RunTimeArithmetic):
            reason = "its weight has several scales an output channel, which its integer kernel does not take"
        elif isinstance(kernel.arithmetic, Arithmetic) and (refusal := _refusal(kernel.arithmetic, unit(kernel))):
            reason = refusal
        elif (extra := _not_computed(group, kernel, context)) is not None:
            reason = f"its integer kernel does not compute {context.kind(extra)}, which is fused with it"
        else:
            return kernel, ""
    return None, reason


def _refusal(arithmetic: Arithmetic, unit: UnitSpec) -> str:
    reason: Any = arithmetic.refuses(unit)
    if not isinstance(reason, str):
        where, found = f"unit {unit.path!r}, {type(arithmetic).__name__}.refuses", f"a result of type {type(reason).__name__}"
        raise SpecError(where=where, found=found, wanted='a reason, or ""', do="Return a text.")
    return reason


def refused_formats(
    group: FusedGroup, operands: Sequence[Operand], kernels: Sequence[Kernel], context: Context
) -> tuple[tuple[str, Format, tuple[Format, ...]], ...]:
    """Return the slots in formats that the nearest kernel does not take, each with its format and the kernel's.

    The result is empty if some kernel takes all formats, or if no integer kernel computes the group in any formats.
    """
    missing = [o.slot for o in operands if o.encoding is None and o.slot != "bias"]
    encoded = [(o.slot, o.encoding) for o in operands if o.encoding is not None]
    refused = []
    for kernel in kernels if encoded else ():
        if not kernel.in_float and matches(kernel.unit, group.root, context) and _takes_real(kernel, missing):
            taken = dict(kernel.formats)
            slots = {s: (s, _format(e), taken[s]) for s, e in encoded if not _takes(kernel, [(s, e)])}
            refused.append(tuple(slots.values()))
    return min(refused, key=len, default=())


def float_kernel(
    group: FusedGroup,
    operands: Sequence[Operand],
    kernels: Sequence[Kernel],
    context: Context,
    unit: Callable[[Kernel], UnitSpec],
) -> Kernel | None:
    """Return the first kernel that computes a whole group in float32, or None."""
    matching = (k for k in kernels if k.in_float and matches(k.unit, group.root, context))
    willing = (k for k in matching if not isinstance(k.arithmetic, Arithmetic) or not _refusal(k.arithmetic, unit(k)))
    fitting = (k for k in willing if _takes_weight(k, operands))
    return next((k for k in fitting if _not_computed(group, k, context) is None), None)


def _takes_weight(kernel: Kernel, operands: Sequence[Operand]) -> bool:
    wanted = dict(kernel.formats).get("weight", ())
    found = [o.encoding for o in operands if o.slot == "weight"] if wanted else []
    if wanted == (FLOAT32,):
        return not any(found)
    in_blocks = (e is not None and isinstance(e.quantizer.module.site.scheme.scale.shared, PerBlock) for e in found)
    return all(in_blocks) and all(e is not None and _format(e) in wanted for e in found)


def clamps_nothing(node: fx.Node, encoding: Encoding, context: Context) -> bool:
    """Return True if a clamp's bounds lie at or beyond the ends of the codes, so that quantizing has the same effect.

    This is also True for an op that is not a clamp.
    """
    bounds, ends = clamp_bounds(context, node), (encoding.format.qmin, encoding.format.qmax)
    return bounds is None or implies_clamp(*bounds, encoding.qparams.scale, encoding.qparams.zero_point, ends)


def _not_computed(group: FusedGroup, kernel: Kernel, context: Context) -> fx.Node | None:
    # Kernels compute their root.  Of the ops fused with it they compute clamps, as bounds of the codes, and the kinds that
    # their arithmetic declares.
    fuses = kernel.arithmetic.fuses if isinstance(kernel.arithmetic, FusingArithmetic) else ()
    for node in group.nodes[1:]:
        if context.kind(node) not in fuses and not context.has(node, Trait.CLAMPS):
            return node
    return None


def _holds(
    condition: Condition,
    group: FusedGroup,
    encoded: Sequence[tuple[str, Encoding]],
    missing: Sequence[str],
    context: Context,
) -> bool:
    if isinstance(condition, FusesOnly):
        return all(context.kind(node) in condition.kinds for node in group.nodes[1:])
    if any(slot != "output" for slot in missing):
        return False
    if isinstance(condition, NoZeroPoint):
        inputs = [e for slot, e in encoded if slot in ("input", "weight")]
        return condition.operand < len(inputs) and not bool(inputs[condition.operand].qparams.zero_point.any())
    if missing:  # a real output is clamped by itself, not by its codes
        return isinstance(condition, ClampImplied)
    if isinstance(condition, SameQParams):
        chosen = [e for slot, e in encoded if slot in condition.slots]
        return all(chosen[0].same(e) for e in chosen[1:])
    output = next(e for slot, e in encoded if slot == "output")
    if isinstance(condition, OutputQParams):
        scale, zero = output.qparams.scale.float(), output.qparams.zero_point
        return bool((scale == torch.tensor(condition.scale)).all() and (zero == condition.zero_point).all())
    if isinstance(condition, InputRatios | ProductRatio):
        scales = [e.qparams.scale.float().max() for slot, e in encoded if slot in ("input", "weight")]
        factors = scales if isinstance(condition, InputRatios) else [torch.stack(scales).prod()]
        return all(condition.least <= float(f / output.qparams.scale.float()) < condition.below for f in factors)
    return all(clamps_nothing(node, output, context) for node in group.nodes[1:])


def _takes(kernel: Kernel, encoded: Sequence[tuple[str, Encoding]]) -> bool:
    wanted: dict[str, tuple[Format, ...]] = dict(kernel.formats)
    return all(slot not in wanted or _fits(_format(e), wanted[slot], slot == "weight") for slot, e in encoded)


def _format(encoding: Encoding) -> Format:
    # Of weights in blocks also floats, which `Encoding.format` has not.
    return encoding.quantizer.module.site.scheme.format


def _takes_real(kernel: Kernel, missing: Sequence[str]) -> bool:
    wanted = dict(kernel.formats)
    return all(FLOAT32 in wanted.get(slot, ()) for slot in missing)


def _fits(fmt: Format, wanted: tuple[Format, ...], offline: bool) -> bool:
    # Weights are quantized offline, so narrower integers fit; the hardware clamps activations to its own.
    if offline and isinstance(fmt, Int):
        return any(isinstance(w, Int) and w.signed == fmt.signed and w.qmin <= fmt.qmin and fmt.qmax <= w.qmax for w in wanted)
    return fmt in wanted
