"""Single ops of ggml, and tokens, computed by the libraries that llama-cpp-python installs, in another process.

In one process with libggml-python, they would share its ggml.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import multiprocessing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INSTALLED = importlib.util.find_spec("llama_cpp") is not None
Steps = list[tuple[Any, ...]]
PREVIOUS = "previous"
"""An argument: the result of the op before."""
_P, _I, _F, _N = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_TYPES = {"float32": 0, "float16": 1, "int32": 26}
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ggml_new_tensor_4d": (_P, _P, _N, _I, _I, _I, _I),
    "ggml_get_data": (_P, _P),
    "ggml_new_graph": (_P, _P),
    "ggml_build_forward_expand": (None, _P, _P),
    "ggml_free": (None, _P),
    "ggml_rms_norm": (_P, _P, _P, _F),
    "ggml_mul": (_P, _P, _P, _P),
    "ggml_swiglu_split": (_P, _P, _P, _P),
    "ggml_rope_ext": (_P, _P, _P, _P, _P, _N, _N, _N, _F, _F, _F, _F, _F, _F),
    "ggml_flash_attn_ext": (_P, _P, _P, _P, _P, _P, _F, _F, _F),
}


class _Init(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("memory", _P), ("without_data", ctypes.c_bool))


@cache
def _functions() -> dict[str, Any]:
    spec = importlib.util.find_spec("llama_cpp")
    folder = Path((spec.submodule_search_locations or [])[0], "lib") if spec is not None else Path()
    base, cpu = (ctypes.CDLL(str(folder / f"libggml-{n}.so"), mode=ctypes.RTLD_GLOBAL) for n in ("base", "cpu"))
    found: dict[str, Any] = {"ggml_init": base.ggml_init, "ggml_graph_compute_with_ctx": cpu.ggml_graph_compute_with_ctx}
    found["ggml_init"].restype, found["ggml_init"].argtypes = _P, (_Init,)
    found["ggml_graph_compute_with_ctx"].argtypes = (_P, _P, _N)
    for name, (result, *arguments) in _SIGNATURES.items():
        found[name] = getattr(base, name)
        found[name].restype, found[name].argtypes = result, arguments
    return found


class _Graph:
    def __init__(self) -> None:
        self.context = _functions()["ggml_init"](_Init(1 << 26, None, False))

    def tensor(self, values: Array) -> int:
        values = np.ascontiguousarray(values)
        sizes = [*values.shape[::-1], 1, 1, 1][:4]
        made: int = _functions()["ggml_new_tensor_4d"](self.context, _TYPES[values.dtype.name], *sizes)
        ctypes.memmove(_functions()["ggml_get_data"](made), values.ctypes.data, values.nbytes)
        return made

    def run(self, result: int, shape: tuple[int, ...], threads: int) -> Array:
        call = _functions()
        graph = call["ggml_new_graph"](self.context)
        call["ggml_build_forward_expand"](graph, result)
        assert call["ggml_graph_compute_with_ctx"](self.context, graph, threads) == 0
        found = np.empty(shape, np.float32)
        ctypes.memmove(found.ctypes.data, call["ggml_get_data"](result), found.nbytes)
        call["ggml_free"](self.context)
        return found


def _compute(steps: Steps, shape: tuple[int, ...], threads: int) -> Array:
    graph, result = _Graph(), 0
    for name, *arguments in steps:
        given = [graph.tensor(a) if isinstance(a, np.ndarray) else result if a == PREVIOUS else a for a in arguments]
        result = _functions()[name](graph.context, *given)
    return graph.run(result, shape, threads)


@cache
def other_process() -> Any:
    """A process that loads only these libraries."""
    return multiprocessing.get_context("spawn").Pool(1)


def computed(steps: Steps, shape: tuple[int, ...], threads: int = 1) -> Array:
    """The result of ops, each a name and its arguments: arrays, numbers, or the result before."""
    found: Array = other_process().apply(_compute, (steps, shape, threads))
    return found


def tokenized(path: str, texts: list[str]) -> tuple[list[list[int]], int]:
    """The tokens of texts by the tokenizer of a file, and its end of a sequence."""
    llama = importlib.import_module("llama_cpp.llama_cpp")
    parameters = llama.llama_model_default_params()
    parameters.vocab_only = True
    vocabulary = llama.llama_model_get_vocab(llama.llama_model_load_from_file(path.encode(), parameters))
    tokens = []
    for text in texts:
        held, found = text.encode(), (ctypes.c_int32 * 200)()
        count = llama.llama_tokenize(vocabulary, held, len(held), found, 200, False, True)
        tokens.append(found[:count])
    return tokens, llama.llama_vocab_eos(vocabulary)


_FILE_TYPES = {
    "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
}  # fmt: skip
"""Name -> llama_ftype."""


def quantized_file(path: str, result: str, kind: str) -> None:
    """Write the file that llama.cpp's own quantizer makes of a file in float."""
    llama = importlib.import_module("llama_cpp.llama_cpp")
    llama.llama_backend_init()
    parameters = llama.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype = 1, _FILE_TYPES[kind]
    assert llama.llama_model_quantize(path.encode(), result.encode(), ctypes.byref(parameters)) == 0
