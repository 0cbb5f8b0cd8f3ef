"""The units of a TensorFlow Lite file, and those that a delegate of LiteRT computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_QUANTIZE = 114  # BuiltinOperator, schema.fbs
_FLOAT = 0  # TensorType
_DELEGATE = "DELEGATE"


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


def delegated(interpreter: Any) -> frozenset[str]:
    """Return the names of the tensors that a delegate computes.

    A delegate is listed after the operators that it replaces, with the tensors that it reads and returns.
    """
    interpreter.allocate_tensors()
    names = {d["index"]: d["name"] for d in interpreter.get_tensor_details()}
    operators = interpreter._get_ops_details()  # LiteRT has no other list of its operators
    producers = {int(o): each for each in operators if each["op_name"] != _DELEGATE for o in each["outputs"]}
    found: set[int] = set()
    for each in operators:
        if each["op_name"] == _DELEGATE:
            found |= _between(producers, {int(i) for i in each["inputs"]}, [int(o) for o in each["outputs"]])
    return frozenset(names[i].removesuffix(".nhwc") for i in found if i in names)


def _between(producers: Mapping[int, Any], first: set[int], last: list[int]) -> set[int]:
    # The tensors that depend on `first` up to `last`, without `first`.
    found, left = set[int](), list(last)
    while left:
        index = left.pop()
        if index in found or index in first or index not in producers:
            continue
        found.add(index)
        left += [int(i) for i in producers[index]["inputs"]]
    return found


def changed_kernels(plain: frozenset[str], exposed: frozenset[str], tensors: Iterable[str]) -> str:
    """Return a description of the code tensors that a delegate computes in one of two models only, or ""."""
    changed = sorted(plain.symmetric_difference(exposed).intersection(tensors))
    return f"reading the inner tensors changes the kernels of {', '.join(changed)}" if changed else ""


__all__ = ["changed_kernels", "delegated", "written_units"]
