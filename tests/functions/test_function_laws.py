"""check_function passes every public function and catches broken ones, each by the law that it breaks."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch
from attrs import define, evolve, frozen
from torch import Tensor

import qfunc.functions
from qfunc.errors import SpecError
from qfunc.functions import AdaRound, DoReFa, Fixed, GgmlBlocks, NnieLog, QDrop
from qfunc.numerics import Affine, dequantize, quantize
from qfunc.numerics._grads import straight_through
from qfunc.numerics.affine import in_range
from qfunc.specs import FLOAT16, Float, Int, Log, PerBlock, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import GGUF_Q2_K, GGUF_Q3_K, GGUF_Q4_1, GGUF_Q5_K, GGUF_Q6_K
from qfunc.testing import check_function
from qfunc.testing.function_check import LAWS

# torch.func has no fast rule for some in-place operations under vmap; values do not depend on it.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

CLASSES = [n for n in qfunc.functions.__all__ if isinstance(getattr(qfunc.functions, n), type)]
NAMES = sorted({*CLASSES} - {"GgmlBlocks", "WithGradient"})  # GgmlBlocks takes no scheme of the common ones
EXEMPT = {
    "NnieLog": {"saturation": "the vendor's gradient is 1 everywhere"},
    "DoReFa": {
        "idempotent": "tanh(w) is quantized, not w",
        "channels": "the paper's max |tanh w| is that of the whole layer",
        "nan": "the maximum of the layer is NaN with it",
    },
}
OF_SEARCHES = {
    "zero": "0 is no multiple of the step above a minimum",
    "idempotent": "the sum with a minimum is rounded to float32",
    "extremes": "numbers in float16 do not reach them",
}
ROLES = {"AdaRound": ("weight",), "Compensation": ("weight",)}


SEARCHED = [
    evolve(s, scale=evolve(s.scale, shared=PerBlock(-1, 4), within=s.scale.within and Scale(PerBlock(-1, 8), format=FLOAT16)))
    for s in (GGUF_Q4_1, GGUF_Q2_K, GGUF_Q3_K, GGUF_Q5_K, GGUF_Q6_K)
]
"""Schemes of llama.cpp in blocks that divide the laws' tensors."""


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SEARCHED, ids=["Q4_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K"])
def test_blocks_of_llama_cpp_keep_the_laws(scheme: Scheme) -> None:
    check_function(GgmlBlocks(), schemes=[scheme], exempt=OF_SEARCHES, examples=1)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "role"), [(n, r) for n in NAMES for r in ROLES.get(n, ("weight", "activation"))])
def test_every_public_function_keeps_the_laws(name: str, role: str) -> None:
    """With its defaults, on every format that it takes; what a method breaks by its nature is declared."""
    check_function(getattr(qfunc.functions, name)(), role=role, exempt=EXEMPT.get(name), examples=2)


@pytest.mark.thorough
@pytest.mark.parametrize("function", [QDrop(AdaRound()), QDrop(Fixed(), p=1.0), AdaRound(Fixed(), zeta=1.3, gamma=-0.3)])
def test_compositions_keep_the_laws(function: Any) -> None:
    """QDrop of a function with a surrogate of its own, and other fields."""
    check_function(function, examples=1)


@pytest.mark.thorough
@pytest.mark.parametrize("role", ["weight", "activation"])
def test_dorefa_that_keeps_the_magnitude_keeps_the_laws(role: str) -> None:
    """Channel by channel, other than the paper's."""
    of_weights = {
        "idempotent": "tanh(w) is quantized, not w",
        "nan": "the maximum of the block is NaN with it",
        "infinity": "the maximum of the block is the largest number with it",
        "saturation": "the range is that of the weights themselves",
    }
    check_function(DoReFa(largest=None), role=role, exempt=of_weights if role == "weight" else None, examples=2)


S8, CHANNELS = Scheme(Int(8, low=-127)), Scheme(Int(4), Scale(PerChannel(0)), ZeroPoint())
U8 = Scheme(Int(8, signed=False), zero_point=ZeroPoint())


@frozen
class Right:
    """Fixed once more; the broken ones change one method of it."""

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Any:
        return qparams

    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        codes, qparams = self.export(params, x.detach(), scheme)
        return straight_through(x, dequantize(codes, qparams, scheme).to(x.dtype), in_range(x.detach(), qparams, scheme))

    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return quantize(x, Affine(*params[:3]), scheme), Affine(*params[:3])


@define
class Mutable:
    inner: Any = Right()

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Any:
        return self.inner.init(qparams, x, scheme)

    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        value: Tensor = self.inner.apply(params, x, scheme)
        return value

    def export(self, params: Any, x: Tensor, scheme: Scheme) -> Any:
        return self.inner.export(params, x, scheme)


@frozen
class WideParameters(Right):
    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Any:
        return qparams._replace(scale=qparams.scale.double())


