"""A Llama quantized by llm-compressor and by AutoRound, with their defaults: (name of the row, logits, seconds) each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from language_model_cells import Cell
from llama import EPSILON, GROUPS, HEADS, INNER, LAYERS, LENGTH, WIDTH, WORDS, Llama
from torch import Tensor
from torchvision_ops import shim

shim()  # transformers imports torchvision where it is installed


def of_llm_compressor(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of llm-compressor: nearest, and GPTQ."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    data = Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()})
    scheme = {"targets": ["Linear"], "weights": QuantizationArgs(**cell.weights)}
    if cell.inputs is not None:
        scheme["input_activations"] = QuantizationArgs(**cell.inputs)
    for name, modifier in (("nearest", QuantizationModifier), ("GPTQ", GPTQModifier)):
        with tempfile.TemporaryDirectory() as folder:
            made, start = _of_transformers(model, Path(folder)), of_the_processor()
            recipe = modifier(config_groups={"all": QuantizationScheme(**scheme)}, ignore=[])
            given = {"max_seq_length": LENGTH, "num_calibration_samples": len(ids)}
            oneshot(model=made, processor=_tokenizer(), dataset=data, recipe=recipe, **given)
            yield f"llm-compressor, {name}", lambda x, made=made: made(x).logits, of_the_processor() - start


def of_auto_round(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the row of AutoRound, in float32 and without a compiler, which take less time here than its defaults."""
    from auto_round import AutoRound

    data = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        made, start = _of_transformers(model, Path(folder)), of_the_processor()
        method = AutoRound(
            made, tokenizer=_tokenizer(), dataset=data, seqlen=LENGTH, nsamples=len(ids), device_map="cpu",
            layer_config={"lm_head": dict(cell.auto_round)}, amp=False, enable_torch_compile=False, **cell.auto_round,
        )  # fmt: skip
        made, _ = method.quantize()
        seconds, made = of_the_processor() - start, made.float()  # it returns bfloat16
        yield "AutoRound", lambda x: made(x).logits, seconds


def of_the_processor() -> float:
    """Return the seconds that this process and its children have taken."""
    return sum(os.times()[:4])


def _of_transformers(model: Llama, folder: Path) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=GROUPS, rms_norm_eps=EPSILON, max_position_embeddings=LENGTH, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    made = transformers.LlamaForCausalLM(config)
    made.load_state_dict(model.state_dict())
    made.save_pretrained(folder)
    return transformers.LlamaForCausalLM.from_pretrained(folder).eval()


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {chr(i + 256): i for i in range(WORDS)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token=chr(256))), pad_token=chr(256))


__all__ = ["of_auto_round", "of_llm_compressor", "of_the_processor"]
