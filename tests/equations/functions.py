"""The table's rows of quantize functions: value and gradients of each, element by element, from the paper's equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qfunc import functions as f
from qfunc.numerics import Affine
from qfunc.specs import Int, Log, Scheme
from qfunc.specs.formats import GGUF_Q4_1
from tests.equations.blocks import of_ends
from tests.equations.row import S4, U4, Row
from tests.functions.test_adaround import by_hand as ada
from tests.functions.test_learned_gradients import slope, soft
from tests.functions.test_nnie_log import by_hand as nnie
from tests.functions.test_with_gradient import held, slopes

STEP = 0.25  # exact in float32, so that ties and bounds are exact
X = torch.tensor([k / 32 for k in range(-90, 180)], dtype=torch.float64)
UP = torch.linspace(-1, 1, len(X), dtype=torch.float64)  # the gradient that comes from above

One = tuple[float, float, dict[str, float]]
"""(x_hat, d x_hat / d x, {parameter: d x_hat / d parameter}) of one element."""


def affine(zero: float) -> Affine:
    """The qparams of every row."""
    return Affine(torch.tensor(STEP), torch.tensor(zero))


def compare(
    function: Any, scheme: Scheme, equation: Callable[[float], One], params: Any = None, noise: Tensor | None = None
) -> int:
    """Value, gradient to x and to each learned parameter against the equation."""
    zero = 0.0 if scheme.zero_point is None else 5.0
    params = function.init(affine(zero), X, scheme) if params is None else params
    names = function.learned(scheme) if hasattr(function, "learned") else ()
    params = params._replace(**{n: getattr(params, n).clone().requires_grad_() for n in names if n in params._fields})
    x = X.clone().requires_grad_()
    value = function.apply(params, x, scheme) if noise is None else function.relax(params, x, scheme, noise)
    (value * UP).sum().backward()
    wanted = [equation(v) for v in X.tolist()]
    close(value.detach(), [w[0] for w in wanted])
    assert x.grad is not None
    close(x.grad, [up * w[1] for up, w in zip(UP.tolist(), wanted, strict=True)])
    for name in names:
        total = math.fsum(up * w[2][name] for up, w in zip(UP.tolist(), wanted, strict=True))
        # The gradient of a float32 parameter is rounded to float32; 2^-20 covers the equation's own float32 constants.
        assert abs(getattr(params, name).grad.item() - total) <= 2.0**-20 * max(1, abs(total)), name
    return 2 * len(X) + len(names)


def close(found: Tensor, wanted: list[float]) -> None:
    """Equal but for float32 parameters: 2^-22 of the largest number."""
    want = torch.tensor(wanted, dtype=torch.float64)
    assert (found - want).abs().max() <= 2.0**-22 * want.abs().max().clamp(min=1), (found - want).abs().max()


def fmt(scheme: Scheme) -> tuple[Int, int]:
    """The codes and the zero point of a row's scheme."""
    assert isinstance(scheme.format, Int)
    return scheme.format, 0 if scheme.zero_point is None else 5


def code(x: float, scheme: Scheme) -> tuple[float, float, float, int]:
    """(x/s + z, its rounding, clamped, z); Python's round is half to even."""
    held, zero = fmt(scheme)
    t = x / STEP
    rounded = round(t) + zero
    return t + zero, rounded, min(max(rounded, held.qmin), held.qmax), zero


def fixed(x: float, scheme: Scheme) -> One:
    """Straight through where the code is held."""
    _, rounded, q, zero = code(x, scheme)
    return (q - zero) * STEP, float(rounded == q), {}


def lsq(x: float, scheme: Scheme) -> One:
    """Equations 3 and 5, with g = 1 / sqrt(N Q_p)."""
    (held, _), (t, _, q, zero) = fmt(scheme), code(x, scheme)
    g = 1 / math.sqrt(len(X) * held.qmax)
    within = held.qmin < t < held.qmax
    ds = q - t if within else held.qmin - zero if t <= held.qmin else held.qmax - zero
    return (q - zero) * STEP, float(within), {"scale": g * ds}


