"""Single ops of ggml, computed by the libraries that llama-cpp-python installs."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INSTALLED = importlib.util.find_spec("llama_cpp") is not None
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


class Graph:
    """A graph of one op: `tensor` adds an input, `call` an op, `run` returns a result of a given shape."""

    def __init__(self) -> None:
        self.context = _functions()["ggml_init"](_Init(1 << 26, None, False))

    def tensor(self, values: Array) -> int:
        values = np.ascontiguousarray(values)
        sizes = [*values.shape[::-1], 1, 1, 1][:4]
        made: int = _functions()["ggml_new_tensor_4d"](self.context, _TYPES[values.dtype.name], *sizes)
        ctypes.memmove(_functions()["ggml_get_data"](made), values.ctypes.data, values.nbytes)
        return made

    def call(self, name: str, *arguments: Any) -> int:
        made: int = _functions()[name](self.context, *arguments)
        return made

    def run(self, result: int, shape: tuple[int, ...], threads: int = 1) -> Array:
        call = _functions()
        graph = call["ggml_new_graph"](self.context)
        call["ggml_build_forward_expand"](graph, result)
        assert call["ggml_graph_compute_with_ctx"](self.context, graph, threads) == 0
        found = np.empty(shape, np.float32)
        ctypes.memmove(found.ctypes.data, call["ggml_get_data"](result), found.nbytes)
        call["ggml_free"](self.context)
        return found
