"""Write one op as ONNX: with the writer of its kind, or with the ONNX text of the user's OpKind."""

from __future__ import annotations

import onnx

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.ops import WRITERS
from qfunc.specs import OpKind


def write_op(call: OpContext, kind: str, definition: OpKind | None, path: str) -> str | list[str]:
    """Write an op, and return the name of its result or the names of its several results.

    Args:
        definition: The OpKind of a user-defined op, which may behave like another kind, or None.
        path: The path of the op, for messages.
    Raises:
        DeployError: the op has no ONNX form, or its `onnx` text does not parse, has other inputs or an unknown operator.
    """
    if definition is not None and definition.onnx is not None:
        return _write_text(call, definition.onnx, path)
    writer = WRITERS.get((definition and definition.behaves_like) or kind)
    if writer is None:
        raise DeployError(
            where=f"op {path!r}",
            found=f"{kind} ({call.node.format_node()})",
            wanted="an op that has an ONNX form",
            do="Replace it by canonical ops, or set `onnx` or `behaves_like` of its OpKind in the target's ops.",
        )
    return writer(call)


def _write_text(call: OpContext, text: str, path: str) -> str:
    try:
        parsed = onnx.parser.parse_function(text)
    except onnx.parser.ParseError as e:
        raise DeployError(
            where=f"op {path!r}",
            found=f"an `onnx` text in its OpKind that ONNX cannot parse: {e.args[0].decode().splitlines()[-1]}",
            wanted='<opset_import: ["": 21], domain: "mine"> Name (x) => (y) { ... }',
            do="Correct the text; check it with onnx.parser.parse_function.",
        ) from e
    tensors = call.node.all_input_nodes
    if len(parsed.input) != len(tensors):
        found = f"an `onnx` text in its OpKind with the inputs {', '.join(parsed.input) or 'none'}"
        do = f"Write {parsed.name} ({', '.join(n.name for n in tensors)}) => (y)."
        raise DeployError(where=f"op {path!r}", found=found, wanted=f"{len(tensors)}, one for each tensor", do=do)
    imported = {used.domain.removeprefix("ai.onnx") for used in parsed.opset_import}
    for node in parsed.node:
        if node.domain.removeprefix("ai.onnx") not in imported:
            found = f"an `onnx` text in its OpKind that does not import {node.domain!r}, the domain of {node.op_type}"
            do = 'Begin it with <opset_import: ["": 21], domain: "mine">, and import each domain like this.'
            raise DeployError(where=f"op {path!r}", found=found, wanted="the version of each domain", do=do)
        if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type):
            found = f"an `onnx` text in its OpKind with {node.op_type}"
            do = "Correct the name, or give the node the domain of the runtime that has it."
            raise DeployError(where=f"op {path!r}", found=found, wanted="operators of ONNX", do=do)
    return call.graph.call(text, [call.read(n) for n in tensors], call.name)
