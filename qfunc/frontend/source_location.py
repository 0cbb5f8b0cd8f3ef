"""Where a node comes from: the line of the user's code, the module's path and class."""

from __future__ import annotations

import os
import re
import types
from typing import Any

import torch
from torch import fx
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKING = rnn.__file__
_HERE = os.path.dirname(__file__) + os.sep
_SEVERAL = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention", "Transformer", "TransformerEncoder",
             "TransformerDecoder", "TransformerEncoderLayer", "TransformerDecoderLayer")  # fmt: skip
"""Modules of torch.nn made of several ops."""


def source_line(node: fx.Node) -> str:
    """file:line of the user's code that made a traced node, or ""."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    return _last([(file, int(line)) for file, line in frames])


def user_line(traceback: types.TracebackType | None) -> str:
    """The last line of a traceback that is neither torch's nor ours, as file:line, or ""."""
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _last(frames)


def packs_sequences(traceback: types.TracebackType | None) -> bool:
    """Whether a failure came from packing a sequence, or from a layer that got a packed one."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename == _PACKING or any(isinstance(v, PackedSequence) for v in frame.f_locals.values()):
            return True
        traceback = traceback.tb_next
    return False


def _last(frames: list[tuple[str, int]]) -> str:
    mine = [f"{file}:{line}" for file, line in frames if is_user_file(file)]
    return mine[-1] if mine else ""


def is_user_file(file: str) -> bool:
    """Whether a source file is neither torch's nor ours."""
    return not file.startswith((_TORCH, _HERE, "<"))


def module_stack(node: fx.Node) -> list[tuple[str, str, str]]:
    """The modules around a traced node, outermost first: one key for each call, path, qualified class name."""
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (str(key), _path(entry[0]), _class_name(entry[1])) for key, entry in stack.items() if not str(key).startswith("_empty_")
    ]


def module_call(graph: fx.Graph) -> set[str]:
    """The paths of the modules that left ops in a traced graph."""
    return {path for node in graph.nodes for _, path, _ in module_stack(node)}


def _path(path: Any) -> str:
    # torch.export writes a module that is called twice as "conv@1", an entry of a list as "layers.slice(...).0".
    plain = str(path).removeprefix("L['self'].").removeprefix("L['self']").replace("slice(None, None, None)", "")
    return ".".join(part for part in re.sub(r"@\d+", "", plain).split(".") if part)


def qualified(kind: type) -> str:
    """A class by its module and name.

    >>> qualified(torch.nn.Linear)
    'torch.nn.modules.linear.Linear'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else qualified(kind)


def has_module_name(kind: str) -> bool:
    """Whether the op that a module of this class ends in bears the module's name.

    >>> has_module_name("torch.nn.modules.linear.Linear"), has_module_name("torch.nn.modules.rnn.LSTM")
    (True, False)
    """
    return kind.startswith("torch.nn.") and kind.rpartition(".")[2] not in _SEVERAL
