"""rotate: the float function stays, op by op within the roundings of its weights; what cannot be rotated is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.corrections.rotation.hadamard import hadamard, rotation
from qfunc.errors import CalibrationError, SpecError
from qfunc.ops.normalization import rms_norm

WORDS = 20
UNIT = 2.0**-24
"""Weights are rounded once, to float32."""
FLOAT64 = 2.0**-36
"""Sums of at most 2^16 terms in float64, each off by 2^-53."""


class Attention(nn.Module):
    """Causal attention, in one of three spellings, with twice as many queries as keys; queries may be normalized by head."""

    def __init__(self, width: int, each: int, spelling: str, bias: bool) -> None:
        super().__init__()
        self.each, self.spelling = each, spelling
        self.q, self.o = nn.Linear(width, 4 * each, bias=bias), nn.Linear(4 * each, width, bias=bias)
        self.k, self.v = (nn.Linear(width, 2 * each, bias=bias) for _ in range(2))
        self.query_norm = nn.RMSNorm(each)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        n, t, _ = x.shape
        q, k, v = (f(x).view(n, t, -1, self.each).transpose(1, 2) for f in (self.q, self.k, self.v))
        q = self.query_norm(q)
        if self.spelling == "repeated":
            k, v = (u.repeat_interleave(2, 1) for u in (k, v))
        else:
            k, v = (u[:, :, None, :, :].expand(n, 2, 2, t, self.each).reshape(n, 4, t, self.each) for u in (k, v))
        if self.spelling == "products":
            y = torch.softmax(q @ k.transpose(2, 3) / self.each**0.5 + torch.full((t, t), -1e4).triu(1), -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(n, t, -1))


class Llama(nn.Module):
    """One layer of a decoder, with a head that may be tied, and an embedding that may be scaled."""

    def __init__(self, width=8, each=4, spelling="repeated", bias=False, tied=False, scale=1.0, seed=0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.scale, self.word, self.head = scale, nn.Embedding(WORDS, width), nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.word.weight
        self.one, self.attention = nn.RMSNorm(width, eps=1e-5), Attention(width, each, spelling, bias)
        self.two, self.gate, self.up, self.down = (
            nn.RMSNorm(width),
            *(nn.Linear(width, 10, bias=bias) for _ in "ab"),
            nn.Linear(10, width),
        )
        self.last = nn.RMSNorm(width)
        for norm in (self.one, self.two, self.last):
            norm.weight.data.uniform_(-2, 3)
        self.word.weight.data[:, 1] *= 30  # an outlier

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [N, T] -> logits of the last two tokens."""
        x = self.word(ids)
        x = x * self.scale if self.scale != 1 else x
        x = x + self.attention(self.one(x))
        y = self.two(x)
        x = self.down(F.silu(self.gate(y)) * self.up(y)) + x
        return self.head(self.last(x[:, -2:, :]))


class Values(fx.Interpreter):
    """The values of all nodes."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(copy.deepcopy(model).double(), garbage_collect_values=False)
        self.of: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.of[n.name] = value = super().run_node(n)
        return value


def turned(value: Any, by: Tensor) -> Any:
    """Rotate the last axis, in parts of the size of the matrix."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape[-1] % len(by):
        return value
    return (value.unflatten(-1, (-1, len(by))) @ by).flatten(-2)


