"""Estimators that make a scheme of their own do so in a trace too, whatever the scheme."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from qfunc import estimators
from qfunc.errors import SpecError
from qfunc.estimators import Ema, Mse, OrtEntropy, PotMode, PowerOfTwo
from qfunc.estimators.replace_fields import replace_fields
from qfunc.numerics.qparams import Affine
from qfunc.specs import Int, Levels, PerBlock, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E4M3FN, E8M0, NVFP4
from qfunc.testing.laws.estimator import compiled

BLOCKS = Scale(PerBlock(-1, 16))
SCHEMES = {
    "floor": Scheme(Int(4), rounding="floor"),
    "affine blocks": Scheme(Int(4, signed=False), BLOCKS, ZeroPoint(), rounding="floor"),
    "codebook": Scheme(Levels((-1.0, -0.25, 0.0, 0.5, 1.0)), BLOCKS),
    "floats": Scheme(E4M3FN, Scale(PerBlock(-1, 16), format=E8M0, rounding="floor")),
    "two levels": NVFP4,
}
MSE = Mse(candidates=3)
MADE: tuple[tuple[Any, str], ...] = (
    (MSE, "floor"),
    (MSE, "codebook"),
    (PowerOfTwo(MSE, "half_even", 9), "affine blocks"),
    (PowerOfTwo(Ema(), "floor"), "two levels"),
    (Ema(PotMode()), "floor"),
    (PotMode(), "floats"),
)
"""Each makes a scheme: for judging, of one row, of powers of two, or several of them."""


@pytest.mark.thorough
@pytest.mark.parametrize(("estimator", "name"), MADE, ids=repr)
def test_one_graph_from_nothing_to_qparams(estimator: Any, name: str) -> None:
    """init, update and finalize in one trace give the bits of eager mode."""
    scheme, g = SCHEMES[name], torch.Generator().manual_seed(5)
    batches = [torch.randn(3, 32, generator=g) * s for s in (1.0, 9.0)]

    def calibrated(*batches: Tensor) -> Affine:
        state = estimator.init(scheme, batches[0])
        for x in batches:
            state = estimator.update(state, x, scheme)
        found: Affine = estimator.finalize(state, scheme)
        return found

    traced, eager = compiled(calibrated)(*batches), calibrated(*batches)

    for a, b in zip(traced, eager, strict=True):
        assert a is b is None or torch.equal(a, b)


@pytest.mark.parametrize("name", estimators.__all__)
def test_init_is_one_graph(name: str) -> None:
    estimator, scheme = getattr(estimators, name)(), SCHEMES["affine blocks"]
    state = compiled(lambda x: estimator.init(scheme, x))(torch.empty(3, 32))

    assert repr(state) == repr(estimator.init(scheme, torch.empty(3, 32)))


def test_the_trace_of_ort_entropy_is_as_long_for_many_blocks_as_for_one() -> None:
    lengths: list[int] = []
    estimator = OrtEntropy(256, 256)  # one pair of ends alone: a short trace

    def measured(module: Any, inputs: list[Tensor]) -> Any:
        lengths.append(len(module.graph.nodes))
        return module.forward

    for shared in (PerBlock(-1, 16), PerBlock(-1, 8)):
        scheme, x = Scheme(scale=Scale(shared)), torch.arange(32.0).expand(3, 32)
        state = estimator.update(estimator.init(scheme, x), x, scheme)
        torch.compiler.reset()
        torch.compile(lambda s, k=scheme: estimator.range(s, k), fullgraph=True, backend=measured, dynamic=False)(state)

    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))
def test_replace_fields_is_attrs_evolve(scheme: Scheme) -> None:
    """With the types, the values and the hash of what attrs makes."""
    scale = {"power_of_two": True, "rounding": "half_even", "low": 0.25}
    wanted = attrs.evolve(scheme, scale=attrs.evolve(scheme.scale, **scale), rounding="half_even")
    found = replace_fields(scheme, scale=replace_fields(scheme.scale, **scale), rounding="half_even")

    assert found == wanted
    assert (hash(found), repr(found)) == (hash(wanted), repr(wanted))


def test_replace_fields_keeps_the_rules_between_fields() -> None:
    with pytest.raises(SpecError, match="low <= high"):
        replace_fields(Scale(high=0.5), low=1.0)
    with pytest.raises(SpecError, match="divisor"):
        replace_fields(Scheme(Levels((-1.0, 1.0))), scale=Scale(divisor="-qmin"))
    assert replace_fields(Scale(), format=E8M0).power_of_two
