"""Laws of a quantize function's values: each returns a description of the violation, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics import minifloat
from qfunc.numerics.affine import dequantize
from qfunc.numerics.qparams import Affine, block_size, of_tensor, qparams_shape, spread
from qfunc.specs import Float, Int, Levels, Log, PerBlock, PerChannel, PerTensor, Scheme
from qfunc.specs.protocols import ScalableFunction
from qfunc.testing.laws.function_cases import SHAPE, FunctionCase, differ, each, unlike


def _codes(case: FunctionCase) -> str | None:
    params, fmt = case.params(), case.scheme.format
    codes, qparams = case.function.export(params, case.x, case.scheme)
    low, high = _code_range(case.scheme)
    good = (codes >= low) & (codes <= high)
    good &= codes == (minifloat.nearest(codes, fmt) if isinstance(fmt, Float) else torch.round(codes))
    if codes.shape != case.x.shape or not good.all():
        return (
            unlike(case.x, codes, good, f"a code in [{low:g}, {high:g}]")
            if codes.shape == case.x.shape
            else "codes of another shape"
        )
    if not isinstance(qparams, Affine) or qparams.scale.dtype != torch.float32:
        return f"export gives {type(qparams).__name__} of {getattr(qparams, 'scale', None)}, not Affine in float32"
    shape = qparams_shape(case.scheme, SHAPE)
    if tuple(qparams.scale.shape) != shape or tuple(qparams.zero_point.shape) != shape:
        return f"qparams of shape {tuple(qparams.scale.shape)} and {tuple(qparams.zero_point.shape)}, wanted {shape}"
    return None if qparams.scale.isfinite().all() and (qparams.scale != 0).all() else f"scale {qparams.scale}"


def _code_range(scheme: Scheme) -> tuple[float, float]:
    match scheme.format:
        case Int() as fmt:
            return fmt.qmin, fmt.qmax
        case Float() as fmt:
            return -minifloat.largest(fmt), minifloat.largest(fmt)
        case Levels() as fmt:
            return 0, len(fmt.values) - 1
        case Log() as fmt:
            return 0, (2 << fmt.magnitude_bits) - 1


def _export(case: FunctionCase) -> str | None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x = case.x.to(dtype)
        params = case.params(x)
        if found := _exported(case, params, x):
            return f"{dtype}, {found}"
    return None


def _exported(case: FunctionCase, params: Any, x: Tensor) -> str | None:
    value = case.apply(params, x.requires_grad_(False))
    codes, qparams = case.function.export(params, x, case.scheme)
    wanted = dequantize(codes, qparams, case.scheme).to(x.dtype)
    if found := differ(x, value, wanted, "dequantize(*export) gives"):
        return found
    with torch.no_grad():
        return differ(x, case.apply(params, x), wanted, "without gradients dequantize(*export) gives")


def _idempotent(case: FunctionCase) -> str | None:
    params = case.params()
    value = case.apply(params, case.x).detach()
    exported = each(Tensor.detach, case.function.export(params, case.x, case.scheme)[1])
    again = case.apply(case.params(value, exported), value)
    return differ(value, again, value, "apply(apply(x)) should be")


def _monotone(case: FunctionCase) -> str | None:
    size = block_size(case.scheme, SHAPE)[-1]
    whole = isinstance(case.scheme.scale.shared, PerTensor)
    x = case.x.flatten().sort().values.reshape(SHAPE) if whole else case.x.sort(-1).values
    y = case.apply(case.params(x), x)
    rows, xs = (t.reshape(1, -1) if whole else t.reshape(-1, size) for t in (y, x))
    falls = rows.diff(dim=1) < 0
    if not falls.any():
        return None
    i, j = (int(k) for k in falls.nonzero()[0])
    return f"x = {xs[i, j]} gives {rows[i, j]}, but the larger {xs[i, j + 1]} gives {rows[i, j + 1]}"


def _zero(case: FunctionCase) -> str | None:
    fmt = case.scheme.format
    if isinstance(fmt, Levels) and 0.0 not in fmt.values:
        return None
    x = torch.where(torch.arange(case.x.numel()).reshape(SHAPE) % 3 == 1, torch.zeros_like(case.x), case.x)
    y = case.apply(case.params(x), x)
    return unlike(x, y, (x != 0) | (y == 0), "0")


def _dtype(case: FunctionCase) -> str | None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x = case.x.to(dtype)
        params = case.params(x)
        for name, f in (("apply", case.apply), ("relax", case.trained)):
            value = f(params, x)
            if value.dtype != dtype or value.shape != x.shape:
                return f"{name} of {dtype} {tuple(x.shape)} gives {value.dtype} {tuple(value.shape)}"
        half = dtype in (torch.bfloat16, torch.float16)
        if half and (found := differ(x, case.apply(params, x), case.apply(params, x.float()).to(dtype), "in float32")):
            return f"{dtype}, {found}"
    return None


def _channels(case: FunctionCase) -> str | None:
    if not isinstance(case.scheme.scale.shared, PerChannel):
        return None
    one = evolve(case.scheme, scale=evolve(case.scheme.scale, shared=PerTensor()))
    rows = []
    for index, x in enumerate(case.x):
        qparams = each(lambda q: q[index].reshape(()), case.qparams)  # noqa: B023  (called at once)
        rows.append(case.function.apply(case.params(x, qparams, one), x, one))
    return differ(case.x, case.apply(case.params(), case.x), torch.stack(rows), "the loop over channels gives")


def _permutation(case: FunctionCase) -> str | None:
    flipped = each(lambda q: q.flip(0) if q.ndim else q, case.qparams)
    x = case.x.flip(0)
    found = case.apply(case.params(x, flipped), x)
    return differ(x, found, case.apply(case.params(), case.x).flip(0), "the reversed result is")


def _scaled(case: FunctionCase) -> str | None:
    # Powers of two, one for each scale, multiply without rounding.
    scale = case.qparams.scale
    factor = torch.exp2(torch.arange(scale.numel()).reshape(scale.shape) % 5 - 2)
    known = case.function.scaled(case.params(), factor) if isinstance(case.function, ScalableFunction) else None
    if known is None or case.scheme.scale.within is not None:
        return None
    times = spread(factor, case.x, case.scheme)
    wanted = case.apply(case.params(), case.x) * times
    return differ(case.x, case.apply(known, case.x * times), wanted, "factor * apply(x) is")


def _extremes(case: FunctionCase) -> str | None:
    top = case.x.abs().amax()
    inputs = {"constant": torch.full(SHAPE, 2.5), "huge": case.x / top * 1e37, "denormal": case.x / top * 1e-40}
    if not isinstance(case.scheme.scale.shared, PerBlock):
        inputs |= {"empty": case.x[:0], "one element": case.x[:1, :1, :1]}
    for name, x in inputs.items():
        qparams = of_tensor(x, case.scheme)
        try:
            params = case.params(x, qparams)
        except SpecError:
            continue  # a SpecError is allowed
        value = case.apply(params, x)
        if value.shape != x.shape or not value.isfinite().all():
            return f"{name} x of shape {tuple(x.shape)} gives {value}"
        if found := _exported(case, params, x):
            return f"{name}, {found}"
    return None


def _nan(case: FunctionCase) -> str | None:
    params, x = case.params(), case.x.clone()
    x[1, 2, 3] = torch.nan
    value = case.apply(params, x)
    return differ(x, value, case.apply(params, case.x).masked_fill(x.isnan(), torch.nan), "wanted")


def _infinity(case: FunctionCase) -> str | None:
    params, x = case.params(), case.x.clone()
    x[1, 2, 3], x[2, 0, 1] = torch.inf, -torch.inf
    return differ(x, case.apply(params, x), case.apply(params, x.clamp(-3e38, 3e38)), "+-3e38 give")


VALUES: dict[str, Callable[[FunctionCase], str | None]] = {
    "codes": _codes,
    "export": _export,
    "idempotent": _idempotent,
    "monotone": _monotone,
    "zero": _zero,
    "dtype": _dtype,
    "channels": _channels,
    "permutation": _permutation,
    "scaled": _scaled,
    "extremes": _extremes,
    "nan": _nan,
    "infinity": _infinity,
}