def worst(model: fx.GraphModule, changed: fx.GraphModule, ids: Tensor, matrices: list[Tensor]) -> tuple[float, set[str]]:
    """The largest ratio of an op's difference to its bound, and the ops whose values are rotated.

    Each op of the changed model gets the original values in float64, rotated as its own inputs are.  A weight that is rounded
    once is off by UNIT |w'|, so that the output of a linear layer is off by UNIT (|w'| |x'| + |b'|).
    """
    old, new = Values(model), Values(changed)
    with torch.inference_mode():
        for values in (old, new):
            values.run(ids, enable_io_processing=False)
        names = [n for n in changed.graph.nodes if n.op == "call_function" and isinstance(old.of.get(n.name), Tensor)]
        wanted, rotated = dict(old.of), set()
        for node in names:
            if not old.of[node.name].is_floating_point():
                continue
            plain = old.of[node.name]
            if node.target is rms_norm:  # its gain moves to the readers
                plain = rms_norm(old.of[node.args[0].name], *node.args[1:2], None, *node.args[3:])
            choices = [old.of[node.name], *(turned(plain, m) for m in matrices)]
            distances = [float((new.of[node.name] - c).abs().max()) for c in choices]
            wanted[node.name] = choices[distances.index(min(distances))]
            if distances.index(min(distances)) and distances[0] > 1e-3:
                rotated.add(node.name)
        constants = {n.name: new.of[n.name] for n in changed.graph.nodes if n.op == "get_attr"}
        excess = 0.0
        for node in names:
            given: Any = fx.map_arg(node.args, lambda n: constants.get(n.name, wanted.get(n.name)))
            found, value = node.target(*given), wanted[node.name]
            read = [float(a.abs().max()) for a in given if isinstance(a, Tensor) and a.is_floating_point() and a.numel()]
            size = value.abs().clamp_min(max(read, default=0.0)) if value.is_floating_point() else value
            relative = FLOAT64
            if node.target is F.linear:
                size, relative = F.linear(*(a.abs() if a is not None else None for a in given)), UNIT + FLOAT64
            elif node.target is F.embedding:
                relative = UNIT
            excess = max(excess, float(((found - value).abs() / (relative * size).clamp_min(1e-300)).max()))
    return excess, rotated


