"""The tensors of a decoder in a GGUF file, from its Q/DQ model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from qfunc.errors import DeployError
from qfunc.files.part import Part
from qfunc.files.stored_tensor import StoredTensor
from qfunc.lowering.qdq.reader import QdqModel
from qfunc.specs import DecoderConfig, PerBlock, Scheme
from qfunc.targets.ggml.engine import TYPES
from qfunc.targets.ggml.file import GgufTensor
from qfunc.targets.ggml.rewrite import stored_weight
from qfunc.targets.ggml.types import WEIGHTS

Array = np.ndarray[Any, Any]

_TABLE, _HEAD = "token_embd.weight", "output.weight"


def decoder_part(model: onnx.ModelProto, types: Mapping[str, str], decoder: DecoderConfig) -> Part:
    """Return the tensors of a decoder, or of a part of it.

    Args:
        model: A Q/DQ model.
        types: Tensor -> the type of its blocks.
        decoder: The hyperparameters.
    Raises:
        DeployError: a parameter that the architecture does not have.
    """
    source, found, notes = QdqModel(model), dict[str, StoredTensor](), dict[str, Any]()
    for node in model.graph.node:
        for read in node.input:
            stored = source.dequantizer(read)
            blocks = stored is not None and bool(source.attribute(stored, "block_size"))
            parameter = stored.input[0].removesuffix(".codes") if stored is not None and blocks else read
            if not blocks and not _is_parameter(source, read):
                continue
            known = decoder.tensor(parameter)
            if known is None:
                what, do = f"parameter {parameter!r}", "Use targets.gguf, which deploys the linear layers of any model."
                raise DeployError(where=_where(decoder), found=what, wanted="a tensor of the architecture", do=do)
            name = decoder.role(known, looked_up=node.op_type == "Gather")
            tensor = _quantized(source, stored, name, types) if stored is not None and blocks else _real(source, read)
            found[name] = _stored(_in_order(np.asarray(tensor.data), name, decoder))
            notes[name] = {"parameter": parameter, "kind": tensor.kind, "shape": list(tensor.shape)}
    return Part(found, notes)


def decoder_tensors(parts: Sequence[Part], decoder: DecoderConfig) -> list[GgufTensor]:
    """Return the tensors of the parts of a decoder, in the order in which it computes with them.

    Raises:
        DeployError: a tensor of the architecture that no part has.
    """
    notes = {name: note for part in parts for name, note in part.notes.items()}
    data = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    if _HEAD in notes and _TABLE in notes and all(notes[_HEAD][k] == notes[_TABLE][k] for k in ("parameter", "kind")):
        del notes[_HEAD]  # llama.cpp multiplies by the table then
    for name in decoder.needed():
        if name not in notes:
            do = "Describe the network by targets.runtimes.decoder_config(config), and export the whole model."
            raise DeployError(where=_where(decoder), found=f"no {name!r}", wanted="the tensors of the architecture", do=do)
    names = sorted(notes, key=decoder.place)
    return [GgufTensor(name, notes[name]["kind"], tuple(notes[name]["shape"]), data[name]) for name in names]


def _stored(data: Array) -> StoredTensor:
    return StoredTensor("F32" if data.dtype.kind == "f" else "U8", data.shape, data.tobytes)


def _where(decoder: DecoderConfig) -> str:
    return f"deploy, {decoder.architecture}"


def _quantized(source: QdqModel, node: onnx.NodeProto, name: str, types: Mapping[str, str]) -> GgufTensor:
    kind = types.get(name)
    if kind is None or not _holds(WEIGHTS[kind].scheme, source, node):
        found = f"blocks of {source.attribute(node, 'block_size')}"
        wanted = "real numbers" if kind is None else f"blocks of {kind}"
        do = "Leave the schemes of the target as they are, or keep the layer in float by edit.skip."
        raise DeployError(where=f"tensor {name!r}", found=found, wanted=wanted, do=do)
    return stored_weight(source, node, kind)


def _holds(scheme: Scheme, source: QdqModel, node: onnx.NodeProto) -> bool:
    # True for blocks of the scheme's size, whose scales are integers if those of the scheme are.
    searched = node.op_type == "DequantizeBlocks"
    if scheme.searched != searched or scheme.scale.shared != PerBlock(-1, source.attribute(node, "block_size")):
        return False
    scale, outer = source.constant(node, 1), source.constant(node, 2)
    return not searched or bool(((scale == np.rint(scale)) if scheme.scale.integers else (outer == 1)).all())


def _is_parameter(source: QdqModel, name: str) -> bool:
    return name.endswith((".weight", ".bias")) and name in source.constants


def _real(source: QdqModel, name: str) -> GgufTensor:
    value = np.ascontiguousarray(source.constants[name], "<f4")
    rows = value.reshape(-1, value.shape[-1])
    return GgufTensor(name, TYPES["F32"], value.shape, rows)


def _in_order(rows: Array, name: str, decoder: DecoderConfig) -> Array:
    # Each head of queries and keys: entries i and i + head_size / 2 become neighbours where RoPE rotates neighbours.
    part = name.split(".")[-2]
    if not decoder.adjacent_pairs or part not in ("attn_q", "attn_k"):
        return rows
    heads = rows.reshape(-1, 2, decoder.head_size // 2, *([] if name.endswith(".bias") else rows.shape[1:]))
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)
