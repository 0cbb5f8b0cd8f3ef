"""A prompt at once and token by token: the same codes in each quantized tensor, the same state and the same logits.

Scores are the exception that is none: those of keys after the query are of keys that are not written yet, token by token.
The mask hides them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

from qfunc.numerics.sums.blocks import block_product
from qfunc.targets.onnxruntime.matmul import mlas_matmul
from tests.decoding.decoders import HEAD, SHAPES, tokens
from tests.decoding.made import LENGTH, Made, made
from tests.lowering.onnxruntime.test_float_kernels import WIDE

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")
PROMPTS = st.tuples(st.integers(1, 3), st.integers(2, LENGTH), st.integers(0, 2**16))  # rows, tokens, seed


class Values(fx.Interpreter):
    """Runs a graph, and keeps the tensor of each node."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.found: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.found[n.name] = value
        return value


def values(model: fx.GraphModule, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """(outputs, tensors of all nodes)."""
    run = Values(model)
    with torch.inference_mode():
        outputs = run.run(*inputs, enable_io_processing=False)
    return outputs, run.found


def step_by_step(it: Made, ids: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...], list[dict[str, Tensor]]]:
    """(logits of each token, the last state, tensors of each step)."""
    _, _, *state = it.decoder.inputs(ids)
    logits, steps = list[Tensor](), list[dict[str, Tensor]]()
    for place in range(ids.shape[1]):
        (one, *state), found = values(it.emulated, (ids[:, place : place + 1], torch.full((len(ids), 1), place), *state))
        logits.append(one)
        steps.append(found)
    return logits, tuple(state), steps


def along_tokens(whole: Tensor, steps: list[Tensor]) -> Tensor | None:
    """The tensors of the steps along the axis of tokens, or of rows and tokens; None for a tensor without one."""
    axes = [k for k, (n, one) in enumerate(zip(whole.shape, steps[0].shape, strict=True)) if n != one]
    return torch.stack(steps, axes[0] + 1).flatten(axes[0], axes[0] + 1) if axes else None


def hidden(name: str) -> bool:
    """Return True for the scores before the mask."""
    return "attention_matmul" in name or "attention_scaled" in name


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHAPES)
@given(prompt=PROMPTS)
@settings(max_examples=4, deadline=None)
def test_static_scales(name: str, prompt: tuple[int, int, int]) -> None:
    """Not one element differs, in codes and in float tensors between them, but hidden scores."""
    it, ids = made(name), tokens(*prompt)
    (logits, *state), found = values(it.emulated, it.decoder.inputs(ids))
    one_by_one, last, steps = step_by_step(it, ids)
    assert torch.equal(torch.cat(one_by_one, 1), logits)
    assert all(torch.equal(a, b) for a, b in zip(state, last, strict=True))
    compared = 0
    for node, whole in found.items():
        parts = along_tokens(whole, [s[node] for s in steps])
        if parts is None:
            continue
        seen = torch.ones((), dtype=torch.bool)
        if hidden(node):
            seen = torch.arange(LENGTH) <= torch.arange(ids.shape[1])[:, None]
        assert torch.equal(torch.where(seen, whole, 0), torch.where(seen, parts, 0)), node
        compared += whole.numel()
    assert compared > 1000 * ids.numel()


@exact
@pytest.mark.parametrize("name", SHAPES)
def test_static_scales_in_the_runtime(name: str) -> None:
    it, ids = made(name), tokens(2, LENGTH, 5)
    run = it.target.runtime.runner.loaded(it.artifact)
    logits, *state = map(torch.as_tensor, run(it.decoder.inputs(ids)))
    _, _, *last = it.decoder.inputs(ids)
    for place in range(LENGTH):
        one, *last = map(torch.as_tensor, run([ids[:, place : place + 1], torch.full((2, 1), place), *last]))
        assert torch.equal(one[:, 0], logits[:, place])
    assert all(torch.equal(a, b) for a, b in zip(state, last, strict=True))


UNIT = 2.0**-24
"""The unit roundoff of float32."""


def gamma(terms: int) -> float:
    """The bound of the relative error of a sum of products, in any order (Higham, Accuracy and Stability, 3.1)."""
    return terms * UNIT / (1 - terms * UNIT)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@given(prompt=PROMPTS)
@settings(max_examples=4, deadline=None)
def test_dynamic_scales(name: str, prompt: tuple[int, int, int]) -> None:
    """Each linear layer has, for each token, the result that it has for the token alone.

    So have the scores, whose sums have one order for any number of queries.  A single row of weights times values has another
    order: two results differ by at most 2 gamma(n) sum |p| |v|.  That is where the law ends: a later code may be another one.
    """
    it, ids = made(name, "dynamic"), tokens(*prompt)
    _, found = values(it.emulated, it.decoder.inputs(ids))
    products = [n for n in it.emulated.graph.nodes if n.target is block_product]
    assert len(products) == {"llama": 8, "gpt2": 7}[name]
    for node in products:
        x, *others = fx.map_arg(node.args, lambda n: found[n.name])
        for place in range(ids.shape[1]):
            alone = block_product(x[:, place : place + 1], *others)
            assert torch.equal(alone[:, 0], found[node.name][:, place]), node.name
    scores, mixed = (n for n in it.emulated.graph.nodes if n.target is mlas_matmul)
    for node in (scores, mixed):
        p, v, *form = fx.map_arg(node.args, lambda n: found.get(n.name, HEAD**-0.5))  # the factor is a number
        bound = 2 * gamma(p.shape[-1]) * (p.abs().double() @ v.abs().double()) * (node is mixed)
        for place in range(ids.shape[1]):
            alone = mlas_matmul(p[:, :, place : place + 1], v, *form)
            difference = (alone.double()[:, :, 0] - found[node.name].double()[:, :, place]).abs()
            assert bool((difference <= bound[:, :, place]).all())