@pytest.mark.thorough
@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(
    sizes=st.sampled_from([(8, 4), (12, 2), (6, 3), (20, 12)]), spelling=st.sampled_from(["repeated", "expanded", "products"]),
    bias=st.booleans(), tied=st.booleans(), scale=st.sampled_from([1.0, 4.0]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_each_op_stays(sizes, spelling, bias, tied, scale, seed):
    network = Llama(*sizes, spelling, bias, tied, scale, seed).eval()
    ids = torch.randint(0, WORDS, (2, 5))
    model = qfunc.capture()(torch.export.export(network, (ids,), strict=False))
    changed = qfunc.rotate(seed % 7)(model)
    excess, rotated = worst(model, changed, ids, [rotation(s, seed % 7) for s in sizes])
    assert excess <= 1
    assert len(rotated) > 5


def test_a_tied_head_gets_the_parameter_that_is_called_by_its_name():
    network = Llama(tied=True).eval()
    given = qfunc.rotate()(torch.export.export(network, (torch.ones(2, 5, dtype=torch.int64),), strict=False))
    read = {str(n.target) for n in given.graph.nodes if n.op == "get_attr"}
    assert read == {name for name, _ in network.named_parameters(remove_duplicate=False)}
    assert given.head.weight is not given.word.weight


@pytest.mark.parametrize("order", [1, 2, *range(4, 52, 4), 60, 68, 76, 96, 576, 960])
def test_hadamard_matrices_are_orthogonal_signs(order):
    matrix = hadamard(order)
    assert matrix is not None
    assert matrix.abs().eq(1).all()
    assert torch.equal(matrix @ matrix.T, order * torch.eye(order, dtype=torch.float64))


def test_orders_without_such_a_matrix():
    assert [n for n in range(1, 100) if n % 4 == 0 and hadamard(n) is None] == [52, 92]  # 25 is no prime; 91 = 7 * 13
    assert all(hadamard(n) is None for n in (3, 6, 9, 10, 18, 50))
    blocks = rotation(52, 0) * 2  # 4 is the largest order that divides 52
    assert torch.equal(blocks.abs().count_nonzero(1), torch.full((52,), 4))
    assert torch.allclose(blocks @ blocks.T, 4 * torch.eye(52, dtype=torch.float64), atol=1e-12, rtol=0)


def test_outliers_spread_and_quantize_better():
    network, ids = Llama(16, 4, seed=3).eval(), torch.randint(0, WORDS, (8, 6), generator=torch.Generator().manual_seed(0))
    rotated, target = qfunc.rotate()(network), targets.academic(4, 4)
    assert rotated.get_parameter("word.weight").abs().max() < network.word.weight.abs().max() / 2
    with torch.no_grad():
        wanted = network(ids)
        errors = [
            float(
                (qfunc.compose(qfunc.quantize(target), qfunc.calibrate([ids], progress=False))(m)(ids) - wanted).square().sum()
            )
            for m in (network, rotated)
        ]
    assert errors[1] < errors[0]


def test_the_model_stays_and_steps_compose():
    network, ids = Llama(32, 8, seed=1).eval(), torch.randint(0, WORDS, (8, 6))
    state = {k: v.clone() for k, v in network.state_dict().items()}
    batches = list(ids.split(4))
    steps = (
        qfunc.quantize(targets.academic(4, 16)),
        qfunc.calibrate(batches, progress=False),
        qfunc.gptq(batches, progress=False),
    )
    composed = qfunc.compose(qfunc.rotate(), *steps)(network)
    with torch.no_grad():
        assert torch.isfinite(composed(ids)).all()
    assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())
    twice = [qfunc.rotate(5)(network).get_parameter("head.weight") for _ in range(2)]
    assert torch.equal(*twice)
    assert not torch.equal(qfunc.rotate(6)(network).get_parameter("head.weight"), twice[0])


class Centred(nn.Module):
    """A stream with a LayerNorm, or with a norm on what is added."""

    def __init__(self, norm: type[nn.Module], after: bool) -> None:
        super().__init__()
        self.word, self.norm, self.layer, self.head = nn.Embedding(9, 4), norm(4), nn.Linear(4, 4), nn.Linear(4, 9)
        self.after, self.last = after, norm(4)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.word(ids)
        y = self.layer(self.norm(x))
        return self.head(self.last(x + (self.norm(y) if self.after else y)))


def refusal(model: Any) -> str:
    """The message."""
    with pytest.raises(SpecError) as e:
        qfunc.rotate()(model)
    return str(e.value)


def test_what_cannot_be_rotated():
    end = (
        ", wanted streams that linear layers write and norms read. Rotate decoders with RMSNorms before their layers, as Llama "
        "or Qwen, or leave this step out."
    )
    assert refusal(Centred(nn.LayerNorm, after=False)) == (
        "rotate: found no RMSNorm reads a sum of linear layers and embeddings" + end
    )
    assert refusal(Centred(nn.RMSNorm, after=True)) == (
        "rotate: found 'norm_1' (rms_norm) computes a residual stream, and rotations do not pass through it; 'add' (add) reads "
        "a norm of a residual stream, where only linear layers may" + end
    )
    assert refusal(nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4), nn.ReLU(), nn.Linear(4, 4))) == (
        "rotate: found '2' (relu) reads a norm of a residual stream, where only linear layers may" + end
    )
    assert refusal(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.RMSNorm(4), nn.Linear(4, 4))) == (
        "rotate: found '1' (relu) computes a residual stream, and rotations do not pass through it" + end
    )
    for seed, found in ((-1, "-1"), (0.5, "0.5"), (nn.ReLU(), "a ReLU")):
        with pytest.raises(SpecError) as e:
            qfunc.rotate(seed)
        assert str(e.value) == f"rotate, seed: found {found}, wanted an integer from 0. Write qfunc.rotate(seed=0)(model)."
    quantized = qfunc.quantize(targets.academic(4, 8))(Llama().eval())
    with pytest.raises(
        CalibrationError, match=r"rotate: found .*, wanted a float model. Run qfunc.rotate before qfunc.quantize"
    ):
        qfunc.rotate()(quantized)