@frozen
class LearnsNothingThatExists(Right):
    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        return ("alpha",)


@frozen
class ClampsInPlace(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return super().export(params, x.clamp_(-1, 1), scheme)


@frozen
class GlobalNoise(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return super().export(params, x + torch.rand_like(x), scheme)


@frozen
class NeverSaturates(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return torch.round(x.float() / params.scale), params


@frozen
class ExportsOtherCodes(Right):
    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        return Fixed().apply(params, x, scheme)

    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return torch.floor(x / params.scale).clamp(-127, 127), params


@frozen
class Drifts(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return super().export(params, x + 0.6 * params.scale, scheme)


@frozen
class WrapsAround(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return torch.remainder(torch.round(x / params.scale) + 127, 255) - 127, params


@frozen
class HasNoZero(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        codes, _ = super().export(params, x, scheme)
        return torch.where(codes == 0, 1.0, codes), params


@frozen
class HalfPrecision(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return torch.round(x / params.scale.to(x.dtype)).clamp(-127, 127).float(), params


@frozen
class OneScaleForAll(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        shared = params._replace(scale=params.scale.amax().expand(params.scale.shape))
        return super().export(shared, x, scheme)


@frozen
class FirstRowOnly(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return super().export(params, x * (torch.arange(len(x)) < 1).reshape(-1, 1, 1), scheme)


@frozen
class ForgetsAFactor(Right):
    def scaled(self, params: Any, factor: Tensor) -> Any:
        return params._replace(scale=params.scale * factor.amax())


@frozen
class NeedsAMaximum(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return super().export(params, x.clamp(max=x.amax()), scheme)


@frozen
class HidesNan(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return super().export(params, torch.where(x.isnan(), 0.0, x), scheme)


@frozen
class LosesInfinity(Right):
    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return super().export(params, x + 0 * x, scheme)


@frozen
class NoGradient(Right):
    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        return dequantize(*self.export(params, x.detach(), scheme), scheme).to(x.dtype) + 0 * x.nan_to_num(0, 0, 0)


@frozen
class InfiniteGradient(Right):
    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        value = super().apply(params, x, scheme)
        return straight_through(x.abs().sqrt(), value.detach(), torch.ones(())).to(x.dtype)


@frozen
class NeverSaturatesInGradient(Right):
    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        return straight_through(x, super().apply(params, x.detach(), scheme), torch.ones(()))


class Clipped(NamedTuple):
    """Qparams and PACT's alpha."""

    scale: Tensor
    zero_point: Tensor
    outer: Tensor | None
    alpha: Tensor


@frozen
class AlphaOnlyWhileObserving(Right):
    """As MQBench's PACT: a parameter that is learned by name only."""

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Any:
        return Clipped(*qparams[:3], torch.tensor(6.0))

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        return ("alpha",)


@frozen
class RelaxesIntoNan(Right):
    def relax(self, params: Any, x: Tensor, scheme: Scheme, noise: Tensor) -> Tensor:
        return torch.where(noise < 0.5, x, self.apply(params, x, scheme)) + 0 * x.abs().sqrt()


@frozen
class AsksForRequiresGrad(Right):
    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        if not x.requires_grad:  # False inside vmap under grad
            return super().apply(params, x.detach(), scheme)
        return super().apply(params, x, scheme)


@frozen
class BreaksTheGraph(Right):
    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        if torch.is_grad_enabled() and float(x.detach().nan_to_num().sum()) == 12345.0:
            return x
        return super().apply(params, x, scheme)


BROKEN = [
    (Mutable(), S8, {}, "value: holds a Mutable, which does not compare and hash by its fields$"),
    (WideParameters(), S8, {}, "parameters, .*parameter 'scale' is torch.float64, 0.05[0-9]*, wanted finite float32$"),
    (LearnsNothingThatExists(), S8, {}, r"parameters, .*learned names \['alpha'\], parameters are \['scale', 'zero_point'\]$"),
    (ClampsInPlace(), S8, {}, "pure, .*changes its argument x$"),
    (GlobalNoise(), S8, {}, "pure, .*torch's global generator was used$"),
    (NeverSaturates(), S8, {}, r"codes, .*x\[\d, \d, \d\] = -?[\d.]+: found -?[\d.]+, wanted a code in \[-127, 127\]$"),
    (ExportsOtherCodes(), S8, {}, r"export, .*torch.float32, \d+ of 120 differ, .*, dequantize\(\*export\) gives -?[\d.]+$"),
    (Drifts(), S8, {}, r"idempotent, .*, apply\(apply\(x\)\) should be -?[\d.]+$"),
    (WrapsAround(), S8, {}, "monotone, .*x = -[0-9.]+ gives [0-9.]+, but the larger -[0-9.]+ gives -[0-9.]+$"),
    (HasNoZero(), S8, {}, r"zero, .*x\[0, 0, \d\] = 0.0: found 0.0\d+, wanted 0$"),
    (HalfPrecision(), S8, {}, "dtype, .*torch.bfloat16, .* differ, first .*in float32"),
    (OneScaleForAll(), CHANNELS, {}, "channels, .*, the loop over channels gives"),
    (FirstRowOnly(), S8, {"monotone": "it depends on places"}, "permutation, .*, the reversed result is"),
    (ForgetsAFactor(), CHANNELS, {}, r"scaled, .*, factor \* apply\(x\) is"),
    (NeedsAMaximum(), S8, {}, r"extremes, .*raised RuntimeError: amax\(\)"),
    (HidesNan(), S8, {}, "nan, .*found 0.0, wanted nan$"),
    (LosesInfinity(), S8, {}, r"infinity, .*= inf: found nan, \+-3e38 give \d"),
    (NoGradient(), S8, {}, "gradient, .*the gradient to x is 0 everywhere$"),
    (InfiniteGradient(), S8, {}, r"gradient, .*= 0.0: found nan, wanted a finite gradient$"),
    (NeverSaturatesInGradient(), S8, {}, r"saturation, .*x\[0, 0, 0\] = [\d.]+: found 1.0, wanted the gradient 0$"),
    (AlphaOnlyWhileObserving(), S8, {}, "learned, .*'alpha' never gets a gradient: it would not train$"),
    (RelaxesIntoNan(), S8, {}, r"relax, .*its gradient to x: x\[0, \d, \d\] = 0.0: found nan, wanted a finite one$"),
    (AsksForRequiresGrad(), S8, {}, "func, .*grad of vmap of apply, .*found 0.0, autograd in a loop gives [01]"),
    (BreaksTheGraph(), S8, {"func": "it asks for values"}, "compile, .*raised UserError: .*data-dependent"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "scheme", "exempt", "message"), BROKEN, ids=lambda v: type(v).__name__)
def test_a_broken_function_is_caught_by_its_law(function: Any, scheme: Scheme, exempt: dict[str, str], message: str) -> None:
    """The message names the function, the law, the scheme, the element and both values."""
    with pytest.raises(AssertionError) as caught:
        check_function(function, schemes=[scheme], exempt=exempt, examples=1)

    text = str(caught.value)
    assert text.startswith(f"check_function({function!r}): ")
    assert re.match(message, text.removeprefix(f"check_function({function!r}): "), re.DOTALL), text
    assert message.startswith("value") or f"role weight, {scheme!r}: " in text


def test_every_law_has_a_broken_function() -> None:
    """No law is there for show."""
    assert {message.partition(",")[0].partition(":")[0] for *_, message in BROKEN} == {"value", *LAWS}


def test_the_unbroken_one_passes() -> None:
    """So that nothing but the break is caught."""
    for scheme in (S8, CHANNELS, U8, Scheme(Float(4, 3, max=448.0)), Scheme(Log())):
        check_function(Right(), schemes=[scheme], examples=1)


def test_a_function_that_takes_no_scheme_is_an_error() -> None:
    """Passing over every scheme would check nothing."""
    wanted = (
        "check_function(NnieLog()): parameters: init accepts no scheme; the last one: "
        "NnieLog: found Int(8, low=-127), wanted a Log format. Use Fixed() for this format."
    )
    with pytest.raises(AssertionError, match=f"^{re.escape(wanted)}$"):
        check_function(NnieLog(), schemes=[S8])
    with pytest.raises(AssertionError, match=r"init accepts no scheme; there is none$"):
        check_function(Fixed(), schemes=[])


def test_words_of_the_call_are_checked() -> None:
    """A misspelt law or role would check less than was asked for."""
    laws = ", ".join(("value", *LAWS))
    with pytest.raises(SpecError) as caught:
        check_function(Fixed(), exempt={"idempotence": "a typing error"})
    assert str(caught.value) == (
        f"testing.check_function, exempt: found 'idempotence', wanted a law: {laws}. Write 'idempotent'."
    )
    with pytest.raises(SpecError) as caught:
        check_function(Fixed(), exempt={"idempotent": ""})
    assert str(caught.value) == (
        "testing.check_function, exempt['idempotent']: found '', wanted a reason. Write why the law cannot hold."
    )
    with pytest.raises(SpecError) as caught:
        check_function(Fixed(), exempt=("idempotent",))  # type: ignore[arg-type]
    assert str(caught.value) == (
        'testing.check_function, exempt: found (\'idempotent\',), wanted a mapping. Write exempt={"law": "the reason"}.'
    )
    with pytest.raises(AssertionError) as held:
        check_function(Fixed(), exempt={"value": "none"})
    assert str(held.value) == "check_function(Fixed()), law 'value': it is exempt, and holds. Remove it from exempt."
    with pytest.raises(AssertionError, match=r"role is 'weight' or 'activation', not 'bias'$"):
        check_function(Fixed(), role="bias")
