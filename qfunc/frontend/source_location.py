"""Source location of a traced node: the line of the user's code, the module's path and class."""

from __future__ import annotations

import os
import re
import sys
import traceback
import types
from typing import Any

import torch
from torch import fx
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKING = rnn.__file__
_HERE = os.path.dirname(__file__) + os.sep
_COMPOSITE = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention", "Transformer", "TransformerEncoder",
             "TransformerDecoder", "TransformerEncoderLayer", "TransformerDecoderLayer")  # fmt: skip
"""Modules of torch.nn that consist of several ops."""


def source_line(node: fx.Node) -> str:
    """Return file:line of the user's code that created a traced node, or ""."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    return _last([(file, int(line)) for file, line in frames])


def user_stack() -> str:
    """Return the frames of the user's code from the outermost forward on, as torch.fx records them; "" outside of a forward.

    torch.fx filters its own frames by a list whose import takes longer than the tracing of most networks.
    """
    frames = list(traceback.walk_stack(sys._getframe(1)))[::-1]
    names = [frame.f_code.co_name for frame, _ in frames]
    if "forward" not in names:
        return ""
    kept = [entry for entry in frames[names.index("forward") :] if is_user_file(entry[0].f_code.co_filename)]
    return "".join(traceback.StackSummary.extract(iter(kept)).format()).strip()


def current_line() -> str:
    """Return the line of the user's code that is being run, as file:line, or ""."""
    return _last([(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1))][::-1])


def user_line(trace: types.TracebackType | None) -> str:
    """Return the last line of a traceback outside torch and qfunc's frontend, as file:line, or ""."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return _last(frames)


def packs_sequences(trace: types.TracebackType | None) -> bool:
    """Return True if a failure came from packing a sequence, or from a layer that was given a packed one."""
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename == _PACKING or any(isinstance(v, PackedSequence) for v in frame.f_locals.values()):
            return True
        trace = trace.tb_next
    return False


def _last(frames: list[tuple[str, int]]) -> str:
    lines = [f"{file}:{line}" for file, line in frames if is_user_file(file)]
    return lines[-1] if lines else ""


def is_user_file(file: str) -> bool:
    """Return True if a source file belongs neither to torch nor to qfunc's frontend."""
    return not file.startswith((_TORCH, _HERE, "<"))


def module_stacks(graph: fx.Graph) -> dict[fx.Node, list[tuple[str, str, str]]]:
    """Return for each traced node the modules around it, outermost first, as (key, path, qualified class name).

    Each call of a module has a key of its own.
    """
    return {node: module_stack(node) for node in graph.nodes}


def module_stack(node: fx.Node) -> list[tuple[str, str, str]]:
    """Return (key, path, qualified class name) of the modules around a traced node, outermost first, one key per call."""
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (str(key), _path(entry[0]), _class_name(entry[1])) for key, entry in stack.items() if not str(key).startswith("_empty_")
    ]


def module_call(graph: fx.Graph) -> set[str]:
    """Return the paths of the modules with ops in a traced graph."""
    return {path for node in graph.nodes for _, path, _ in module_stack(node)}


def _path(path: Any) -> str:
    # torch.export writes the second call of a module as "conv@1", and an entry of a list as "layers.slice(...).0".
    plain = str(path).removeprefix("L['self'].").removeprefix("L['self']").replace("slice(None, None, None)", "")
    return ".".join(part for part in re.sub(r"@\d+", "", plain).split(".") if part)


def qualified_name(kind: type) -> str:
    """Return the qualified name of a class.

    >>> qualified_name(torch.nn.Linear)
    'torch.nn.modules.linear.Linear'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else qualified_name(kind)


def has_module_name(kind: str) -> bool:
    """Return True if the last op of a module of this class, or of an op of an ONNX file ("onnx.Op"), has the module's name.

    >>> has_module_name("torch.nn.modules.linear.Linear"), has_module_name("torch.nn.modules.rnn.LSTM")
    (True, False)
    """
    return kind.startswith(("torch.nn.", "onnx.")) and kind.rpartition(".")[2] not in _COMPOSITE
