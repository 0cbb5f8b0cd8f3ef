"""expf, cosf and sinf of the GNU C library: polynomials in float64, rounded to float32 at the end."""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 32
_EXP = tuple(float.fromhex(c) for c in ("0x1.c6af84b912394p-5", "0x1.ebfce50fac4f3p-3", "0x1.62e42ff0c52d6p-1"))
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_COS = tuple(float.fromhex(c) for c in ("0x1p0", "-0x1.ffffffd0c621cp-2", "0x1.55553e1068f19p-5", "-0x1.6c087e89a359dp-10",
                                            "0x1.99343027bf8c3p-16"))  # fmt: skip
_SIN = tuple(float.fromhex(c) for c in ("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13"))
_HALF_PI = tuple(float.fromhex(c) for c in ("0x1.921fb54p+0", "0x1.10b4611p-30", "0x1.4c4c6628b80dcp-59"))
"""pi / 2 in three parts; the first two have 28 bits, so that their products with 24 bits are exact."""


def expf(x: Tensor) -> Tensor:
    """Return e^x as 2^(k/32) p(r), with k / 32 + r = x log2(e); 0 and infinity beyond float32.

    Source: glibc, sysdeps/ieee754/flt-32/e_expf.c.

    >>> expf(torch.tensor([0.0, -torch.inf])).tolist()
    [1.0, 0.0]
    """
    z = x.double().clamp(-200.0, 200.0) * (_LOG2_E * _STEPS)
    k = z.round()
    r = (z - k) / _STEPS
    power = torch.exp2(k / _STEPS)
    c3, c2, c1 = _EXP
    return (((c3 * r + c2) * (r * r) + (c1 * r + 1)) * power).float()


def cosf(x: Tensor) -> Tensor:
    """Return cos(x) of |x| < 2^20: a polynomial of the distance to the nearest multiple of pi / 2.

    Source: glibc, sysdeps/ieee754/flt-32/s_cosf.c and s_sincosf.h.

    >>> cosf(torch.tensor([0.0])).tolist()
    [1.0]
    """
    return _quarter(x, 1)


def sinf(x: Tensor) -> Tensor:
    """Return sin(x) of |x| < 2^20: a polynomial of the distance to the nearest multiple of pi / 2.

    Source: glibc, sysdeps/ieee754/flt-32/s_sinf.c and s_sincosf.h.

    >>> sinf(torch.tensor([0.0])).tolist()
    [0.0]
    """
    return torch.where(x == 0, x.float(), _quarter(x, 0))  # the sign of a zero stays


def _quarter(x: Tensor, ahead: int) -> Tensor:
    # The sine of x + ahead pi / 2.
    value = x.double()
    n = (value / _HALF_PI[0]).round()
    r = value
    for part in _HALF_PI:
        r = r - n * part
    s = r * r
    quarter = (n.long() + ahead) % 4
    sine = (r + r * s * _SIN[0]) + r * s * s * (_SIN[1] + s * _SIN[2])
    cosine = ((_COS[0] + s * _COS[1]) + s * s * _COS[2]) + s * s * s * (_COS[3] + s * _COS[4])
    found = torch.where(quarter % 2 == 0, sine, cosine)
    return torch.where(quarter >= 2, -found, found).float()
