"""Rounding modes: exact functions from real to integer values, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qfunc.errors import SpecError


def half_even(x: Tensor) -> Tensor:
    """Round to nearest, ties to the even integer: IEEE 754 roundTiesToEven."""
    return torch.round(x)


def half_away(x: Tensor) -> Tensor:
    """Round to nearest, ties away from zero: C `round`.

    Computed as  trunc(x + copysign(h, x))  with the largest float h below 1/2: the sum of a tie and h rounds to the next
    integer, and the sum of no other value does.  Adding 1/2 instead would round 0.49999997 to 1.
    """
    below_half = 0.5 - torch.finfo(x.dtype).eps / 4
    return torch.copysign(torch.full((), below_half, dtype=x.dtype, device=x.device), x).add_(x).trunc_()


def half_to_zero(x: Tensor) -> Tensor:
    """Round to nearest, ties toward zero."""
    whole = torch.trunc(x)
    return whole + torch.where((x - whole).abs() > 0.5, torch.sign(x), 0.0)


def half_up(x: Tensor) -> Tensor:
    """Round to nearest, ties toward +infinity: an arithmetic shift after adding half."""
    whole = torch.floor(x)
    return whole + (x - whole >= 0.5).to(x.dtype)


def half_down(x: Tensor) -> Tensor:
    """Round to nearest, ties toward -infinity."""
    return -half_up(-x)


def negative_ceil_else_half_even(x: Tensor) -> Tensor:
    """Round to nearest; negative ties up, positive ties to even (Vitis AI's method 5)."""
    return torch.where(x < 0, half_up(x), torch.round(x))


def _stochastic(x: Tensor, noise: Tensor) -> Tensor:
    # floor(x + noise) by exact comparisons, because the sum could round up to the next integer.
    whole = torch.trunc(x)
    rest = x - whole
    return whole + (rest >= 1 - noise).to(x.dtype) - (rest < -noise).to(x.dtype)


_MODES: dict[str, Callable[[Tensor], Tensor]] = {
    "half_even": half_even,
    "half_away": half_away,
    "half_up": half_up,
    "half_down": half_down,
    "half_to_zero": half_to_zero,
    "floor": torch.floor,
    "trunc": torch.trunc,
    "negative_ceil_else_half_even": negative_ceil_else_half_even,
}


def round_by(x: Tensor, mode: str, low: int | Tensor = 0, noise: Tensor | None = None) -> Tensor:
    """Round x to integers by a named mode; keep the dtype.

    "half_even_on_index" and "half_up_on_index" round x - low and add low again (OpenVINO and GGUF round the index);
    "stochastic" is floor(x + noise) with noise uniform in [0, 1) and an exact sum: integers do not change.

    Args:
        x: Any shape, in codes; exact for every float.  NaN stays NaN, infinities stay infinite.
        mode: A name of `specs.ROUNDINGS`.
        low: The smallest value of x, for roundings on the index: the lowest code, minus the zero point if that
            is added after rounding.
        noise: In the shape of x, for "stochastic".
    Raises:
        SpecError: an unknown mode, or "stochastic" without noise.

    >>> x = torch.tensor([-1.5, -0.5, 0.5, 1.5])
    >>> [round_by(x, m).tolist() for m in ("half_even", "half_away", "half_up")]
    [[-2.0, -0.0, 0.0, 2.0], [-2.0, -1.0, 1.0, 2.0], [-1.0, 0.0, 1.0, 2.0]]
    """
    if mode in _MODES:
        return _MODES[mode](x)
    if mode == "half_even_on_index":
        return torch.round(x - low) + low
    if mode == "half_up_on_index":
        return half_up(x - low) + low
    if mode == "stochastic" and noise is not None:
        return _stochastic(x, noise)
    wanted = "noise for a stochastic mode" if mode == "stochastic" else "one of " + ", ".join(_MODES)
    do = "Pass noise, quantize with functions.Stochastic, or use another mode."
    raise SpecError(where="round_by", found=repr(mode), wanted=wanted, do=do)
