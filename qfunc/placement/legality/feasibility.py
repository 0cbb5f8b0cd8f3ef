"""Schemes that are impossible: static scales in a number known only at run time, and codes that no file format stores."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.selectors import constant_shape
from qfunc.numerics.qparams import qparams_shape
from qfunc.ops.definition import Trait
from qfunc.ops.node import kind_of, op_of
from qfunc.placement.encoding import run_time_inputs
from qfunc.placement.legality.stored_schemes import holds_own_codes
from qfunc.quantizers.site import Site
from qfunc.specs import Int, Log, PerBlock, PerChannel, PerTensor, PerToken, Target
from qfunc.specs.file_format import format_of
from qfunc.specs.protocols import Lowering, SearchingFunction


def infeasibility(site: Site, tensor: fx.Node, target: Target) -> Iterator[tuple[str, str, str]]:
    """Yield (found, wanted, do) for a tensor with a scheme that is impossible, on any target or on this one.

    >>> from qfunc import estimators, functions, targets
    >>> from qfunc.specs import Scale, Scheme
    >>> def site(scale):
    ...     return Site("x", "fc", "input", Scheme(Int(8), scale), 0, estimators.MinMax(), functions.Fixed())
    >>> x = fx.Graph().placeholder("x")
    >>> [found for found, *_ in infeasibility(site(Scale(PerToken())), x, targets.qdq)]
    ['static scales PerToken()']
    >>> list(infeasibility(site(Scale()), x, targets.qdq))
    []
    """
    errors = list(_constant_errors(site, tensor) if site.constant else _activation_errors(site))
    yield from errors
    recurrent = site.dynamic and isinstance(site.scheme.scale.shared, PerTensor) and _feeds_recurrent(tensor)
    if not errors and target.lowering is not None and not can_be_written(site, target, recurrent):
        scales = "dynamic scales" if site.dynamic else f"scales {site.scheme.scale.shared!r}"
        if recurrent and site.scheme in run_time_inputs(target):
            wanted = "a lowering whose files quantize the input and the state of a recurrent layer at run time"
            do = f"Keep the lowering of the target, or leave the layer in float: edit.skip(edit.name({site.op!r}))."
            yield f"{target.lowering!r}", wanted, do
            return
        wanted = "a scheme that files store: integers with one static scale per tensor or channel, or logarithms per tensor"
        do = "Edit the scheme, or simulate it without a file: attrs.evolve(target, lowering=None)."
        yield f"{site.scheme.format!r} with {scales}", wanted, do
    elif not errors and target.lowering is not None and site.constant and (bits := _widest(site, target.lowering)):
        do = "Edit the rule, or simulate it without a file: attrs.evolve(target, lowering=None)."
        yield repr(site.scheme.format), f"at most {bits} bits: DequantizeLinear has no wider codes (ONNX operators)", do


def _feeds_recurrent(tensor: fx.Node) -> bool:
    # Whether a recurrent layer reads a tensor, directly or after ops that move its values and dropouts.
    pending, seen = [tensor], set[fx.Node]()
    while pending:
        for reader in pending.pop().users:
            op = op_of(reader)
            traits = Trait(0) if op is None else op.traits
            if Trait.RECURRENT in traits:
                return True
            if reader not in seen and (Trait.MOVES_VALUES in traits or kind_of(reader) == "dropout"):
                seen.add(reader)
                pending.append(reader)
    return False


def _constant_errors(site: Site, tensor: fx.Node) -> Iterator[tuple[str, str, str]]:
    if site.scheme.searched and not isinstance(site.function, SearchingFunction):
        wanted = "a function that finds the minimums and the integers of the scales of such a scheme"
        yield repr(site.function), wanted, "Use functions.GgmlBlocks(), or another scheme."
    try:
        qparams_shape(site.scheme, constant_shape(tensor) or ())
    except SpecError as e:
        yield e.found, e.wanted, f"{e.do.removesuffix('.')}, or leave the op in float by edit.skip."


def _activation_errors(site: Site) -> Iterator[tuple[str, str, str]]:
    shared = site.scheme.scale.shared
    if isinstance(shared, PerChannel) and shared.axis == "channel":
        wanted = "an axis, as in PerChannel(1), because only weights have output channels"
        yield f"scales {shared!r} of an activation", wanted, "Name the axis."
    elif site.scheme.searched:
        wanted = "a scheme without minimums and integers of scales, which only weights have"
        yield "minimums" if site.scheme.minimum else "integers of scales", wanted, "Edit the rule."
    elif isinstance(shared, PerToken | PerBlock) and not site.dynamic:
        wanted = "dynamic scales, Scale(..., dynamic=True), because their number is only known at run time"
        yield f"static scales {shared!r}", wanted, "Use edit.activations(granularity=PerTensor()), or edit the rule."


def _widest(site: Site, lowering: Lowering) -> int:
    """Return the most bits that the files of a lowering have for a constant, or 0 if they hold this one.

    Source: ONNX operator specification, DequantizeLinear-21: its widest codes are int32.
    """
    bits = format_of(lowering).bias_bits if site.slot == "bias" else 32
    return bits if isinstance(site.scheme.format, Int) and site.scheme.format.bits > bits else 0


def can_be_written(site: Site, target: Target, recurrent: bool = False) -> bool:
    """Return True if a file can store the codes of a tensor, or, for a kernel of the target, say that it computes them.

    `recurrent` states whether a recurrent layer reads the tensor.
    """
    shared = site.scheme.scale.shared
    if holds_own_codes(target.lowering, site.scheme, site.constant):
        return True
    match site.scheme.format:
        case Int():
            if site.dynamic and isinstance(shared, PerTensor):
                return recurrent and format_of(target.lowering).recurrent and site.scheme in run_time_inputs(target)
            if site.dynamic or (isinstance(shared, PerBlock) and site.constant):
                kernels = run_time_inputs(target) if format_of(target.lowering).blocks else []
                return any(site.constant or scheme == site.scheme for scheme in kernels)
            return isinstance(shared, PerTensor | PerChannel)
        case Log():
            return isinstance(shared, PerTensor) and not site.dynamic
    return False
