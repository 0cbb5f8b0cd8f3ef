"""targets.gguf of decoders against llama.cpp itself: every bit of the logits of whole decoders, and text by its tokenizer."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, EmulationError, VerifyError
from qfunc.lowering.artifact import Artifact, digests
from qfunc.specs import DecoderConfig, edit
from qfunc.targets.ggml.llama_cpp.session import packed, unpacked
from qfunc.targets.runtimes import LlamaCppRunner, with_tokenizer
from tests.lowering.gguf.decoders import CachedNetwork, Network, calibrated, decoder, tokens
from tests.lowering.gguf.ggml_graphs import INSTALLED, other_process, tokenized

wide = INSTALLED and not LlamaCppRunner().comparable()
needs_llama = pytest.mark.skipif(not wide, reason="llama-cpp-python is not installed, or built without AVX-512")
needs_tokenizers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("gguf", "tokenizers", "transformers")),
    reason="gguf, tokenizers or transformers is not installed",
)


@needs_llama
@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_logits_are_those_of_llama_cpp(architecture: str, kind: str) -> None:
    """Sequences that are computed key by key and in tiles; a tied head with Q5_0 and Q5_1."""
    d = decoder(architecture, head_size=32 if architecture == "qwen3" else 16)
    model, target, _ = calibrated(d, kind, tied=kind in ("Q5_0", "Q5_1"))

    report = qfunc.verify(target)(model, [tokens(2, n, d) for n in (1, 2, 37, 64, 150)])

    assert report.agreement == "bit-exact: 0 of 48,768 elements differ"
    simulated = next(r for r in report.rows if r.kind == "simulation")
    assert simulated.mismatches > simulated.elements / 2  # the simulation has another order of sums


WIDE = {"width": 256, "inner": 512, "head_size": 64, "vocabulary": 104}
NARROW = {"width": 96, "inner": 256, "head_size": 24, "vocabulary": 100}
"""256 divides the rows of the last product of a block only, 8 not all outputs, and the scale of scores is no power of two."""
DRAWN = [
    ("Q4_K", "llama", WIDE), ("Q5_K", "qwen2", WIDE), ("Q6_K", "qwen3", WIDE), ("Q3_K", "llama", WIDE),
    ("Q2_K", "qwen2", WIDE), ("Q4_K_M", "qwen3", {**WIDE, "blocks": 4}), ("Q3_K_M", "llama", NARROW),
    ("Q5_K", "llama", NARROW), ("Q2_K", "qwen3", NARROW),
]  # fmt: skip


@needs_llama
@pytest.mark.parametrize(("kind", "architecture", "sizes"), DRAWN)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_k_types_are_those_of_llama_cpp(kind: str, architecture: str, sizes: dict[str, int], tied: bool) -> None:
    """Batches of fewer tokens than a tile and of more, of no whole group and of several."""
    d = decoder(architecture, tied=tied, **sizes)
    model, target, _ = calibrated(d, kind, tied=tied)

    report = qfunc.verify(target)(model, [tokens(2, n, d) for n in (1, 7, 8, 70)])

    assert report.agreement == f"bit-exact: 0 of {2 * 86 * d.vocabulary:,} elements differ"


def answering(d: DecoderConfig, kind: str, length: int) -> tuple[Any, Any, Any]:
    """(decoder with its cache, target, calibrated model)."""
    found = qfunc.decoder(length)(CachedNetwork(d, d.tied).eval())
    target, prompts = targets.gguf(kind, d), [found.inputs(tokens(2, n, d)) for n in (7, 9)]
    return found, target, qfunc.calibrate(prompts, progress=False)(qfunc.quantize(target)(found.program))


STEPS = [
    ("Q8_0", "llama", {}), ("Q4_0", "qwen2", {}), ("Q5_1", "qwen3", {"head_size": 32}), ("Q4_K", "llama", WIDE),
    ("Q4_K_M", "qwen3", {**WIDE, "blocks": 4}), ("Q6_K", "qwen2", {**WIDE, "tied": True}),
]  # fmt: skip


@needs_llama
@pytest.mark.parametrize(("kind", "architecture", "sizes"), STEPS)
def test_answers_token_by_token_are_those_of_llama_cpp(kind: str, architecture: str, sizes: dict[str, Any]) -> None:
    """Prompts that are computed key by key and in tiles; logits, keys and values of each step, and the tokens."""
    d = decoder(architecture, **sizes)
    found, target, model = answering(d, kind, 80)

    for length in (1, 9, 64):
        report = qfunc.verify_tokens(target, 4)(model, found.inputs(tokens(2, length, d)))
        assert report.first is None
        assert report.report.agreement.startswith("bit-exact: 0 of ")


@needs_llama
def test_answers_after_more_tokens_than_a_cache_of_256() -> None:
    """From there on, llama.cpp divides the keys of a single token among its threads."""
    d = decoder("llama")
    found, target, model = answering(d, "Q8_0", 300)

    report = qfunc.verify_tokens(target, 3)(model, found.inputs(tokens(1, 255, d)))

    assert report.first is None
    assert report.report.agreement.startswith("bit-exact: 0 of ")


@needs_llama
def test_the_file_answers_as_the_emulation() -> None:
    """By `generate`; a prompt at once and the same tokens one by one leave the same cache: Q8_0 has one order of sums."""
    d = decoder("llama")
    found, target, model = answering(d, "Q8_0", 24)
    emulated, prompt = qfunc.emulate(target)(model), found.inputs(tokens(2, 5, d))
    run = LlamaCppRunner().loaded(qfunc.deploy(target)(model))

    answers = [qfunc.generate(8, progress=False)(m, prompt) for m in (emulated, run)]
    assert torch.equal(*answers)

    ids, _, *state = prompt
    for at in range(5):
        logits, *state = emulated(ids[:, at : at + 1], torch.full((2, 1), at), *state)
    whole, *cache = emulated(*prompt)
    assert torch.equal(logits[:, -1], whole[:, -1])
    assert all(torch.equal(a, b) for a, b in zip(state, cache, strict=True))


def test_states_of_other_forms_are_refused() -> None:
    """A copied state has a number at its start, the positions, and the size of each row; one other byte of these is refused."""
    cache = [np.float32(np.random.default_rng(i).integers(-8, 8, (2, 6, 4))) for i in range(4)]
    state = packed(cache, 5, True)

    for a, b in zip(unpacked(state, 5, cache, True), cache, strict=True):
        np.testing.assert_array_equal(a, b)
    for place in (0, 12, 16, len(state) - 1 - 2 * 5 * 8 - 12):
        changed = bytearray(state)
        changed[place] ^= 1
        with pytest.raises(VerifyError) as caught:
            unpacked(bytes(changed) + b"\0", 5, cache, True)
        assert str(caught.value) == (
            f"LlamaCppRunner: found a state of {len(state) + 1} bytes, wanted that of llama.cpp 0.3.36 for this cache. "
            "Install llama-cpp-python 0.3.36, or compare whole sequences, from a model exported with input_ids only."
        )


def test_other_inputs_than_tokens_and_a_cache_are_refused() -> None:
    d = decoder("llama")

    class Masked(Network):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.lm_head(self.model(ids) * mask)  # type: ignore[no-any-return]

    x = (tokens(2, 7, d), torch.ones(2, 7, 1))
    target = targets.gguf("Q8_0", d)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Masked(d).eval()))
    with pytest.raises(EmulationError) as caught:
        qfunc.emulate(target)(model)
    assert str(caught.value) == (
        "emulate, llama: found 2 inputs, wanted token ids, alone or with positions and 4 tensors of a cache. "
        "Export the model with input_ids only and use_cache=False, or pass qfunc.decoder(length)(model).program."
    )


@needs_llama
def test_a_head_in_float_is_compared_as_such() -> None:
    """llama.cpp adds products in float32 in an order that is not emulated: nothing is called bit-exact then."""
    d = decoder("llama")
    target = edit.skip(edit.op("linear") & edit.name("lm_head"))(calibrated(d, "Q8_0")[1])
    network = calibrated(d, "Q8_0")[2]
    model = qfunc.calibrate([tokens(2, 7, d)], progress=False)(qfunc.quantize(target)(network))

    report = qfunc.verify(target)(model, [tokens(2, 9, d)])

    assert "bit-exact" not in report.agreement
    (output,) = [r for r in report.rows if r.kind == "output"]
    assert output.largest_lsb < 1


@needs_llama
def test_threads_change_no_logit() -> None:
    d = decoder("llama")
    model, target, _ = calibrated(d, "Q4_0")
    artifact = qfunc.deploy(target)(model)

    one, two = (LlamaCppRunner(threads=n).run(artifact, [tokens(1, 130, d)])[0] for n in (1, 2))

    np.testing.assert_array_equal(one, two)


def tokenizer(*steps: Any, special: str = "<|end|>") -> Any:
    """A BPE of bytes with a few merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(list(steps)), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=[special], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["the theme of the other thing", "in 2024 it's there"] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=special, bos_token=special)


