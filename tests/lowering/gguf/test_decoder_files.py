"""The files of LlamaCppLowering, read by the package gguf: names, hyperparameters, tensors, tokenizers; what is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, EmulationError, SpecError
from qfunc.targets.runtimes import LlamaCppLowering, decoder_config
from tests.lowering.gguf.decoders import Network, calibrated, decoder, tokens

needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
ARCHITECTURES = ("llama", "qwen2", "qwen3")


def reader(files: Any, folder: Path) -> Any:
    """The file, read by the package gguf."""
    import gguf

    (folder / "model.gguf").write_bytes(files["model.gguf"])
    return gguf.GGUFReader(folder / "model.gguf")


@needs_gguf
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tensors_have_the_names_of_the_package_gguf(architecture: str, tmp_path: Path) -> None:
    """Its own table of the names that transformers have."""
    import gguf

    d = decoder(architecture)
    model, target, network = calibrated(d, "Q8_0")
    kind = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, d.blocks)

    found = {t.name: t for t in reader(qfunc.deploy(target)(model).files, tmp_path).tensors}

    wanted = {names.get_name(n, try_suffixes=(".weight", ".bias")): p for n, p in network.named_parameters()}
    assert found.keys() == wanted.keys()
    assert {n: t.shape.tolist() for n, t in found.items()} == {n: list(p.shape[::-1]) for n, p in wanted.items()}
    assert {t.tensor_type.name for t in found.values() if len(t.shape) == 2} == {"Q8_0"}
    assert {t.tensor_type.name for t in found.values() if len(t.shape) == 1} == {"F32"}
    np.testing.assert_array_equal(found["output_norm.weight"].data, network.model.norm.weight.detach().numpy())


@needs_gguf
@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_0"])
def test_blocks_are_those_of_the_package_gguf(kind: str, tmp_path: Path) -> None:
    """Rows of queries and keys in Llama's order: entries i and i + 8 of a head of 16 are neighbours."""
    import gguf

    model, target, network = calibrated(decoder("llama"), kind)

    found = {t.name: t for t in reader(qfunc.deploy(target)(model).files, tmp_path).tensors}

    order = np.arange(16).reshape(2, 8).T.flatten()
    attention = network.model.layers[1].self_attn
    for name, layer, heads in (("q", attention.q_proj, 4), ("k", attention.k_proj, 2), ("v", attention.v_proj, 0)):
        weight = layer.weight.detach().numpy()
        rows = weight.reshape(heads, 16, -1)[:, order].reshape(weight.shape) if heads else weight
        tensor = found[f"blk.1.attn_{name}.weight"]
        np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(rows, tensor.tensor_type))
    table = network.model.embed_tokens.weight.detach().numpy()
    tensor = found["token_embd.weight"]
    np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(table, tensor.tensor_type))


@needs_gguf
def test_biases_of_queries_have_the_order_of_their_rows(tmp_path: Path) -> None:
    """A Llama with biases of attention."""
    torch.manual_seed(0)
    d = decoder("llama", blocks=1)
    network = Network(d).eval()
    projection = network.model.layers[0].self_attn.q_proj
    projection.bias = nn.Parameter(torch.randn(64))
    target = targets.gguf("Q8_0", d)
    model = qfunc.calibrate([tokens(2, 7, d)], progress=False)(qfunc.quantize(target)(network))

    found = {t.name: t for t in reader(qfunc.deploy(target)(model).files, tmp_path).tensors}

    wanted = projection.bias.detach().reshape(4, 2, 8).transpose(1, 2).flatten().numpy()
    np.testing.assert_array_equal(found["blk.0.attn_q.bias"].data, wanted)


@needs_gguf
def test_hyperparameters_are_those_that_llama_cpp_reads(tmp_path: Path) -> None:
    model, target, _ = calibrated(decoder("qwen3", head_size=32, rope_base=1e6, epsilon=1e-5), "Q4_0")

    fields = reader(qfunc.deploy(target)(model).files, tmp_path).fields

    found = {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}
    assert found.pop("qwen3.attention.layer_norm_rms_epsilon") == np.float32(1e-5)
    assert found == {
        "general.architecture": "qwen3",
        "general.quantization_version": 2,
        "qwen3.context_length": 512,
        "qwen3.embedding_length": 64,
        "qwen3.block_count": 2,
        "qwen3.feed_forward_length": 96,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.attention.key_length": 32,
        "qwen3.attention.value_length": 32,
        "qwen3.rope.dimension_count": 32,
        "qwen3.rope.freq_base": 1e6,
        "qwen3.vocab_size": 96,
        "tokenizer.ggml.model": "no_vocab",
    }


