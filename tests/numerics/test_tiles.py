"""Sums of products that depend on the number of tokens, in exact rationals with a rounding where the engine has one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

import qfunc
from qfunc.errors import SpecError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed, GgmlBlocks
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import (
    FLOAT16, FLOAT32, Algorithm, DynamicProduct, Int, Kernel, Lanes, MinimumSums, Op, PerBlock, Rule, Scale, Scheme, Target,
    TokenGroups, TokenTiles,
)  # fmt: skip
from qfunc.specs.formats import GGUF_Q2_K
from tests.numerics.test_dynamic_products import rounded

OUTPUTS = 12
INPUT = Scheme(Int(8, low=-127), Scale(PerBlock(-1, 256), dynamic=True), division=False)
TILED = DynamicProduct(
    INPUT, scales="inside", lanes=Lanes(4, 16), minimums=MinimumSums(Lanes(4, 64), inside=True), tiles=TokenTiles(3)
)  # fmt: skip
APART = DynamicProduct(
    INPUT, scales="inside", minimums=MinimumSums(), groups=TokenGroups(2, part=128), sequences="apart"
)  # fmt: skip


def emulated(product: DynamicProduct, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """A linear layer of 512 inputs, and the numbers of its weight in Q2_K."""
    formats = (("input", (FLOAT32,)), ("weight", (GGUF_Q2_K.format,)), ("output", (FLOAT32,)))
    target = Target(
        name="tiles", rules=(Rule(Op("linear"), input=INPUT, weight=GGUF_Q2_K),), source=("a test",),
        kernels=(Kernel(Op("linear"), product, formats=formats),),
        weight=Algorithm(MinMax(), GgmlBlocks()), activation=Algorithm(MinMax(), Fixed()),
    )  # fmt: skip
    torch.manual_seed(0)
    layer = torch.nn.Linear(512, OUTPUTS, bias=False)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(layer))
    module = next(n.module for n in quantizer_nodes(model) if n.module.site.slot == "weight")
    codes, q = module.export(layer.weight.detach())
    held = {"codes": codes, "c": q.scale, "d": q.outer, "k": -q.minimum, "e": q.outer_minimum}
    return qfunc.emulate(target)(model)(x), {name: t.double().tolist() for name, t in held.items()}


def inputs(x: list[float]) -> tuple[list[int], list[Fraction]]:
    """Codes and scales of a token in blocks of 256."""
    codes, scales = [], []
    for start in range(0, 512, 256):
        part = [Fraction(v) for v in x[start : start + 256]]
        r = rounded(127 / max(map(abs, part)))
        scales.append(rounded(1 / r))
        codes += [max(-127, min(127, round(rounded(v * r)))) for v in part]
    return codes, scales


def sums(q: list[int], w: dict[str, Any], o: int, span: Any) -> tuple[Fraction, Fraction]:
    """The sums of c q_w q_x and of k q_x over some entries, rounded to float32."""
    codes, c, k = (w[name][o] for name in ("codes", "c", "k"))
    products = sum(int(c[i // 16] * codes[i]) * q[i] for i in span)
    return rounded(Fraction(products)), rounded(Fraction(sum(int(k[i // 16]) * q[i] for i in span)))


def of_tiles(x: list[float], w: dict[str, Any], o: int) -> float:
    """One lane: the minimum is fused to d acc, then both to v."""
    (q, s), v = inputs(x), Fraction(0)
    for b in range(2):
        acc, a = sums(q, w, o, range(256 * b, 256 * b + 256))
        d, e = Fraction(w["d"][o][16 * b]), Fraction(w["e"][o][16 * b])
        v = rounded(v + s[b] * rounded(rounded(acc * d) - e * a))
    return float(v)


def of_lanes(x: list[float], w: dict[str, Any], o: int) -> float:
    """Four lanes, each with its minimums before its products."""
    (q, s), v = inputs(x), [Fraction(0)] * 4
    for b in range(2):
        d, e = rounded(Fraction(w["d"][o][16 * b]) * s[b]), rounded(Fraction(w["e"][o][16 * b]) * s[b])
        block = range(256 * b, 256 * b + 256)
        for lane in range(4):
            v[lane] = rounded(v[lane] - e * sums(q, w, o, [i for i in block if i // 64 % 4 == lane])[1])
        for lane in range(4):
            v[lane] = rounded(v[lane] + d * sums(q, w, o, [i for i in block if i // 16 % 4 == lane])[0])
    return float(rounded(rounded(v[0] + v[2]) + rounded(v[1] + v[3])))


def of_parts(x: list[float], w: dict[str, Any], o: int, part: int) -> float:
    """One lane of products and one of minimums, in parts of a block."""
    (q, s), v, m = inputs(x), Fraction(0), Fraction(0)
    for start in range(0, 512, part):
        b = start // 256
        d, e = rounded(Fraction(w["d"][o][16 * b]) * s[b]), rounded(Fraction(w["e"][o][16 * b]) * s[b])
        acc, a = sums(q, w, o, range(start, start + part))
        v, m = rounded(v + d * acc), rounded(m - e * a)
    return float(rounded(v + m))


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "tiled"), [((3,), True), ((2,), False), ((2, 2), True), ((1, 1), False), ((), False)])
def test_many_tokens_are_added_in_tiles(shape: tuple[int, ...], tiled: bool) -> None:
    """Those of all sequences are counted together."""
    x = torch.randn(*shape, 512, generator=torch.Generator().manual_seed(1))
    found, w = emulated(TILED, x)
    value, rows = of_tiles if tiled else of_lanes, x.reshape(-1, 512).double().tolist()
    assert found.detach().reshape(-1, OUTPUTS).tolist() == [[value(row, w, o) for o in range(OUTPUTS)] for row in rows]


@pytest.mark.thorough
@pytest.mark.parametrize("length", [1, 2, 3])
def test_sequences_apart_have_groups_of_their_own(length: int) -> None:
    """Of each of two sequences, the last token of an odd number is added in whole blocks."""
    x = torch.randn(2, length, 512, generator=torch.Generator().manual_seed(2))
    found, w = emulated(APART, x)
    wanted = [
        [[of_parts(row, w, o, 128 if t < length // 2 * 2 else 256) for o in range(OUTPUTS)] for t, row in enumerate(sequence)]
        for sequence in x.double().tolist()
    ]
    assert found.tolist() == wanted


def refusal(**changes: Any) -> str:
    """The error of a product."""
    with pytest.raises(SpecError) as caught:
        DynamicProduct(INPUT, scales="inside", **changes)
    return str(caught.value)


def test_sums_that_no_engine_has_are_refused() -> None:
    with pytest.raises(SpecError) as both:
        MinimumSums(rounded=FLOAT16, inside=True)
    assert str(both.value) == (
        "MinimumSums.rounded: found Float(5, mantissa=10), wanted None for minimums inside of v. Drop one of them."
    )
    assert refusal(groups=TokenGroups(4, part=64), tiles=TokenTiles(8)) == (
        "DynamicProduct.groups: found TokenGroups(4, part=64), wanted None with tiles, or with minimums inside. "
        "Drop one of them."
    )
    assert refusal(sequences="apart") == (
        "DynamicProduct.sequences: found 'apart', wanted \"together\", unless groups or tiles count tokens. "
        "Drop it, or give groups or tiles."
    )
    assert refusal(tiles=TokenTiles(8), fma=False) == (
        'DynamicProduct.tiles: found TokenTiles(8), wanted None, except for fused sums in Lanes, scales="inside" and '
        'denormals. Drop it, or give scales="inside".'
    )
