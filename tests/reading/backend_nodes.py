"""ONNX's own tests of single operators, read as models: what equals the data of the tests, and why others are not read.

python -m tests.reading.backend_nodes      # prints the table of docs/onnx_files.md
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch
from attrs import frozen
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import qfunc
from qfunc.errors import QfuncError

EQUAL, DIFFERS = "equal", "differs"


@frozen
class Case:
    """A test of ONNX: its name, its model, and the tensors that go in and come out."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@frozen
class Outcome:
    """What became of a case: "equal", "differs", or the reason of the refusal."""

    name: str
    op: str
    result: str


def cases() -> Iterator[Case]:
    """Yield the tests with an input of float32, without training and its losses, ai.onnx.ml, sequences and text."""
    for case in collect_testcases(None):
        if case.model is None or not case.data_sets or not _is_float(case.model):
            continue
        inputs, outputs = case.data_sets[0]
        yield Case(case.name, case.model, tuple(map(_array, inputs)), tuple(map(_array, outputs)))


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _is_float(model: onnx.ModelProto) -> bool:
    domains = {n.domain for n in model.graph.node} | {o.domain for o in model.opset_import}
    kinds = [v.type for v in (*model.graph.input, *model.graph.output)]
    if any(n.op_type in _LOSSES or _trains(n) for n in model.graph.node):
        return False
    if any("ml" in d.split(".") or "training" in d for d in domains):
        return False
    if any(not k.HasField("tensor_type") or k.tensor_type.elem_type == TensorProto.STRING for k in kinds):
        return False
    return any(v.type.tensor_type.elem_type == TensorProto.FLOAT for v in model.graph.input)


_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def _trains(node: onnx.NodeProto) -> bool:
    named = {a.name: a.i for a in node.attribute}
    return node.op_type in ("Dropout", "BatchNormalization") and (bool(named.get("training_mode")) or len(node.input) == 3)


def outcome(case: Case) -> Outcome:
    """Read a case and run it.

    Inputs of integers are sizes, axes and places in most files, so they are fixed.  If the model cannot be read so, all inputs
    but the first of float32 are fixed, as weights and factors are in most files.
    """
    ops = "+".join(dict.fromkeys(n.op_type for n in case.model.graph.node))
    names = [i.name for i in case.model.graph.input if i.name]
    given = dict(zip(names, case.inputs, strict=False))
    real = [name for name, value in given.items() if value.dtype == np.float32]
    reason = ""
    for kept in (real, real[:1]):
        fixed = {name: np.array(value) for name, value in given.items() if name not in kept}
        try:
            model = qfunc.read(case.model, fixed=fixed)
        except QfuncError as e:
            reason = f"found {e.found}"
            continue
        return Outcome(case.name, ops, _compared(model, [given[name] for name in kept], case.outputs))
    return Outcome(case.name, ops, reason)


def _compared(model: Any, inputs: list[Any], outputs: tuple[Any, ...]) -> str:
    try:
        with torch.no_grad():
            found = model(*(torch.from_numpy(np.array(value)) for value in inputs))
    except Exception:  # torch's, of a model that was read and does not run
        return DIFFERS
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    if len(found) != len(outputs):
        return DIFFERS
    for a, b in zip(found, outputs, strict=True):
        # 1e-3 is the tolerance of ONNX's own runner for these tests; reals of other widths are float32 here.
        value = a.numpy()
        if value.shape != b.shape or not np.allclose(value.astype(np.float64), b.astype(np.float64), 1e-3, 1e-5, True):
            return DIFFERS
    return EQUAL


def table(outcomes: list[Outcome]) -> str:
    """Return the reasons for which tests are not read, with their operators, as Markdown."""
    counts: dict[tuple[str, str], int] = Counter()
    for o in outcomes:
        if o.result not in (EQUAL, DIFFERS):
            counts[o.op, re.sub(r"\d+", "n", o.result)[:100]] += 1
    lines = ["| operators | tests | not read |", "|---|---|---|"]
    lines += [f"| {op} | {count} | {reason} |" for (op, reason), count in sorted(counts.items(), key=lambda i: (-i[1], i[0]))]
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = [outcome(case) for case in cases()]
    equal, differ = (sum(o.result == r for o in found) for r in (EQUAL, DIFFERS))
    print(f"{len(found)} tests, {equal + differ} read, {equal} equal")
    print(*(f"differs: {o.name}" for o in found if o.result == DIFFERS), sep="\n")
    print(table(found))
