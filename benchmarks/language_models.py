"""Perplexities of a small Llama with weights of few bits, rounded by qfunc, llm-compressor and AutoRound in one run.

python benchmarks/language_models.py --data DIR [--bits 4 3 2] [--blocks 32 128] [--adaround ITERATIONS]

DIR keeps the trained model. All methods get the same 128 sequences of 128 bytes, and quantize all linear layers, the last one
too, to unsigned integers with a zero point for each block of inputs; activations stay float. `llmcompressor` and `auto-round`
are optional: rows of tools that are not installed are left out. Each row prints the perplexity on unseen text, and seconds of
the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from llama import EPSILON, GROUPS, HEADS, INNER, LAYERS, LENGTH, WIDTH, WORDS, Llama, perplexity, sequences, texts, trained
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.specs import MATMUL_4BITS_AFFINE

SEQUENCES, SEED = 128, 12345


def of_qfunc(model: Llama, text: Tensor, bits: int, block: int, adaround: int) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of qfunc: nearest, GPTQ, and AdaRound with a number of iterations."""
    batches = list(sequences(text, SEQUENCES, SEED).split(16))
    dynamic = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(model, (batches[0],), dynamic_shapes=dynamic, strict=False)
    start = time.process_time()
    target = targets.onnxruntime_nbits(bits, block, 0, MATMUL_4BITS_AFFINE)
    nearest = qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(target)(program))
    yield "qfunc, nearest", nearest, time.process_time() - start
    steps: dict[str, Callable[[Any], Any]] = {
        "qfunc, gptq": qfunc.gptq(batches, progress=False),
        "qfunc, gptq(passes=2)": qfunc.gptq(batches, progress=False, passes=2),
        "qfunc, gptq(damping=0.05, passes=2)": qfunc.gptq(batches, progress=False, damping=0.05, passes=2),
    }
    if adaround:
        method = qfunc.adaround(iterations=adaround, rounding_lr=0.05, batch=8)
        steps[f"qfunc, adaround({adaround})"] = qfunc.reconstruct(method, batches, progress=False)
    for name, step in steps.items():
        start = time.process_time()
        yield name, step(nearest), time.process_time() - start


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


def of_llm_compressor(model: Llama, text: Tensor, bits: int, block: int) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of llm-compressor: nearest, and GPTQ with its defaults."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    ids = sequences(text, SEQUENCES, SEED)
    data = Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()})
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=False, strategy="group", group_size=block)
    for name, modifier in (("nearest", QuantizationModifier), ("GPTQ", GPTQModifier)):
        with tempfile.TemporaryDirectory() as folder:
            made, start = _of_transformers(model, Path(folder)), time.process_time()
            recipe = modifier(config_groups={"all": QuantizationScheme(targets=["Linear"], weights=weights)}, ignore=[])
            given = {"max_seq_length": LENGTH, "num_calibration_samples": SEQUENCES}
            oneshot(model=made, processor=_tokenizer(), dataset=data, recipe=recipe, **given)
            yield f"llm-compressor, {name}", lambda x, made=made: made(x).logits, time.process_time() - start


def of_auto_round(model: Llama, text: Tensor, bits: int, block: int) -> Iterator[tuple[str, Any, float]]:
    """Yield the row of AutoRound with its defaults but the length of the sequences."""
    from auto_round import AutoRound

    ids = sequences(text, SEQUENCES, SEED)
    data = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        made, start = _of_transformers(model, Path(folder)), time.process_time()
        method = AutoRound(
            made, _tokenizer(), bits=bits, group_size=block, sym=False, dataset=data, seqlen=LENGTH, nsamples=SEQUENCES,
            layer_config={"lm_head": {"bits": bits, "group_size": block, "sym": False}}, device_map="cpu",
            enable_torch_compile=False,
        )  # fmt: skip
        made, _ = method.quantize()
        yield "AutoRound", lambda x: made(x).logits, time.process_time() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 3, 2])
    parser.add_argument("--blocks", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--adaround", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    model, (seen, unseen) = trained(given.data / "llama.pt"), texts()
    print(f"float: {perplexity(model, unseen):.4f}", flush=True)
    for of in (partial(of_qfunc, adaround=given.adaround), of_llm_compressor, of_auto_round):
        for block, bits in itertools.product(given.blocks, given.bits):
            with contextlib.suppress(ImportError), contextlib.redirect_stdout(sys.stderr):
                for name, quantized, seconds in of(model, seen, bits, block):
                    row = f"W{bits}, blocks of {block}: {name}: {perplexity(quantized, unseen):.4f}, {seconds:.1f} s"
                    print(row, file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