def steps(name: str) -> tuple[Any, ...]:
    """The pre-tokenizers of a family."""
    from tokenizers import Regex, pre_tokenizers

    if name in ("gpt-2", "smollm"):
        own = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return (own,) if name == "gpt-2" else (pre_tokenizers.Digits(individual_digits=True), own)
    digits = r"\p{N}{1,3}" if name == "llama-bpe" else r"\p{N}"
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    pattern = f"{words}|{digits}" + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def deployed() -> Artifact:
    """A decoder with ids for more tokens than the tokenizers have."""
    model, target, _ = calibrated(decoder("llama", vocabulary=320, blocks=1), "Q8_0")
    return qfunc.deploy(target)(model)


@needs_tokenizers
@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_llama_cpp_tokenizes_as_transformers(name: str, tmp_path: Path) -> None:
    """Words, digits, apostrophes, white space, other scripts and a special token."""
    theirs = tokenizer(*steps(name))
    artifact = with_tokenizer(deployed(), theirs)

    assert artifact.report["files"] == digests(artifact.files)
    if not INSTALLED:
        pytest.skip("llama-cpp-python is not installed")
    (tmp_path / "model.gguf").write_bytes(artifact.files["model.gguf"])
    texts = ["the other theme", "it's in 20245, THERE'LL be", "  two\n\n spaces \t", "naïve 東京 ½", "end<|end|>the"]
    found, end = other_process().apply(tokenized, (str(tmp_path / "model.gguf"), texts))
    assert found == [theirs.encode(text, add_special_tokens=False) for text in texts]
    assert end == theirs.eos_token_id


