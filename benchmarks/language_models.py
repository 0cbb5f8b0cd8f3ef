"""Perplexities of a small Llama in formats of few bits, rounded by qfunc, llm-compressor and AutoRound in one run.

python benchmarks/language_models.py --data DIR [--only WORD ...] [--tools NAME ...]

DIR keeps the trained model.  All methods get the same 128 sequences of 128 bytes, and quantize all linear layers, the last
one too.  `llmcompressor` and `auto-round` are optional: rows of tools that are not installed are left out.  Each row is printed
with the perplexity of unseen text, and seconds of the processor; at the end comes the table of docs/rounding.md.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from language_model_cells import CELLS, Cell
from language_model_tools import of_auto_round, of_llm_compressor
from llama import Llama, perplexity, sequences, texts, trained
from torch import Tensor

import qfunc

SEQUENCES, SEED = 128, 12345


def _program(model: Llama, batches: list[Tensor]) -> Any:
    return torch.export.export(model, (batches[0],), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)


def _nearest(network: Any, batches: list[Tensor], cell: Cell) -> Any:
    return qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(cell.target)(network))


def of_qfunc(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of qfunc: nearest, and GPTQ."""
    batches, start = list(ids.split(16)), time.process_time()
    nearest = _nearest(_program(model, batches), batches, cell)
    yield "qfunc, nearest", nearest, time.process_time() - start
    for passes in (0, 2):
        start = time.process_time()
        rounded = qfunc.gptq(batches, progress=False, passes=passes)(nearest)
        yield f"qfunc, gptq(passes={passes})", rounded, time.process_time() - start


def of_float_steps(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of qfunc's changes of the float model: awq and rotate, before nearest and GPTQ."""
    batches = list(ids.split(16))
    for name, step in (("awq", qfunc.awq(cell.target, batches, progress=False)), ("rotate", qfunc.rotate())):
        start = time.process_time()
        nearest = _nearest(step(_program(model, batches)), batches, cell)
        yield f"qfunc, {name}, nearest", nearest, time.process_time() - start
        rounded = qfunc.gptq(batches, progress=False, passes=2)(nearest)
        yield f"qfunc, {name}, gptq(passes=2)", rounded, time.process_time() - start


def of_adaround(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the row of AdaRound, by qfunc."""
    batches, method = list(ids.split(16)), qfunc.adaround(iterations=500, rounding_lr=0.05, batch=8)
    nearest, start = _nearest(_program(model, batches), batches, cell), time.process_time()
    rounded = qfunc.reconstruct(method, batches, progress=False)(nearest)
    yield "qfunc, adaround(500)", rounded, time.process_time() - start


TOOLS = {
    "qfunc": of_qfunc,
    "llm-compressor": of_llm_compressor,
    "float": of_float_steps,
    "adaround": of_adaround,
    "AutoRound": of_auto_round,
}


def table(rows: dict[str, dict[str, tuple[float, float]]]) -> str:
    """Return the table in Markdown, from (perplexity, seconds) by cell and by name of the row."""
    names = list(dict.fromkeys(name for cell in rows.values() for name in cell))
    lines = [["format", *names], ["---"] * (1 + len(names))]
    for cell, found in rows.items():
        lines.append([cell, *("{:.4f}, {:.1f} s".format(*found[name]) if name in found else "-" for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the rows and the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of cells")
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    model, (seen, unseen) = trained(given.data / "llama.pt"), texts()
    ids = sequences(seen, SEQUENCES, SEED)
    print(f"float: {perplexity(model, unseen):.4f}", flush=True)
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for cell in CELLS:
        for tool in given.tools if any(word in cell.name for word in given.only) else ():
            with contextlib.suppress(ImportError), contextlib.redirect_stdout(sys.stderr):
                for name, quantized, seconds in TOOLS[tool](model, ids, cell):
                    row = rows.setdefault(cell.name, {})[name] = perplexity(quantized, unseen), seconds
                    print("{}: {}: {:.4f}, {:.1f} s".format(cell.name, name, *row), file=sys.__stdout__, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
