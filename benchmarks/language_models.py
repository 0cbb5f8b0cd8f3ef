"""Perplexities of a small Llama in formats of few bits, rounded by qfunc, llm-compressor and AutoRound.

    pip install llmcompressor auto-round
    python benchmarks/language_models.py --data DIR [--draws 3] [--only WORD ...] [--tools NAME ...] [--page FILE]

DIR keeps the trained model, and rows.jsonl with one row for each format, tool and draw; rows that are there are not measured
again, so that a run that was stopped goes on.  A draw is 128 sequences of 128 bytes; all tools get the same, and quantize all
linear layers, the last one too.  Tools that are not installed are left out.  The table has the perplexity of unseen text, its
mean over the draws with the standard error of the mean, and seconds of the processor.  `--page` writes it between the page's
two markers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from attrs import evolve
from language_model_cells import CELLS, Cell
from language_model_tools import of_auto_round, of_llm_compressor, of_the_processor
from llama import Llama, perplexity, sequences, texts, trained
from torch import Tensor

import qfunc
from qfunc.estimators import Mse
from qfunc.specs import Int, edit

SEQUENCES, SEEDS = 128, (12345, 1, 2, 3, 4, 5)
BEGIN, END = "<!-- table of benchmarks/language_models.py -->\n\n", "\n\n<!-- end of the table -->"
Row = dict[str, Any]
"""cell, tool, seed, and the rounded models: name -> [perplexity, seconds]."""


def _program(model: Llama, batches: list[Tensor]) -> Any:
    return torch.export.export(model, (batches[0],), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)


def _nearest(network: Any, batches: list[Tensor], cell: Cell) -> Any:
    return qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(cell.target)(network))


def of_qfunc(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of qfunc: nearest, and GPTQ."""
    batches, start = list(ids.split(16)), of_the_processor()
    nearest = _nearest(_program(model, batches), batches, cell)
    before = of_the_processor() - start
    yield "nearest", nearest, before
    for name, share in (("`gptq(earlier_errors=0)`", 0), ("`gptq`", 1.0)):
        start = of_the_processor()
        rounded = qfunc.gptq(batches, progress=False, earlier_errors=share)(nearest)
        yield name, rounded, before + of_the_processor() - start


def of_searched_scales(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of qfunc with the scales of least squared error: nearest, and GPTQ."""
    batches, start = list(ids.split(16)), of_the_processor()
    searched = evolve(cell, target=edit.weights(estimator=Mse(candidates=20, widest=1.5))(cell.target))
    nearest = _nearest(_program(model, batches), batches, searched)
    before = of_the_processor() - start
    yield "`Mse`", nearest, before
    start = of_the_processor()
    rounded = qfunc.gptq(batches, progress=False)(nearest)
    yield "`Mse`, `gptq`", rounded, before + of_the_processor() - start


def of_float_steps(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the rows of qfunc's changes of the float model: awq and rotate, before nearest and GPTQ."""
    batches = list(ids.split(16))
    for name, step in (("awq", qfunc.awq(cell.target, batches, progress=False)), ("rotate", qfunc.rotate())):
        start = of_the_processor()
        nearest = _nearest(step(_program(model, batches)), batches, cell)
        rounded = qfunc.gptq(batches, progress=False)(nearest)
        yield f"`{name}`, `gptq`", rounded, of_the_processor() - start


def of_adaround(model: Llama, ids: Tensor, cell: Cell) -> Iterator[tuple[str, Any, float]]:
    """Yield the row of AdaRound, by qfunc, which rounds integers only."""
    if not isinstance(cell.target.rules[0].weight.format, Int):
        return
    batches, method, start = list(ids.split(16)), qfunc.adaround(iterations=500, rounding_lr=0.05, batch=8), of_the_processor()
    nearest = _nearest(_program(model, batches), batches, cell)
    rounded = qfunc.reconstruct(method, batches, progress=False)(nearest)
    yield "`adaround(iterations=500)`", rounded, of_the_processor() - start


TOOLS = {
    "qfunc": of_qfunc,
    "searched": of_searched_scales,
    "llm-compressor": of_llm_compressor,
    "AutoRound": of_auto_round,
    "adaround": of_adaround,
    "float": of_float_steps,
}
NEEDS = {"llm-compressor": "llmcompressor", "AutoRound": "auto_round"}


def measured(tool: str, model: Llama, seed: int, cell: Cell) -> Row:
    """Return the row of a tool."""
    seen, unseen = texts()
    made = TOOLS[tool](model, sequences(seen, SEQUENCES, seed), cell)
    rounded = {name: (perplexity(quantized, unseen), seconds) for name, quantized, seconds in made}
    return {"cell": cell.name, "tool": tool, "seed": seed, "rounded": rounded}


def table(rows: Iterable[Row]) -> str:
    """Return the table in Markdown: the mean over the draws, its standard error, and the mean of the seconds."""
    found = dict[tuple[str, str], list[tuple[float, float]]]()
    for row in sorted(rows, key=lambda row: list(TOOLS).index(row["tool"])):
        for name, numbers in row["rounded"].items():
            found.setdefault((row["cell"], name), []).append(numbers)
    names = list(dict.fromkeys(name for _, name in found))
    lines = [["format", *names], ["---"] * (1 + len(names))]
    for cell in (cell.name for cell in CELLS):
        if any((cell, name) in found for name in names):
            lines.append([cell, *(_cell(found.get((cell, name), [])) for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(draws: list[tuple[float, float]]) -> str:
    if not draws:
        return "-"
    values, seconds = zip(*draws, strict=True)
    error = f" ± {stdev(values) / len(values) ** 0.5:.4f}" if len(values) > 1 else ""
    return f"{fmean(values):.4f}{error}, {fmean(seconds):.0f} s"


def with_table(page: str, rows: Iterable[Row]) -> str:
    """Return the page with the table between its markers."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table(rows) + END + rest.split(END)[1]


def done(path: Path) -> list[Row]:
    """Return the rows of a file."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Measure the missing rows, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=3, choices=range(1, len(SEEDS) + 1))
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of cells")
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--page", type=Path, help="the Markdown file whose table is written")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    model, file = trained(given.data / "llama.pt"), given.data / "rows.jsonl"
    print(f"float: {perplexity(model, texts()[1]):.4f}", flush=True)
    kept = {(row["cell"], row["tool"], row["seed"]) for row in done(file)}
    installed = [tool for tool in given.tools if tool not in NEEDS or importlib.util.find_spec(NEEDS[tool])]
    cells = [cell for cell in CELLS if any(word in cell.name for word in given.only)]
    for seed, cell, tool in ((s, c, t) for s in SEEDS[: given.draws] for c in cells for t in installed):
        if (cell.name, tool, seed) in kept:
            continue
        with contextlib.redirect_stdout(sys.stderr):
            row = measured(tool, model, seed, cell)
        with file.open("a") as rows:
            rows.write(json.dumps(row) + "\n")
        told = ("{}: {:.4f}, {:.1f} s".format(name, *numbers) for name, numbers in row["rounded"].items())
        print(f"{cell.name}, {tool}, draw {seed}", *told, sep="; ", flush=True)
    if given.page:
        given.page.write_text(with_table(given.page.read_text(), done(file)))
    else:
        print(table(done(file)))


if __name__ == "__main__":
    main()
