"""The units of a graph for XNNPACK: which of its nodes read codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qfunc.lowering.flatbuffer import Table

__all__ = ["quantizes_at_run_time", "written_units"]


def quantizes_at_run_time(graph: Table) -> bool:
    """Return True if XNNPACK computes scales of an `XNNGraph` while it runs."""
    tensors: list[Table] = [value["xvalue_union"] for value in graph["xvalues"]]
    return any(t.kind == "XNNQuantizedTensorValue" and t["quant_params"].kind == "PerTokenDynamicQuant" for t in tensors)


def written_units(graph: Table, values: Mapping[str, int]) -> dict[str, str]:
    """Return code tensor -> "integer" if its node reads codes, "float" if it converts reals.

    Args:
        graph: The `XNNGraph`.
        values: The values of the code tensors.
    """
    tensors: list[Table] = [value["xvalue_union"] for value in graph["xvalues"]]
    coded = {t["tensor_value"]["id_out"] for t in tensors if t.kind == "XNNQuantizedTensorValue"}
    nodes: list[Table] = [node["xnode_union"] for node in graph["xnodes"]]
    units: dict[int, str] = {}
    for node in nodes:
        converts: Any = node.kind == "XNNConvert" and node["input_id"] not in coded
        units.setdefault(node["output_id"], "float" if converts else "integer")
    return {name: units[value] for name, value in values.items() if value in units}