def lsq_plus(x: float, scheme: Scheme) -> One:
    """Equations 3 to 5: the offset gets what is clipped."""
    (held, _), (t, _, q, zero) = fmt(scheme), code(x, scheme)
    g = 1 / math.sqrt(len(X) * held.qmax)
    within = held.qmin < t < held.qmax
    ds = q - t if within else held.qmin if t <= held.qmin else held.qmax
    return (q - zero) * STEP, float(within), {"scale": g * ds, "beta": g * (not within)}


def pact(x: float) -> One:
    """y = clip(x, 0, alpha) on 15 steps of alpha = 3.75."""
    alpha = 3.75
    y = min(max(x, 0.0), alpha)
    return round(y / STEP) * STEP, float(0 <= x < alpha), {"alpha": float(x >= alpha)}


def tqt(x: float) -> One:
    """Equations 4, 7 and 8 with s = 2^ceil(log2 t) / 2^3 = 1/4."""
    t, rounded, q, _ = code(x, S4)
    within = rounded == q
    return q * STEP, float(within), {"log2_t": STEP * math.log(2) * (rounded - t if within else q)}


def dorefa() -> int:
    """Equation 9: tanh over its maximum, here on the grid of sevenths; autograd of the plain formula is the gradient."""
    x = X.clone().requires_grad_()
    plain = torch.tanh(x) / torch.tanh(x).abs().max()
    (plain * UP).sum().backward()
    grads, levels = x.grad, [round(v * 7) / 7 for v in plain.tolist()]
    y = X.clone().requires_grad_()
    params = f.DoReFa().init(affine(0.0), X, S4)
    value = f.DoReFa().apply(params, y, S4)
    (value * UP).sum().backward()
    close(value.detach(), levels)
    assert y.grad is not None
    assert grads is not None
    close(y.grad, grads.tolist())
    return 2 * len(X)


def dsq() -> int:
    """The hard value, with numeric slopes of equation 6's soft staircase, off its seams."""
    x = (X[::7] + 0.003).clone().requires_grad_()
    low, high = -1.25, 2.5
    function = f.Dsq()
    params = function.init(affine(5.0), x, U4)
    params = params._replace(**{n: getattr(params, n).clone().requires_grad_() for n in function.learned(U4)})
    value = function.apply(params, x, U4)
    value.sum().backward()
    alpha = float(torch.tensor(0.4))
    close(value.detach(), [fixed(v, U4)[0] for v in x.tolist()])
    wanted = [slope(lambda t: soft(t, low, STEP, 15, alpha), v) for v in x.tolist()]
    assert x.grad is not None
    # Truncation of the difference quotients: h^2 f''' / 6, and alpha in float32.
    assert (x.grad - torch.tensor(wanted, dtype=torch.float64)).abs().max() <= 1e-5
    for name, at, moved in (
        ("low", low, lambda t, v: soft(v, t, (high - t) / 15, 15, alpha)),
        ("high", high, lambda t, v: soft(v, low, (t - low) / 15, 15, alpha)),
        ("alpha", alpha, lambda t, v: soft(v, low, STEP, 15, t)),
    ):
        total = math.fsum(slope(lambda t, v=v, moved=moved: moved(t, v), at) for v in x.tolist())
        assert abs(getattr(params, name).grad.item() - total) <= 1e-4 * max(1, abs(total)), name
    return 2 * len(x) + 3


def adaround() -> int:
    """Equations 22 and 23, soft and hard."""
    function, v = f.AdaRound(), torch.linspace(-4, 4, len(X))
    params = function.init(affine(0.0), X, S4)._replace(v=v)
    pairs = list(zip(X.tolist(), v.tolist(), strict=True))
    close(function.relax(params, X, S4), [ada(x, one, STEP, 0, -8, 7) for x, one in pairs])
    close(function.apply(params, X, S4), [ada(x, math.copysign(9.0, one), STEP, 0, -8, 7) for x, one in pairs])
    return 2 * len(X)


def compensation() -> int:
    """The code of x + d, with the gradient of the function inside."""
    function, shift = f.Compensation(), torch.linspace(-0.9, 0.7, len(X))
    params = function.init(affine(5.0), X, U4)._replace(shift=shift)
    x = X.clone().requires_grad_()
    value = function.apply(params, x, U4)
    (value * UP).sum().backward()
    wanted = [fixed(a + b, U4) for a, b in zip(X.tolist(), shift.tolist(), strict=True)]
    close(value.detach(), [w[0] for w in wanted])
    assert x.grad is not None
    close(x.grad, [up * w[1] for up, w in zip(UP.tolist(), wanted, strict=True)])
    return 2 * len(X)


