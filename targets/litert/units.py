"""The units of a TensorFlow Lite file, and the changes of those that a delegate of LiteRT computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_QUANTIZE = 114  # BuiltinOperator, schema.fbs
_FLOAT = 0  # TensorType


def written_units(model: Any, wanted: Iterable[str]) -> dict[str, str]:
    """Return code tensor -> "integer" if its operator reads codes, "float" if it quantizes reals.

    Args:
        model: The file as the schema's `ModelT`.
        wanted: The tensors of codes.
    """
    graph, found = model.subgraphs[0], dict[str, str]()
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        quantizes = max(code.builtinCode, code.deprecatedBuiltinCode) == _QUANTIZE
        from_real = quantizes and graph.tensors[operator.inputs[0]].type == _FLOAT
        for index in operator.outputs:
            name = graph.tensors[index].name.decode().removesuffix(".nhwc")
            found.setdefault(name, "float" if from_real else "integer")
    return {name: found[name] for name in wanted if name in found}


def needed_tensors(model: Any) -> frozenset[str]:
    """Return the tensors on which an output of a file, the schema's `ModelT`, depends; LiteRT computes no others."""
    graph = model.subgraphs[0]
    needed = {int(index) for index in graph.outputs}
    for operator in reversed(graph.operators):
        if not needed.isdisjoint(map(int, operator.outputs)):
            needed.update(map(int, operator.inputs))
    return frozenset(graph.tensors[index].name.decode().removesuffix(".nhwc") for index in needed if index >= 0)


def changed_kernels(plain: frozenset[str], exposed: frozenset[str], tensors: Iterable[str]) -> str:
    """Return a description of the code tensors that a delegate computes in one of two models only, or ""."""
    changed = sorted(plain.symmetric_difference(exposed).intersection(tensors))
    return f"reading the inner tensors changes the kernels of {', '.join(changed)}" if changed else ""
