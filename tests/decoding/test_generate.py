"""`generate` on the float model, the simulation, the emulation and the artifact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.decoding.cache import Recorder
from qfunc.errors import VerifyError
from qfunc.lowering.artifact import Artifact
from tests.decoding.decoders import SHAPES, Small, tokens
from tests.decoding.made import Made, decoder, made
from tests.lowering.onnxruntime.test_float_kernels import WIDE

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")


@torch.no_grad()
def answered(model: Small, ids: Tensor, count: int) -> Tensor:
    """The answer without a cache: the whole text again for each token."""
    for _ in range(count):
        logits = model(ids, torch.arange(ids.shape[1])[None], Recorder(), True)[0]
        ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[:, -count:]


def runner(all_of_it: Made):  # type: ignore[no-untyped-def]
    return all_of_it.target.runtime.runner.loaded(all_of_it.artifact)


@pytest.mark.parametrize("name", SHAPES)
def test_the_answer_of_the_float_model_is_that_without_a_cache(name: str) -> None:
    model, small = decoder(name)
    prompt = tokens(3, 5, 7)
    found = qfunc.generate(11, progress=False)(small.module, small.inputs(prompt))
    assert torch.equal(found, answered(model, prompt, 11))
    assert len(set(found.flatten().tolist())) > 5


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_runtime_answers_as_emulated(name: str, kind: str) -> None:
    it = made(name, kind)
    for rows, length in ((3, 5), (1, 1), (2, 9)):
        inputs = it.decoder.inputs(tokens(rows, length, length))
        emulated = qfunc.generate(7, progress=False)(it.emulated, inputs)
        assert torch.equal(qfunc.generate(7, progress=False)(runner(it), inputs), emulated)
        assert emulated.shape == (rows, 7)


@exact
def test_drawn_answers_are_those_of_the_generator() -> None:
    it, generator = made("llama"), torch.Generator().manual_seed(3)
    before, inputs = generator.get_state(), it.decoder.inputs(tokens(4, 5))
    drawn = [
        qfunc.generate(8, temperature=0.8, generator=generator, progress=False)(m, inputs) for m in (it.emulated, runner(it))
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(generator.get_state(), before)
    other = torch.Generator().manual_seed(4)
    assert not torch.equal(qfunc.generate(8, temperature=0.8, generator=other, progress=False)(it.emulated, inputs), drawn[0])


def test_draws_have_the_probabilities_of_the_softmax() -> None:
    """4000 rows of one token: each frequency is within five standard deviations, sqrt(p (1 - p) / 4000), of softmax(l / t)."""
    logits = torch.tensor([0.0, 1.0, 2.0])
    inputs = torch.zeros(4000, 1, dtype=torch.int64), torch.zeros(4000, 1, dtype=torch.int64), torch.zeros(4000, 1, 2, 1)
    draw = qfunc.generate(1, temperature=2.0, generator=torch.Generator().manual_seed(0), progress=False)
    drawn = draw(lambda given: (logits.expand(4000, 1, 3), *given[2:]), inputs)
    expected = torch.tensor([1.0, 2.718281828**0.5, 2.718281828])
    expected = expected / expected.sum()
    found = torch.bincount(drawn.flatten(), minlength=3) / 4000
    assert bool(((found - expected).abs() < 5 * (expected * (1 - expected) / 4000).sqrt()).all())


def test_a_simulation_in_training_mode_answers_in_evaluation_mode() -> None:
    it = made("llama")
    inputs = it.decoder.inputs(tokens(2, 5))
    simulated = qfunc.generate(6, progress=False)(it.calibrated, inputs)
    assert simulated.shape == (2, 6)
    assert it.calibrated.training is made("llama").calibrated.training


PROMPT = (tokens(2, 5), torch.arange(5).expand(2, 5), torch.zeros(2, 2, 16, 8))
PASS = "Pass decoder.module, or what was made of decoder.program, with decoder = qfunc.decoder(length)(model)."
DECODER = "a decoder: (ids, positions, *state) -> (logits [N, T, V], *state)"
TAKES = "Linear.forward() takes 2 positional arguments but 4 were given"
REFUSED = [
    (
        {"inputs": PROMPT[:2]},
        "generate, inputs: found tensors of the shapes [[2, 5], [2, 5]], wanted (ids [N, T], positions [N, T], *state). Pass "
        "decoder.inputs(ids), with decoder = qfunc.decoder(length)(model).",
    ),
    (
        {"inputs": PROMPT[0]},
        "generate, inputs: found a Tensor, wanted (ids [N, T], positions [N, T], *state). Pass decoder.inputs(ids), with "
        "decoder = qfunc.decoder(length)(model).",
    ),
    (
        {"model": Artifact({"qfunc.json": b"{}"})},
        "generate: found an Artifact, wanted a model, or a function of [ids, positions, *state]. Load it: "
        "target.runtime.runner.loaded(artifact).",
    ),
    (
        {"model": targets.onnxruntime},
        f"generate: found a Target, wanted a model, or a function of [ids, positions, *state]. {PASS}",
    ),
    ({"model": nn.Linear(3, 2)}, f"generate: found TypeError: {TAKES}, wanted {DECODER}. {PASS}"),
    (
        {"model": lambda given: given},
        f"generate: found outputs of the shapes [[2, 5], [2, 5], [2, 2, 16, 8]], wanted {DECODER}. {PASS}",
    ),
    (
        {"model": lambda given: [torch.zeros(2, 5, 9), given[2][:, :1]]},
        f"generate: found outputs of the shapes [[2, 5, 9], [2, 1, 16, 8]], wanted {DECODER}. {PASS}",
    ),
    ({"count": 0}, "generate, count: found 0, wanted an integer of at least 1. Write 20."),
    (
        {"count": 13},
        "generate: found 17 tokens before the last one, wanted at most 16, the length of the state. Write "
        "qfunc.decoder(17)(model), or ask for fewer tokens.",
    ),
    (
        {"temperature": 0.5},
        "generate: found temperature 0.5 and no generator, wanted a temperature above 0 with a generator, or neither. Pass "
        "temperature=0.8 with generator=torch.Generator().manual_seed(0), or neither.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_what_is_refused(wrong, message) -> None:  # type: ignore[no-untyped-def]
    arguments = {"model": lambda given: given, "inputs": PROMPT, "count": 3} | wrong
    model, inputs = arguments.pop("model"), arguments.pop("inputs")
    with pytest.raises(VerifyError) as e:
        qfunc.generate(**arguments)(model, inputs)
    assert str(e.value) == message
