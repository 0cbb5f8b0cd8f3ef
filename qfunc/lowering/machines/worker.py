"""Open and run models for another process: calls come through standard input, results leave through standard output.

Python for another processor executes this file, and the file of a runtime's `Session`, by their paths. So both import NumPy
and the runtime, and nothing else. A message is the length of a JSON header, the header, and the arrays that it lists.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import struct
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np


def send(stream: BinaryIO, header: dict[str, Any], arrays: Sequence[Any] = ()) -> None:
    """Write one message."""
    arrays = [np.ascontiguousarray(a).reshape(np.shape(a)) for a in arrays]
    listed = [[str(a.dtype), list(a.shape)] for a in arrays]
    text = json.dumps({**header, "arrays": listed}).encode()
    stream.write(struct.pack("<I", len(text)) + text)
    for array in arrays:
        stream.write(array.tobytes())
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[Any]]:
    """Read one message.

    Raises:
        EOFError: the other process has ended.
    """
    (length,) = struct.unpack("<I", _exactly(stream, 4))
    header: dict[str, Any] = json.loads(_exactly(stream, length))
    arrays = []
    for name, shape in header.pop("arrays"):
        content = _exactly(stream, np.dtype(name).itemsize * math.prod(shape))
        arrays.append(np.frombuffer(content, name).reshape(shape))
    return header, arrays


def _exactly(stream: BinaryIO, count: int) -> bytearray:
    parts = []
    while count:
        part = stream.read(count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return bytearray().join(parts)


def serve(calls: BinaryIO, results: BinaryIO) -> None:
    """Answer calls until the other process ends."""
    sessions: dict[int, Any] = {}
    kinds: dict[str, Any] = {}
    while True:
        try:
            call, arrays = receive(calls)
        except EOFError:
            return
        for number in call["closed"]:
            sessions.pop(number, None)
        try:
            if "file" in call:
                kind = kinds.get(call["file"]) or kinds.setdefault(call["file"], _session_of(call["file"]))
                session = sessions[call["session"]] = kind(*(a.tobytes() for a in arrays), **call["options"])
                send(results, {"facts": session.facts}, [np.frombuffer(session.saved, np.uint8)])
            else:
                send(results, {}, sessions[call["session"]].run(arrays, **call["options"]))
        except ModuleNotFoundError as error:
            send(results, {"missing": f"no package {error.name}"})
        except Exception as error:  # the caller raises it
            send(results, {"error": f"{type(error).__name__}: {error}"})


def _session_of(path: str) -> Any:
    spec: Any = importlib.util.spec_from_file_location(f"session_{len(path)}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Session


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what runtimes print is no answer
    serve(sys.stdin.buffer, answers)
