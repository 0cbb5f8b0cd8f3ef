"""Laws of the learned functions: what they hold, what they export, where they run."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions import DoReFa, Dsq, Lsq, LsqPlus, Pact, Tqt
from qfunc.numerics import Affine, dequantize
from qfunc.numerics.affine import quantize
from qfunc.numerics.qparams import qparams_shape
from qfunc.numerics.scales import nearest_scale
from qfunc.specs import Int, Levels, Log, PerBlock, PerChannel, PerTensor, Scale, Scheme, ZeroPoint, from_json, to_json
from qfunc.specs.formats import E2M1, E4M3FN
from qfunc.testing import strategies

SHAPE = (2, 3, 10)
FUNCTIONS = (Lsq(), LsqPlus(), Pact(), Pact(2.0), DoReFa(), DoReFa(largest=None), Dsq(), Tqt())
U8 = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
SCHEMES = (
    Scheme(Int(4)), U8, Scheme(Int(4, signed=False)), Scheme(Int(3, low=-3)), Scheme(Int(8), Scale(power_of_two=True)),
    Scheme(Int(8), Scale(PerChannel(1), low=0.01, high=0.5)), Scheme(Int(4), Scale(PerBlock(2, 5), format=E4M3FN)),
    Scheme(Int(4), Scale(PerBlock(2, 5), format=E4M3FN, within=Scale())), Scheme(Int(8), zero_point=ZeroPoint(value=7)),
    Scheme(Int(8), Scale(divisor="half_range"), division=False),
    Scheme(Int(8), Scale(PerChannel(0)), ZeroPoint(nudge="nearest")),
)  # fmt: skip
named = pytest.mark.parametrize("function", FUNCTIONS, ids=repr)


def qparams(scheme: Scheme, scale: float = 0.05, zero: float = 3.0, shape: tuple[int, ...] = SHAPE) -> Affine:
    """Scales that differ by block, and that the scheme allows."""
    held = qparams_shape(scheme, shape)
    steps = 1 + torch.arange(torch.Size(held).numel()).reshape(held) / 7
    inner, outer = nearest_scale(scale * steps, scheme)
    fixed = scheme.zero_point and scheme.zero_point.value
    return Affine(inner, torch.full(held, float(0 if scheme.symmetric else zero if fixed is None else fixed)), outer)


def tensor(seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) * spread


@named
@settings(deadline=None, max_examples=25)
@given(st.data(), st.sampled_from(SCHEMES), st.integers(0, 99), st.sampled_from((0.01, 0.3, 40.0)))
def test_exported_codes_dequantize_to_what_apply_returns(
    function: Any, data: st.DataObject, scheme: Scheme, seed: int, spread: float
) -> None:
    """Bit for bit, in the code range, with scales that the hardware takes; also after training moved the parameters."""
    x = tensor(seed, spread)
    params = function.init(qparams(scheme), x, scheme)
    for name in function.learned(scheme) if hasattr(function, "learned") else ():
        moved = data.draw(st.sampled_from((0.0, 0.37, -0.2, -3.0)))
        params = params._replace(**{name: getattr(params, name) * (1 - moved) + moved / 9})

    codes, exported = function.export(params, x, scheme)
    with torch.no_grad():
        value = function.apply(params, x, scheme)

    assert torch.equal(dequantize(codes, exported, scheme), value)
    assert torch.equal(value, function.apply(params, x.clone().requires_grad_(), scheme))
    assert isinstance(scheme.format, Int)
    assert torch.equal(codes, codes.round().clamp(scheme.format.qmin, scheme.format.qmax))
    assert torch.equal(exported.zero_point, exported.zero_point.round().clamp(scheme.format.qmin, scheme.format.qmax))
    if scheme.scale.within is None:
        assert torch.equal(nearest_scale(exported.scale, scheme)[0], exported.scale)
    assert all(p is None or (p.dtype == torch.float32 and not p.requires_grad) for p in exported)


def squashed(x: Tensor, function: DoReFa, scheme: Scheme) -> Tensor:
    """tanh over its maximum: of all, or with the magnitude that each channel has."""
    most = torch.tanh(x).abs().max()
    if function.largest is None:
        shared = scheme.scale.shared
        if isinstance(shared, PerBlock):
            most = x.reshape(2, 3, 2, 5).abs().amax(-1).repeat_interleave(5, -1)
        elif isinstance(shared, PerChannel):
            most = x.abs().amax([d for d in range(3) if d != shared.axis], keepdim=True)
        else:
            most = x.abs().max()
        return torch.tanh(x) * (most / torch.tanh(most))
    return torch.tanh(x) / most


@named
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: "")
def test_apply_is_the_hardwares_own_rounding_of_its_exported_qparams(function: Any, scheme: Scheme) -> None:
    """What a runtime does with x (DoReFa: with the transformed weight) and the exported scale and zero point."""
    x = tensor(5)
    params = function.init(qparams(scheme), x, scheme)
    codes, exported = function.export(params, x, scheme)
    seen = squashed(x, function, scheme) if isinstance(function, DoReFa) else x

    assert torch.equal(codes, quantize(seen, exported, scheme))


@named
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_values_are_monotone_idempotent_and_zero_is_zero(function: Any, data: st.DataObject) -> None:
    """x <= y gives x_hat <= y_hat, apply(apply(x)) == apply(x), apply(0) == 0; at ties and extremes."""
    scheme = data.draw(strategies.schemes(max_bits=8, roundings=("half_even", "half_away", "half_up"), division=True))
    given_qparams = data.draw(strategies.qparams(scheme=scheme, tiny=False, huge=False))
    values = [data.draw(strategies.values_near_ties(scheme=scheme, qparams=given_qparams)) for _ in range(5)]
    x = torch.tensor([0.0, *sorted(values)])
    like = torch.zeros(()) if isinstance(function, DoReFa) else x  # its weights are not idempotent: tanh
    params = function.init(given_qparams, like, scheme)

    with torch.no_grad():
        once = function.apply(params, x, scheme)
        twice = function.apply(params, once, scheme)

    fmt = scheme.format
    assert isinstance(fmt, Int)
    assert once[0] == 0 or not fmt.qmin <= given_qparams.zero_point.item() <= fmt.qmax  # a format without the code 0
    assert bool((once[1:].diff() >= 0).all())
    assert torch.equal(once, twice)


@named
def test_the_first_scale_is_the_estimated_one(function: Any) -> None:
    """Before training the qparams are those of calibration (DoReFa: of its fixed range; TQT: a power of two)."""
    for scheme in (Scheme(Int(4)), U8, Scheme(Int(8), Scale(PerChannel(0), divisor="half_range"))):
        given_qparams = qparams(scheme, scale=0.0625)
        exported = function.export(function.init(given_qparams, tensor(), scheme), tensor(), scheme)[1]
        if isinstance(function, DoReFa) or function == Pact(2.0):
            continue
        if isinstance(function, Tqt):
            assert torch.equal(exported.scale, 2.0 ** torch.ceil(torch.log2(given_qparams.scale)))
        else:  # through bounds and back: two float32 roundings
            torch.testing.assert_close(exported.scale, given_qparams.scale, rtol=2**-22, atol=0)
        assert torch.equal(exported.zero_point, given_qparams.zero_point)


@named
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(function: Any, dtype: torch.dtype) -> None:
    """Computed in float32 (float64 stays), returned in the dtype of x; gradients to x have it too, others float32."""
    x = tensor(1).to(dtype)
    params = function.init(qparams(U8), x, U8)
    codes, exported = function.export(params, x, U8)
    names = function.learned(U8) if hasattr(function, "learned") else ()
    leaves = {n: getattr(params, n).clone().requires_grad_() for n in names}
    x.requires_grad_()

    value = function.apply(params._replace(**leaves), x, U8)
    value.float().sum().backward()

    assert torch.equal(value, dequantize(codes, exported, U8).to(dtype))
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and bool(p.grad.isfinite().all()) for p in leaves.values())
    if names and dtype != torch.float64:
        wide = {n: getattr(params, n).clone().requires_grad_() for n in names}
        function.apply(params._replace(**wide), x.detach().float(), U8).sum().backward()
        for name in names:  # the sums are made in float32 of the same numbers
            torch.testing.assert_close(leaves[name].grad, wide[name].grad, rtol=1e-5, atol=1e-5)


@named
def test_strange_tensors(function: Any) -> None:
    """Empty stays empty, NaN stays NaN and shows in what is learned, infinities saturate, gradients stay finite."""
    scheme = Scheme(Int(4))
    params = function.init(qparams(scheme, shape=(4,)), torch.zeros(()), scheme)
    names = function.learned(scheme) if hasattr(function, "learned") else ()

    def gradients(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        leaves = {n: getattr(params, n).clone().requires_grad_() for n in names}
        leaf = x.clone().requires_grad_()
        value = function.apply(params._replace(**leaves), leaf, scheme)
        return value.detach(), list(torch.autograd.grad(value.sum(), (leaf, *leaves.values()), allow_unused=True))

    assert gradients(torch.zeros(0, 3))[0].shape == (0, 3)
    inf, tiny = float("inf"), 2.0**-149
    value, found = gradients(torch.tensor([inf, -inf, 3e38, -3e38, tiny, -tiny, 0.0]))
    step = function.export(params, torch.zeros(1), scheme)[1].scale
    assert value.tolist() == (step * torch.tensor([7.0, -8, 7, -8, 0, 0, 0])).tolist()
    assert all(bool(g.isfinite().all()) for g in found)
    value, found = gradients(torch.tensor([0.1, float("nan")]))
    assert value[0] == value[0]
    assert value[1] != value[1]
    if names and not isinstance(function, Pact):  # whose gradient asks only where x lies
        assert all(bool(g.isnan().any()) for g in found[1:])


def test_dorefa_of_strange_weights() -> None:
    """Zeros stay zeros, with gradient 0 / 1; one NaN makes all NaN; infinities are +-1."""
    scheme = Scheme(Int(4))
    params = DoReFa().init(qparams(scheme), tensor(), scheme)
    apply = lambda *v: DoReFa().apply(params, torch.tensor(v), scheme)  # noqa: E731

    assert apply(0.0, 0.0).tolist() == [0, 0]
    assert bool(apply(0.1, float("nan")).isnan().all())
    assert (apply(float("inf"), -float("inf"), 0.0) * 7).round().tolist() == [7, -7, 0]
    assert apply(1e-40, -1e-40).abs().min() > 0.99  # denormals are numbers, too


def test_dorefa_that_keeps_the_magnitude_of_strange_weights() -> None:
    """Each channel by itself: zeros, a NaN, an infinity as the largest number, tiny ones; and [-m, m] for a given m."""
    scheme = Scheme(Int(4), Scale(PerChannel(0)))
    rows = [[0.0, 0.0], [0.1, float("nan")], [float("inf"), -1.0], [1e-30, -1e-30], [-3.0, 1.5]]
    x = torch.tensor(rows)
    function = DoReFa(largest=None)
    value = function.apply(function.init(qparams(scheme, shape=(5, 1)), x, scheme), x, scheme)

    assert value[0].tolist() == [0, 0]
    assert bool(value[1].isnan().all())
    assert value[2, 0] == pytest.approx(torch.finfo(torch.float32).max, rel=2**-20)  # 7 (largest / 7), two roundings
    assert value[3, 0] == -value[3, 1] > 0
    assert value[4].tolist() == pytest.approx([-3.0, 3 * 6 / 7], rel=2**-22)  # 7 tanh(1.5) / tanh(3) = 6.37
    far, whole = DoReFa(largest=2.5), Scheme(Int(4))
    assert far.apply(far.init(qparams(whole), x[4], whole), x[4], whole).abs().max() == pytest.approx(2.5, rel=2**-22)


@named
@pytest.mark.parametrize("scheme", [Scheme(Int(4)), U8, Scheme(Int(4), Scale(PerChannel(0)))], ids=["s4", "u8", "channel"])
def test_torch_func_agrees_with_autograd(function: Any, scheme: Scheme) -> None:
    """grad, vmap over many parameters, vmap of grad, and jacrev, each against the plain loop."""
    x = tensor(3)
    sets = [function.init(qparams(scheme, scale=s), x, scheme) for s in (0.05, 0.07, 0.3)]
    kind = type(sets[0])
    none = [i for i, p in enumerate(sets[0]) if p is None]
    stacked = [torch.stack([s[i] for s in sets]) for i in range(len(sets[0])) if i not in none]

    def loss(*tensors: Tensor) -> Tensor:
        full = list(tensors)
        for i in none:
            full.insert(i, None)  # type: ignore[arg-type]
        return (function.apply(kind(*full), x, scheme) * torch.linspace(-1, 2, 60).reshape(SHAPE)).sum()

    names = [f for f in kind._fields if getattr(sets[0], f) is not None]
    trained = tuple(names.index(n) for n in (function.learned(scheme) if hasattr(function, "learned") else ()))
    values = torch.func.vmap(loss)(*stacked)
    each = [[t[i] for t in stacked] for i in range(3)]
    torch.testing.assert_close(values, torch.stack([loss(*one) for one in each]), rtol=1e-6, atol=1e-6)  # order of sums
    if trained:
        batched = torch.func.vmap(torch.func.grad(loss, argnums=trained))(*stacked)
        for i, one in enumerate(each):
            leaves = [t.clone().requires_grad_() for t in one]
            plain = torch.autograd.grad(loss(*leaves), [leaves[j] for j in trained])
            for a, b in zip(batched, plain, strict=True):
                torch.testing.assert_close(a[i], b, rtol=1e-5, atol=1e-5)  # order of sums in float32
    jacobian = torch.func.jacrev(lambda v: function.apply(sets[0], v, scheme).flatten()[:7])(x)
    assert torch.equal(jacobian.isfinite(), torch.ones_like(jacobian, dtype=torch.bool))
    assert jacobian.shape == (7, *SHAPE)


@pytest.mark.thorough
# torch._dynamo itself instantiates any autograd.Function that it traces, and warns about it.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("function", "scheme"),
    [*((f, U8) for f in FUNCTIONS if f != Pact(2.0)), (Lsq(), Scheme(Int(4), Scale(PerBlock(2, 5)))), (Dsq(), Scheme(Int(4)))],
    ids=repr,
)
def test_compiles_whole_with_equal_values_and_gradients(function: Any, scheme: Scheme) -> None:
    """One graph, no breaks; the same bits forward, and backward."""
    compare_compiled(function, scheme, "aot_eager")


@pytest.mark.parametrize("function", [Lsq(), LsqPlus(), Pact(), Dsq(), Tqt()], ids=lambda f: type(f).__name__)
def test_compiles_where_nothing_asks_for_a_gradient(function: Any) -> None:
    """A model that was frozen whole: the same bits, in one graph."""
    x, scheme = tensor(5), Scheme()
    params = function.init(qparams(scheme), x, scheme)
    torch.compiler.reset()
    compiled = torch.compile(lambda v: function.apply(params, v, scheme), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), function.apply(params, x, scheme))


@pytest.mark.thorough
# Inductor's own imports warn about deprecated modules of Python and of torch.
@pytest.mark.filterwarnings("ignore")
def test_inductor_compiles_lsq() -> None:
    """A smoke test of generated code."""
    compare_compiled(Lsq(), U8, "inductor")


def compare_compiled(function: Any, scheme: Scheme, backend: str) -> None:
    x = tensor(4)
    params = function.init(qparams(scheme), x, scheme)
    names = function.learned(scheme) if hasattr(function, "learned") else ()
    torch.compiler.reset()
    compiled = torch.compile(lambda p, v: function.apply(p, v, scheme), fullgraph=True, backend=backend)
    results = []
    for call in (compiled, lambda p, v: function.apply(p, v, scheme)):
        leaves = {n: getattr(params, n).clone().requires_grad_() for n in names}
        leaf = x.clone().requires_grad_()
        value = call(params._replace(**leaves), leaf)
        (value * torch.linspace(-1, 2, 60).reshape(SHAPE)).sum().backward()
        results.append([value.detach(), leaf.grad, *(p.grad for p in leaves.values())])
    for i, (a, b) in enumerate(zip(*results, strict=True)):
        if i == 0 or (backend == "aot_eager" and i == 1):
            assert torch.equal(a, b)
        else:  # inductor orders sums otherwise, in float32
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@named
def test_functions_are_values(function: Any) -> None:
    """Equal, hashable, picklable, and their JSON gives them back; apply changes none of its arguments."""
    copy = pickle.loads(pickle.dumps(function))
    assert copy == function
    assert hash(copy) == hash(function)
    assert from_json(to_json(function)) == function
    x, params = tensor(), function.init(qparams(U8), tensor(), U8)
    before = [x.clone(), *(None if p is None else p.clone() for p in params)]
    function.apply(params, x.requires_grad_(), U8).sum().backward()
    function.export(params, x, U8)
    for old, new in zip(before, (x, *params), strict=True):
        assert old is None or torch.equal(old, new)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lsq(-1.0), "Lsq.gradient_scale: found -1.0, wanted True, False or a positive number."
         " True is the paper's 1 / sqrt(N Q_p), False is 1."),
        (lambda: LsqPlus("on"), "LsqPlus.gradient_scale: found 'on', wanted True, False or a positive number."
         " True is the paper's 1 / sqrt(N Q_p), False is 1."),
        (lambda: LsqPlus(batch_axis=0.5), "LsqPlus.batch_axis: found 0.5, wanted None or a whole number."
         " 0 leaves the first axis of activations out of N; None is for weights."),
        (lambda: Pact(0.0), "Pact.alpha: found 0.0, wanted a finite positive number or None. Give such a number."),
        (lambda: Dsq(0.7), "Dsq.alpha: found 0.7, wanted a number in [0.001, 0.499]. Use the usual 0.4 or 0.2."),
        (lambda: Dsq(trains_alpha=1), "Dsq.trains_alpha: found 1, wanted bool. Give True or False."),
        (lambda: Lsq().init(qparams(Scheme()), tensor(), Scheme(Log())),
         "Lsq, scheme.format: found Log(), wanted Int or Float or Levels. Use Fixed(), or another format."),
        *((lambda f=f: f.init(qparams(Scheme()), tensor(), Scheme(E2M1)),
           f"{type(f).__name__}, scheme.format: found {E2M1!r}, wanted Int. Use Fixed(), or another format.")
          for f in (LsqPlus(), DoReFa(), Dsq(), Tqt())),
    ],
)  # fmt: skip
def test_what_no_hardware_or_paper_means_is_refused(make: Any, message: str) -> None:
    """With the field, what was found, what was wanted and the cure."""
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize("fmt", [E2M1, E4M3FN, Levels((-1.0, -0.25, 0.0, 0.5, 1.5))])
@pytest.mark.parametrize("function", [Lsq(), Pact()])
@pytest.mark.parametrize("shared", [PerTensor(), PerBlock(2, 5)])
def test_formats_without_integers_keep_the_law(function: Any, fmt: Any, shared: Any) -> None:
    """dequantize(*export) == apply for small floats and codebooks."""
    scheme, x = Scheme(fmt, Scale(shared)), tensor(6)
    params = function.init(qparams(scheme), x, scheme)

    assert torch.equal(dequantize(*function.export(params, x, scheme), scheme), function.apply(params, x, scheme))


@pytest.mark.parametrize("function", [Lsq(), LsqPlus(), Pact(), Dsq(), Tqt()], ids=repr)
@pytest.mark.parametrize("scheme", [Scheme(Int(3)), Scheme(Int(3, signed=False), zero_point=ZeroPoint())], ids=["s3", "u3"])
def test_training_reduces_the_error(function: Any, scheme: Scheme) -> None:
    """From a scale four times too large, gradient descent on |x_hat - x|^2 finds a better one."""
    x = torch.randn(4000, generator=torch.Generator().manual_seed(7))
    params = function.init(Affine(torch.tensor(2.0), torch.tensor(0.0 if scheme.symmetric else 3.0)), x, scheme)
    leaves = {n: getattr(params, n).clone().requires_grad_() for n in function.learned(scheme)}
    optimizer = torch.optim.Adam(leaves.values(), lr=0.06)

    def error() -> Tensor:
        return (function.apply(params._replace(**leaves), x, scheme) - x).square().mean()

    first = error().item()
    for _ in range(60):
        optimizer.zero_grad()
        error().backward()
        optimizer.step()
    # PACT's alpha feels only what it clips, of which there is nothing here.
    assert error().item() < (0.6 * first if not isinstance(function, Pact) else first * 1.001)
