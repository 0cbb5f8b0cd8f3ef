"""Transformers of Hugging Face's model families, in small configurations with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_SMALL: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
_GROUPED = _SMALL | {"num_key_value_heads": 2, "head_dim": 16, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1}
_GROUPED = _GROUPED | {"eos_token_id": 2}
_VISION: dict[str, Any] = {k: v for k, v in _SMALL.items() if k != "vocab_size"} | {"image_size": 64, "patch_size": 16}
_DETR: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 7, "use_pretrained_backbone": False, "num_labels": 5,
}  # fmt: skip
# name -> (model class, config class, arguments of the config)
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", _SMALL),
    "roberta": ("RobertaModel", "RobertaConfig", _SMALL),
    "electra": ("ElectraModel", "ElectraConfig", _SMALL | {"embedding_size": 32}),
    "albert": ("AlbertModel", "AlbertConfig", _SMALL | {"embedding_size": 32}),
    "mobilebert": ("MobileBertModel", "MobileBertConfig", _SMALL | {"embedding_size": 32, "intra_bottleneck_size": 32}),
    "deberta_v2": ("DebertaV2Model", "DebertaV2Config", _SMALL),
    "distilbert": ("DistilBertModel", "DistilBertConfig",
                   {"vocab_size": 211, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             {"vocab_size": 211, "n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False, "bos_token_id": 1,
              "eos_token_id": 2}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", _GROUPED),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _GROUPED),
    "t5_encoder": ("T5EncoderModel", "T5Config",
                   {"vocab_size": 211, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}),
    "whisper_encoder": ("WhisperModel", "WhisperConfig",
                        {"vocab_size": 211, "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4,
                         "num_mel_bins": 16, "decoder_layers": 1, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
                         "decoder_ffn_dim": 128,
                         "max_source_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                         "decoder_start_token_id": 1}),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config",
                 {k: v for k, v in _SMALL.items() if k != "vocab_size"}
                 | {"conv_dim": [32] * 3, "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3], "num_feat_extract_layers": 3,
                    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}),
    "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", _VISION),
    "vit": ("ViTModel", "ViTConfig", _VISION),
    "segformer": ("SegformerForSemanticSegmentation", "SegformerConfig",
                  {"depths": [1] * 4, "hidden_sizes": [16, 32, 48, 64], "decoder_hidden_size": 32, "num_labels": 5}),
    "detr": ("DetrForObjectDetection", "DetrConfig", _DETR),
}  # fmt: skip


def make(name: str) -> nn.Module:
    """Return the named model."""
    if name == "detr":
        from torchvision_ops import shim

        shim()
    import transformers

    model, config, given = _MODELS[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**given))
    held: nn.Module = made.get_encoder() if name == "whisper_encoder" else made
    if name == "wav2vec2":
        from torch.nn.utils import parametrize

        for module in held.modules():
            if parametrize.is_parametrized(module):
                parametrize.remove_parametrizations(module, "weight")
    return held


def inputs(name: str, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return tokens, images, spectra or audio."""
    if name in ("vit", "clip_vision", "segformer", "detr"):
        return (torch.randn(batch, 3, 64, 64, generator=generator),)
    if name == "whisper_encoder":
        return (torch.randn(batch, 16, 64, generator=generator),)
    if name == "wav2vec2":
        return (torch.randn(batch, 1600, generator=generator),)
    return (torch.randint(3, 211, (batch, 24), generator=generator),)
