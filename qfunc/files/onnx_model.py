"""An ONNX file from outside: whole tensors inside the file, names that are text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import numpy_helper

from qfunc.errors import FileError, first_line
from qfunc.files.json_text import damage_error


def read_model(content: bytes, file: str = "model.onnx") -> onnx.ModelProto:
    """Return the model of an ONNX file.

    Args:
        content: The bytes of the file.
        file: The name of the file in errors.
    Raises:
        FileError: no ONNX model, a tensor outside of the file, or a tensor whose shape and bytes differ.
    """
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as e:  # protobuf's DecodeError, whose module has no types
        raise damage_error(file, "", f"no ONNX model ({first_line(e)})", "an ONNX model") from e
    require_sound(model, file)
    return model


def require_sound(model: onnx.ModelProto, file: str) -> None:
    """Refuse a model with tensors outside of the file, or whose shape and bytes differ, or with names that are no text.

    Raises:
        FileError: names the place.
    """
    for path, message in _messages(model, ""):
        _require_text(message, path, file)
        if isinstance(message, onnx.TensorProto):
            _require_whole(message, path, file)


def _messages(message: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, message
    for field, value in message.ListFields():
        inner = f"{path}.{field.name}" if path else field.name
        if field.message_type is not None and hasattr(value, "ListFields"):
            yield from _messages(value, inner)
        elif field.message_type is not None:
            for i, each in enumerate(value):
                yield from _messages(each, f"{inner}[{i}]")


def _require_text(message: Any, path: str, file: str) -> None:
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, str | bytes) else value:
                if not isinstance(text, str):
                    where = f"{path}.{field.name}" if path else field.name
                    raise damage_error(file, where, "bytes that are not UTF-8", "text")


def _require_whole(tensor: onnx.TensorProto, path: str, file: str) -> None:
    if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:
        location = next((repr(e.value) for e in tensor.external_data if e.key == "location"), "no location")
        do = "Save the model with its tensors inside: onnx.save(model, path, save_as_external_data=False)."
        raise FileError(where=f"{file}: {path}", found=f"a tensor in another file, {location}", wanted="its values", do=do)
    if tensor.data_type == onnx.TensorProto.STRING:
        return
    count = sum(len(value) for field, value in tensor.ListFields() if field.name.endswith("_data"))
    elements = 1
    for size in tensor.dims:
        elements *= max(size, 0)
    if min(tensor.dims, default=0) < 0 or elements > 8 * count:  # the smallest elements have one bit
        raise damage_error(file, f"{path}.dims", f"{list(tensor.dims)[:8]}", f"a shape of its {count:,} values or bytes")
    try:
        numpy_helper.to_array(tensor)
    except Exception as e:  # as many kinds as there are types
        raise damage_error(file, path, first_line(e), "a tensor that ONNX can read") from e
