"""`decoder` on models of `transformers`, in small configurations with random weights: their own answers, and the runtime's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import qfunc
from benchmarks.torchvision_ops import shim
from tests.decoding.made import TARGETS
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = [exact, pytest.mark.filterwarnings("ignore")]  # torch.export warns of its own use of deprecated names

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
    "intermediate_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2}
LAYERS = ["sliding_attention", "full_attention"]
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "smollm": ("LlamaForCausalLM", "LlamaConfig", GROUPED | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED | {"head_dim": 8}),
    "gemma3": (
        "Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED | {"head_dim": 8, "sliding_window": 6, "layer_types": LAYERS},
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", SMALL),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 3}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        GROUPED | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
}  # fmt: skip
BLOCKS = ("llama", "gemma3", "mixtral", "qwen3_moe")
"""The models that are also quantized in blocks: GPT-2's layers are products with a transposed weight, which have no kernel."""


def model(name: str) -> Any:
    """A model with weights six times as large as they are initialised, so that its answers vary."""
    shim()
    transformers = pytest.importorskip("transformers")
    kind, config, arguments = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, kind)(getattr(transformers, config)(**arguments)).eval()
    for parameter in made.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(6)
    return made


@pytest.mark.parametrize(("name", "kind"), [(name, "static") for name in MODELS] + [(name, "dynamic") for name in BLOCKS])
def test_every_answer_is_the_model_s_and_the_runtime_s(name: str, kind: str) -> None:
    own, target, generator = model(name), TARGETS[kind], torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 64, (3, length), generator=generator) for length in (6, 16, 5)]
    small = qfunc.decoder(32)(own)
    answer = own.generate(prompts[0], max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)[:, 6:]
    assert torch.equal(qfunc.generate(9, progress=False)(small.module, small.inputs(prompts[0])), answer)
    mask = (torch.arange(6) >= torch.tensor([[0], [4], [1]])).long()
    answer = own.generate(
        prompts[0], attention_mask=mask, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0
    )[:, 6:]
    ragged = small.inputs(prompts[0], attention_mask=mask)
    assert torch.equal(qfunc.generate(9, progress=False)(small.module, ragged), answer)

    quantized = qfunc.quantize(target)(small.program)
    calibrated = qfunc.calibrate([small.inputs(p) for p in prompts[1:]], progress=False)(quantized)
    report = qfunc.verify_tokens(target, 4)(calibrated, ragged)
    assert (report.tokens, report.mismatches, report.report.disagreements) == (12, 0, ())
    if kind == "static":
        assert report.report.mismatches == 0
