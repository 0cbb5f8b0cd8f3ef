"""Writes the table of docs/target_table.md from the targets themselves: `python -m tests.pages.targets_page`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import Cases, FixedQParams, Float, Int, Log, PerBlock, PerChannel, PerToken, Scheme, Target, Unknown

PAGE = Path(__file__).parents[2] / "docs" / "target_table.md"
START, END = "<!-- table of targets: python -m tests.pages.targets_page -->\n", "<!-- end of the table -->\n"
CALLS = {
    "academic": "academic(4, 4)",
    "academic_nlp": "academic_nlp(4, 8)",
    "compressed_tensors": 'compressed_tensors("W4A16", 32)',
    "executorch_8da4w": "executorch_8da4w(32)",
    "gguf": 'gguf("Q4_0")',
    "onnxruntime_nbits": "onnxruntime_nbits(4, 32)",
    "openvino_blocks": "openvino_blocks(4, 32)",
}


def shown(name: str) -> tuple[str, Target]:
    """How a target is written, and the target."""
    call = f"targets.{CALLS.get(name, name)}"
    return call, eval(call, {"targets": targets})


def schemes(value: Any) -> Iterator[Scheme]:
    """The schemes that a slot may have."""
    match value:
        case Scheme():
            yield value
        case FixedQParams(scheme=scheme):
            yield scheme
        case Cases(cases=cases, default=default):
            for one in (*(v for _, v in cases), default):
                yield from schemes(one)


def word(scheme: Scheme) -> str:
    """A scheme in a few characters: u8 affine, s8 2^k a channel."""
    match scheme.format:
        case Int(bits, signed):
            text = f"{'s' if signed else 'u'}{bits}" + (" affine" if scheme.zero_point is not None else "")
        case Log(magnitude_bits=bits):
            text = f"log{bits + 1}"
        case Float(exponent, mantissa):
            text = f"e{exponent}m{mantissa}"
        case other:
            text = repr(other)
    text += " 2^k" if scheme.scale.power_of_two else ""
    shared = {PerChannel: " a channel", PerBlock: " a block", PerToken: " a token"}.get(type(scheme.scale.shared), "")
    return text + shared + (", at run time" if scheme.scale.dynamic else "")


def formats(target: Target, *slots: str) -> str:
    """What the rules put on some slots."""
    found = (word(s) for rule in target.rules for slot in slots for s in schemes(getattr(rule, slot)))
    return ", ".join(dict.fromkeys(found))


def emulated(target: Target) -> str:
    """Whether the target says how its integers are computed."""
    if any(isinstance(k.arithmetic, Unknown) for k in target.kernels):
        return "not public"
    return "yes" if target.kernels else "in float"


def files(target: Target) -> str:
    """The files of an artifact."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()
    done = qfunc.calibrate([torch.randn(2, 3, 4, 4)], progress=False)(qfunc.quantize(target)(model))
    return ", ".join(f"`{name}`" for name in sorted(qfunc.deploy(target)(done).files) if name != "qfunc.json")


def about(name: str) -> str:
    """The first line of a target's file; of a further target in a file, the line that begins with its name."""
    imports = [n for n in ast.parse(Path(targets.__file__).read_text()).body if isinstance(n, ast.ImportFrom)]
    module = next(str(n.module) for n in imports if any(a.name == name for a in n.names))
    lines = (sys.modules[module].__doc__ or "").split("\n")
    start = f"`{name}`: "
    return next((text.removeprefix(start) for text in lines if text.startswith(start)), lines[0]).rstrip(".")


def line(name: str) -> str:
    """One row of the table."""
    call, target = shown(name)
    cells = (
        f"`{call}`",
        about(name),
        formats(target, "weight"),
        formats(target, "input", "output"),
        emulated(target),
        files(target),
    )
    return f"| {' | '.join(cells)} |\n"


def rendered() -> str:
    """The whole table."""
    head = "| target | is | weights | activations | emulated | files |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(line, targets.__all__))


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + "\n" + rendered() + "\n" + END + rest.partition(END)[2])