@needs_gguf
def test_a_head_that_shares_the_table_is_stored_once(tmp_path: Path) -> None:
    model, target, _ = calibrated(decoder("llama"), "Q8_0", tied=True)

    names = [t.name for t in reader(qfunc.deploy(target)(model).files, tmp_path).tensors]

    assert "token_embd.weight" in names
    assert "output.weight" not in names


@pytest.mark.thorough
def test_the_emulation_is_near_the_simulation() -> None:
    """They differ by codes of inputs, 1/254 of a block each, and by attention in float16: here by 2 % of the largest logit."""
    for architecture in ARCHITECTURES:
        d = decoder(architecture)
        model, target, _ = calibrated(d, "Q8_0")
        ids = tokens(2, 70, d)
        simulated = model(ids)
        assert (qfunc.emulate(target)(model)(ids) - simulated).abs().max() < simulated.abs().max() / 50


class More(nn.Module):
    """A decoder with one more layer at its head."""

    def __init__(self, d: Any) -> None:
        super().__init__()
        inner = Network(d)
        self.model, self.lm_head, self.adapter = inner.model, inner.lm_head, nn.Linear(d.width, d.width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.adapter(self.model(ids)))


class Logits(nn.Module):
    """A decoder that returns probabilities."""

    def __init__(self, d: Any) -> None:
        super().__init__()
        inner = Network(d)
        self.model, self.lm_head = inner.model, inner.lm_head

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.model(ids)).softmax(-1)


def refusal(step: Any, network: nn.Module, d: Any) -> str:
    """The message of `deploy` or `emulate` for a network."""
    target = targets.gguf("Q8_0", d)
    model = qfunc.calibrate([tokens(2, 7, d)], progress=False)(qfunc.quantize(target)(network.eval()))
    with pytest.raises((DeployError, EmulationError)) as caught:
        step(target)(model)
    return str(caught.value)


def test_what_the_architecture_does_not_have_is_refused() -> None:
    d, larger = decoder("llama", blocks=1), decoder("llama", blocks=2)
    assert refusal(qfunc.deploy, More(d), d) == (
        "deploy, llama: found parameter 'adapter.weight', wanted a tensor of the architecture. "
        "Use targets.gguf, which deploys the linear layers of any model."
    )
    assert refusal(qfunc.deploy, Network(d), larger) == (
        "deploy, llama: found no 'blk.1.attn_norm.weight', wanted the tensors of the architecture. "
        "Describe the network by targets.runtimes.decoder_config(config), and export the whole model."
    )
    assert refusal(qfunc.emulate, Network(d), larger) == (
        "emulate, llama: found no 'blk.1.attn_norm.weight', wanted the tensors of the decoder. "
        "Describe the network by targets.runtimes.decoder_config(config), and return its logits only."
    )
    assert refusal(qfunc.emulate, Logits(d), d) == (
        "emulate, llama: found the outputs softmax, wanted lm_head, the logits. Return the logits of all tokens only."
    )


def test_hyperparameters_that_no_decoder_has_are_refused() -> None:
    with pytest.raises(SpecError) as heads:
        decoder("llama", kv_heads=3)
    with pytest.raises(SpecError) as size:
        decoder("llama", head_size=12)
    with pytest.raises(SpecError) as kind:
        LlamaCppLowering("Q2_0", decoder("llama"))
    assert str(heads.value) == "DecoderConfig.kv_heads: found 3, wanted a divisor of 4 heads. Read both from one config."
    assert str(size.value) == (
        "DecoderConfig.head_size: found 12, wanted a multiple of 8. "
        "Smaller rests of a head are rotated in another order, which is not described."
    )
    assert str(kind.value).startswith("LlamaCppLowering.kind: found 'Q2_0', wanted one of 'Q8_0'")


def config(**changes: Any) -> Any:
    """The fields of a configuration of transformers that are read."""
    fields: dict[str, Any] = {
        "model_type": "llama", "hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 96, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "head_dim": None,
    }  # fmt: skip
    return SimpleNamespace(**fields | changes)


def test_a_configuration_gives_the_decoder() -> None:
    assert decoder_config(config()) == decoder("llama")
    assert decoder_config(config(model_type="qwen3", head_dim=32, num_key_value_heads=None)) == decoder(
        "qwen3", head_size=32, kv_heads=4
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "found model_type 'gpt2', wanted llama, qwen2, qwen3. "
         "Use targets.gguf, which deploys the linear layers of any model."),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
         "found rope_type 'yarn', wanted 'default'. Angles that are scaled are not described yet."),
        ({"hidden_act": "gelu"}, "found hidden_act 'gelu', wanted 'silu'. llama.cpp computes SiLU in this architecture."),
        ({"use_sliding_window": True},
         "found use_sliding_window=True, wanted False. Windows of attention are not described yet."),
    ],
)  # fmt: skip
def test_configurations_that_are_not_described_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        decoder_config(config(**changes))
    assert str(caught.value) == f"decoder_config, config: {message}"
