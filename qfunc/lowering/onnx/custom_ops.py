"""Write one op: by the writer of its kind, of the kind that it behaves like, or by the ONNX text of its OpKind."""

from __future__ import annotations

import onnx

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.ops import WRITERS
from qfunc.specs import OpKind


def write_op(call: OpContext, kind: str, own: OpKind | None, path: str) -> str | list[str]:
    """Write an op, and return the name of its result or the names of its several results.

    Args:
        own: The OpKind of an op of the user's, or None.
        path: The path of the op, for messages.
    Raises:
        DeployError: the op has no ONNX form, or its `onnx` text does not parse.
    """
    if own is not None and own.onnx is not None:
        return _by_text(call, own.onnx, path)
    writer = WRITERS.get((own and own.behaves_like) or kind)
    if writer is None:
        raise DeployError(
            where=f"op {path!r}",
            found=f"{kind} ({call.node.format_node()})",
            wanted="an op that can be written to ONNX",
            do="Replace it by ops of the vocabulary, or give it `onnx` or `behaves_like` in the target's ops.",
        )
    return writer(call)


def _by_text(call: OpContext, text: str, path: str) -> str:
    try:
        return call.graph.call(text, [call.read(n) for n in call.node.all_input_nodes], call.name)
    except onnx.parser.ParseError as e:
        raise DeployError(
            where=f"op {path!r}",
            found=f"`onnx` of its OpKind, which is no ONNX function: {e.args[0].decode().splitlines()[-1]}",
            wanted='<opset_import: ["": 21], domain: "mine"> Name (x) => (y) { ... }',
            do="Repair the text; onnx.parser.parse_function reads it.",
        ) from e


__all__ = ["write_op"]