def qdrop() -> int:
    """Each element as it is or quantized, by its own u."""
    noise = torch.rand(len(X), generator=torch.Generator().manual_seed(0))
    at = dict(zip(X.tolist(), noise.tolist(), strict=True))
    return compare(f.QDrop(p=0.5), S4, lambda x: fixed(x, S4) if at[x] < 0.5 else (x, 1.0, {}), noise=noise)


def stochastic() -> int:
    """floor(x/s + u), for every u of a grid; its mean is x."""
    compared, total = 0, torch.zeros_like(X)
    for u in range(8):
        value = f.Stochastic().relax(affine(0.0), X, S4, torch.full(X.shape, u / 8))
        close(value, [min(max(math.floor(x / STEP + u / 8), -8), 7) * STEP for x in X.tolist()])
        total, compared = total + value / 8, compared + len(X)
    kept = (X >= -2) & (X <= 1.75)
    close(total[kept], X[kept].tolist())
    return compared


def nnie_log() -> int:
    """The vendor's guide, in float64; the gradient is 1."""
    scheme = Scheme(Log())
    params = Affine(torch.tensor(2.0 ** (-100 / 16)), torch.tensor(0.0))
    x = X.clone().requires_grad_()
    value = f.NnieLog().apply(params, x, scheme)
    value.sum().backward()
    close(value.detach(), [nnie(v, -100) for v in X.tolist()])
    assert x.grad is not None
    close(x.grad, [1.0] * len(X))
    return 2 * len(X)


def own_gradient() -> int:
    """Whatever the user's backward says reaches x, scale and zero point."""
    function = f.with_gradient(held, slopes)
    params = function.init(affine(0.0), X, S4)
    x = X.clone().requires_grad_()
    function.apply(params, x, S4).backward(UP)
    zero = torch.zeros(())
    assert x.grad is not None
    close(x.grad, slopes(UP, X, torch.tensor(STEP), zero, zero, zero)[0].tolist())
    return len(X)


ROWS = (
    Row("GgmlBlocks", "ggml, src/ggml-quants.c", "loop in NumPy's float32", of_ends(GGUF_Q4_1)),
    Row(
        "Fixed", "arXiv:1308.3432; ONNX QuantizeLinear", "Python floats", lambda: compare(f.Fixed(), U4, lambda x: fixed(x, U4))
    ),
    Row("Lsq", "arXiv:1902.08153, equations 3 and 5", "Python floats", lambda: compare(f.Lsq(), U4, lambda x: lsq(x, U4))),
    Row(
        "LsqPlus",
        "arXiv:2004.09576, equations 3 to 5",
        "Python floats",
        lambda: compare(f.LsqPlus(), U4, lambda x: lsq_plus(x, U4)),
    ),
    Row(
        "Pact",
        "arXiv:1805.06085, equations 1 to 3",
        "Python floats",
        lambda: compare(f.Pact(3.75), Scheme(Int(4, signed=False)), pact),
    ),
    Row("DoReFa", "arXiv:1606.06160, equation 9", "autograd of the plain formula", dorefa),
    Row("Dsq", "arXiv:1908.05033, equations 3 to 9", "numeric slopes of the staircase", dsq),
    Row("Tqt", "arXiv:1903.08066, equations 4, 7 and 8", "Python floats", lambda: compare(f.Tqt(), S4, tqt)),
    Row("AdaRound", "arXiv:2004.10568, equations 22 to 24", "Python floats", adaround),
    Row("Compensation", "arXiv:2210.17323, section 3.2", "Python floats", compensation),
    Row("QDrop", "arXiv:2203.05740", "Python floats", qdrop),
    Row("Stochastic", "arXiv:1502.02551, section 3.1", "every noise of a grid", stochastic),
    Row("NnieLog", "HiSilicon NNIE, MQBench's user guide", "Python floats", nnie_log),
    Row("with_gradient", "the user's backward", "the backward itself", own_gradient),
)