@needs_tokenizers
@needs_llama
def test_a_tokenizer_changes_no_logit() -> None:
    plain, ids = deployed(), tokens(1, 20, decoder("llama"))
    full = with_tokenizer(plain, tokenizer(*steps("smollm")))

    np.testing.assert_array_equal(LlamaCppRunner().run(full, [ids])[0], LlamaCppRunner().run(plain, [ids])[0])


@needs_tokenizers
def test_tokenizers_that_llama_cpp_would_split_otherwise_are_refused() -> None:
    from tokenizers import pre_tokenizers

    with pytest.raises(DeployError) as other:
        with_tokenizer(deployed(), tokenizer(pre_tokenizers.Whitespace()))
    with pytest.raises(DeployError) as slow:
        with_tokenizer(deployed(), object())
    small = calibrated(decoder("llama", blocks=1), "Q8_0")
    with pytest.raises(DeployError) as large:
        with_tokenizer(qfunc.deploy(small[1])(small[0]), tokenizer(*steps("gpt-2")))
    wanted = "wanted a fast tokenizer, BPE of bytes, split as in gpt-2, smollm, llama-bpe, qwen2. "
    wanted += "Add it with the tools of llama.cpp."
    kind = type(tokenizer(*steps("gpt-2"))).__name__
    assert str(other.value) == f"with_tokenizer: found {kind}, BPE, split by ['Whitespace'], {wanted}"
    assert str(slow.value) == f"with_tokenizer: found object, slow, split by [], {wanted}"
    assert str(large.value) == (
        "with_tokenizer: found token 278, wanted ids below 96, the vocabulary of the file. Give the tokenizer of the model."
    )


@needs_tokenizers
@needs_llama
@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
def test_the_program_of_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a small random Llama of transformers in place of the one that it loads."""
    import transformers

    page = (Path(__file__).parents[3] / "docs/llama_cpp.md").read_text()
    (program,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}

    def small(name: str, use_cache: bool, **_: Any) -> Any:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, use_cache=use_cache))

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", small)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: tokenizer(*steps("smollm")))
    monkeypatch.chdir(tmp_path)

    exec(compile(program, "docs/llama_cpp.md", "exec"), {"__name__": "page"})

    assert capsys.readouterr().out.startswith("bit-exact: 0 of ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.gguf", "qfunc.json"]


@needs_llama
def test_what_is_damaged_or_foreign_is_named() -> None:
    d = decoder("llama", blocks=1)
    model, target, _ = calibrated(d, "Q8_0")
    artifact = qfunc.deploy(target)(model)
    cut = Artifact({**artifact.files, "model.gguf": artifact.files["model.gguf"][:2000]})

    def refusal(given: Artifact, *inputs: Any) -> str:
        with pytest.raises(VerifyError) as caught:
            LlamaCppRunner().run(given, inputs)
        return str(caught.value)

    assert refusal(cut, tokens(1, 4, d)) == (
        "LlamaCppRunner, model.gguf: found a file that llama.cpp rejects, wanted a model. "
        "Deploy the model again: the file is damaged, or its decoder is not that of the model."
    )
    assert refusal(artifact, torch.ones(1, 4)) == (
        "LlamaCppRunner, inputs: found float32 [1, 4], wanted token ids [B, T], alone or with consecutive positions [B, T] and "
        "a cache. Export the model with input_ids only, or pass qfunc.decoder(length)(model).program."
    )
    assert refusal(artifact, torch.full((1, 4), 96)) == (
        "LlamaCppRunner, inputs: found ids in [96, 96], wanted [0, 95]. Give ids of the model's tokenizer."
    )
    for first, found in ((-1, -1), (2, 5)):
        places = torch.arange(first, first + 4)[None]
        assert refusal(artifact, tokens(1, 4, d), places, torch.zeros(1, 2, 5, 16), torch.zeros(1, 2, 5, 16)) == (
            f"LlamaCppRunner, inputs: found the position {found}, wanted consecutive positions from 0 to 4, as the cache has "
            "5. Pass the positions of decoder.inputs(ids), and after them last + 1; or write a larger qfunc.decoder(length)."
        )


@pytest.mark.skipif(INSTALLED, reason="llama-cpp-python is installed")
def test_without_the_package_the_runner_says_what_to_install() -> None:
    with pytest.raises(VerifyError) as caught:
        LlamaCppRunner().run(Artifact({"qfunc.json": json.dumps({}).encode()}), [])
    assert str(caught.value) == (
        "LlamaCppRunner: found the package llama-cpp-python is not installed, wanted llama-cpp-python 0.3.36 or later. "
        "Install qfunc-torch[llamacpp], or pass runtime=run, where run(artifact, inputs) -> outputs."
    )
