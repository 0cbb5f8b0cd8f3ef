"""Curves in float32, as XNNPACK computes them on processors with fused multiply-adds.

Most are quotients of two polynomials.  Operands and results below 2^-126 are 0 there, for which `specs.FloatKernel` stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma, horner
from qfunc.numerics.sums.dynamic import flushed

_ROUND = 1.5 * 2.0**23  # adding and subtracting it rounds to an integer
_EXP = (5.5380910635e-03, 7.2068706155e-02, 4.1594290733e-01, 1.0), (2.3986088112e-02, -2.7720427513e-01, 1.0)
_LOG = (1.824996918440e-01, 1.0, 1.0), (0.049584995955, 0.599170029163, 1.5, 1.0)
_SIN = (3.2340581529e-03, -1.3314664364e-01, 1.0), (4.8770775902e-04, 3.3519912511e-02, 1.0)
_TANH = (
    (1.4248920266e-08, 2.1235626264e-05, 3.5330520477e-03, 1.3412411511e-01, 1.0),
    (8.1365948290e-07, 3.3472978976e-04, 2.6018999517e-02, 4.6745735407e-01, 1.0),
)
_ERF = (
    (4.5835321316e-08, 1.2609783880e-05, 3.2973114867e-04, 9.3065137044e-03, 6.6972173750e-02, 7.9788452387e-01),
    (1.1988805682e-06, 7.2267655923e-05, 1.8622842617e-03, 2.8431978077e-02, 2.5060352683e-01, 1.0),
)
_LARGEST_TANH, _LARGEST_ERF = 7.9807181358, 5.1638283730
_PI, _HALF_PI = 3.1415927, 1.5707963705
_TWO_PI = (6.28125, 1.9353072e-3)
"""2 pi in two parts, the first of 11 bits."""
_SQRT2, _SQRT_HALF = 1.4142134190, 7.0710688829e-01
"""Their product in float32 is 1."""
_TINY = torch.finfo(torch.float32).tiny


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _quotient(parts: tuple[tuple[float, ...], tuple[float, ...]], x: Tensor, by: Tensor | None = None) -> Tensor:
    above = horner(parts[0], x)
    return (above if by is None else by * above) / horner(parts[1], x)


def exp(input: Tensor) -> Tensor:
    """Return e^x as 2^n p(r) / q(r), with n + r = x log2(e), the product rounded and within [-127, 128]; 0 of no number.

    Source: XNNPACK, f32-vexp, rational_3_2_div; measured on executorch 1.5.1.

    >>> exp(torch.tensor([0.0, -100.0])).tolist()
    [1.0, 0.0]
    """
    z = (input.float() * _number(1.44269504089)).clamp(-127.0, 128.0).nan_to_num(-127.0)
    n = (z + _ROUND) - _ROUND
    power = torch.where(n < -126, 0.0, torch.exp2(n.double())).float()
    return flushed(power * _quotient(_EXP, z - n))


def log(input: Tensor) -> Tensor:
    """Return log(x) as e ln(2) + v p(v) / q(v), with 2^e (1 + v) = x and 1 + v in [sqrt(1/2), sqrt(2)).

    Source: XNNPACK, f32-vlog, rational_3_3_div; measured on executorch 1.5.1.

    >>> log(torch.tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    x = flushed(input.float()) * _number(_SQRT2)
    mantissa, exponent = torch.frexp(x)
    v = (2 * mantissa) * _number(_SQRT_HALF) - 1
    found = fma((exponent - 1).float(), _number(math.log(2)), _quotient(_LOG, v, v))
    return torch.where(x > 0, torch.where(x.isinf(), x, found), torch.where(x == 0, -torch.inf, torch.nan))


def sqrt(input: Tensor) -> Tensor:
    """Return (s + x / max(s, 2^-126)) / 2 with s = e^(log(x) / 2), as the file has it: see `targets/executorch/roots.py`.

    >>> sqrt(torch.tensor([0.0, 9.0])).tolist()
    [0.0, 3.0]
    """
    x = flushed(input.float())
    s = exp(flushed(log(x) * 0.5))
    return (s + flushed(x / s.clamp(min=_TINY))) * 0.5


def rsqrt(input: Tensor) -> Tensor:
    """Return 1 / sqrt(x), with that square root.

    >>> rsqrt(torch.tensor([4.0])).tolist()
    [0.5]
    """
    return 1 / sqrt(input)


def sin(input: Tensor) -> Tensor:
    """Return the sine: x less a multiple of 2 pi, folded to [-pi/2, pi/2], times a quotient of polynomials of its square.

    Source: XNNPACK, f32-vsin, rational_5_4_div; measured on executorch 1.5.1.

    >>> sin(torch.tensor([0.0])).tolist()
    [0.0]
    """
    return _folded(_turned(input.float()))


def cos(input: Tensor) -> Tensor:
    """Return the cosine: the sine of pi/2 - x.

    Source: XNNPACK, f32-vcos, rational_5_4_div; measured on executorch 1.5.1.

    >>> cos(torch.tensor([0.0])).tolist()
    [1.0]
    """
    return _folded(_number(_HALF_PI) - _turned(input.float()))


def _turned(x: Tensor) -> Tensor:
    n = -(x * _number(0.15915494)).round()
    for part in _TWO_PI:
        x = fma(n, _number(part), x)
    return x


def _folded(x: Tensor) -> Tensor:
    pi = _number(_PI)
    x = torch.minimum(x, pi - x)
    x = torch.maximum(x, -pi - x)
    x = torch.minimum(x, pi - x)
    return _quotient(_SIN, x * x, x)


def tanh(input: Tensor) -> Tensor:
    """Return tanh(x) as x p(x^2) / q(x^2), with |x| up to 7.98.

    Source: XNNPACK, f32-vtanh, rational_9_8_div; measured on executorch 1.5.1.

    >>> tanh(torch.tensor([0.0, 20.0])).tolist()
    [0.0, 1.0]
    """
    x = input.float().clamp(-_number(_LARGEST_TANH), _number(_LARGEST_TANH))
    return _quotient(_TANH, x * x, x)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return (x / 2) (1 + erf(x / sqrt(2))), the error function as x p(x^2) / q(x^2), or PyTorch's approximation by tanh.

    Source: XNNPACK, f32-vgelu, rational_12_10_div; measured on executorch 1.5.1.

    >>> gelu(torch.tensor([0.0, 10.0])).tolist()
    [0.0, 10.0]
    """
    x = flushed(input.float())
    if approximate == "tanh":
        cube = flushed(flushed(x * x) * x)
        inner = flushed((x + flushed(cube * _number(0.044715))) * _number(math.sqrt(2 / math.pi)))
        return flushed(x * 0.5) * (tanh(inner) + 1)
    near = x.clamp(-_number(_LARGEST_ERF), _number(_LARGEST_ERF))
    return flushed(x * 0.5) * (_quotient(_ERF, near * near, near) + 1)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "exp": exp, "log": log, "sqrt": sqrt, "rsqrt": rsqrt, "sin": sin, "cos": cos, "tanh": tanh, "gelu": gelu,
}  # fmt: skip
"""The function of each kind of op."""
