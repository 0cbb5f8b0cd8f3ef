"""Hyperparameters of llama.cpp from a configuration of transformers."""

from __future__ import annotations

from typing import Any

from qfunc.errors import SpecError
from qfunc.specs import DecoderConfig

_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""`model_type` -> `general.architecture`."""


def decoder_config(config: Any) -> DecoderConfig:
    """Return the decoder of llama.cpp for a configuration of transformers: LlamaConfig, Qwen2Config or Qwen3Config.

    Args:
        config: `model.config`.
    Raises:
        SpecError: another model, another activation than SiLU, angles that are scaled, or windows of attention.
    Source: transformers 5.23, modeling_llama.py, modeling_qwen2.py and modeling_qwen3.py.
    """
    kind = getattr(config, "model_type", None)
    if kind not in _ARCHITECTURES:
        wanted = ", ".join(_ARCHITECTURES)
        raise _refused(f"model_type {kind!r}", wanted, "Use targets.gguf, which deploys the linear layers of any model.")
    rope = dict(config.rope_parameters or {})
    if rope.get("rope_type", "default") != "default":
        raise _refused(f"rope_type {rope['rope_type']!r}", "'default'", "Angles that are scaled are not described yet.")
    if config.hidden_act != "silu":
        raise _refused(f"hidden_act {config.hidden_act!r}", "'silu'", "llama.cpp computes SiLU in this architecture.")
    if getattr(config, "use_sliding_window", False):
        raise _refused("use_sliding_window=True", "False", "Windows of attention are not described yet.")
    heads = config.num_attention_heads
    return DecoderConfig(
        architecture=_ARCHITECTURES[kind],
        blocks=config.num_hidden_layers,
        width=config.hidden_size,
        inner=config.intermediate_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        epsilon=float(config.rms_norm_eps),
        rope_base=float(rope["rope_theta"]),
        tied=bool(getattr(config, "tie_word_embeddings", False)),
    )


def _refused(found: str, wanted: str, do: str) -> SpecError:
    return SpecError(where="decoder_config, config", found=found, wanted=wanted, do=do)
