"""Give the inputs and outputs of a .tflite file names, by a signature."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from qfunc.graph.constants import UniqueNames
from qfunc.targets.litert.builder import schema

KEY = "serving_default"
"""The name of the signature, as TensorFlow's exporters call it."""


def with_signature(file: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """Return the file with one signature, by which `Interpreter.get_signature_runner()` takes and returns tensors by name.

    Args:
        file: The .tflite file.
        inputs, outputs: The names, in the model's order. For "" it is the name of the tensor, without the suffix ".real"
            of values that were dequantized.
    """
    flatbuffers: Any = importlib.import_module("flatbuffers")
    classes = schema()
    model = classes.ModelT.InitFromPackedBuf(file, 0)
    graph = model.subgraphs[0]
    signature = classes.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = KEY.encode(), 0
    maps = []
    for names, indices in ((inputs, graph.inputs), (outputs, graph.outputs)):
        taken, entries = UniqueNames({n for n in names if n}), []
        for name, index in zip(names, indices, strict=True):
            entry = classes.TensorMapT()
            own = graph.tensors[index].name.decode().removesuffix(".real")
            entry.name, entry.tensorIndex = (name or taken.fresh(own)).encode(), int(index)
            entries.append(entry)
        maps.append(entries)
    signature.inputs, signature.outputs = maps
    model.signatureDefs = [signature]
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
