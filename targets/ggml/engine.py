"""ggml on the CPU, through its C interface: products of rows and quantized weights, and its own quantizers."""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.errors import VerifyError

PACKAGE = "libggml"
"""The module of the distribution libggml-python."""

TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13,
    "Q6_K": 14, "MXFP4": 39,
}  # fmt: skip
"""Name of a type of tensors -> its number in ggml."""

_Pointer, _Int, _Size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
_CONTEXT_BYTES = 1 << 20
"""For the descriptions of a few tensors and one graph; their data is elsewhere."""


class _FileParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.POINTER(_Pointer)))


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _Size), ("mem_buffer", _Pointer), ("no_alloc", ctypes.c_bool))


_SIGNATURES: dict[str, dict[str, tuple[Any, ...]]] = {
    "base": {
        "ggml_version": (ctypes.c_char_p,),
        "ggml_init": (_Pointer, _InitParams),
        "ggml_free": (None, _Pointer),
        "ggml_row_size": (_Size, ctypes.c_int, _Int),
        "ggml_new_tensor_2d": (_Pointer, _Pointer, ctypes.c_int, _Int, _Int),
        "ggml_mul_mat": (_Pointer, _Pointer, _Pointer, _Pointer),
        "ggml_new_graph": (_Pointer, _Pointer),
        "ggml_build_forward_expand": (None, _Pointer, _Pointer),
        "ggml_get_data": (_Pointer, _Pointer),
        "ggml_get_tensor": (_Pointer, _Pointer, ctypes.c_char_p),
        "ggml_nbytes": (_Size, _Pointer),
        "ggml_nrows": (_Int, _Pointer),
        "gguf_init_from_file": (_Pointer, ctypes.c_char_p, _FileParams),
        "gguf_free": (None, _Pointer),
        "gguf_get_n_tensors": (_Int, _Pointer),
        "gguf_get_tensor_name": (ctypes.c_char_p, _Pointer, _Int),
        "gguf_get_tensor_type": (ctypes.c_int, _Pointer, _Int),
        "ggml_quantize_chunk": (_Size, ctypes.c_int, _Pointer, _Pointer, _Int, _Int, _Int, _Pointer),
        "ggml_log_set": (None, _Pointer, _Pointer),
        "ggml_backend_alloc_ctx_tensors_from_buft": (_Pointer, _Pointer, _Pointer),
        "ggml_backend_buffer_free": (None, _Pointer),
        "ggml_backend_cpu_buffer_type": (_Pointer,),
        "ggml_backend_dev_supports_op": (ctypes.c_bool, _Pointer, _Pointer),
        "ggml_backend_graph_compute": (ctypes.c_int, _Pointer, _Pointer),
        "ggml_backend_reg_dev_get": (_Pointer, _Pointer, _Size),
        "ggml_backend_reg_get_proc_address": (_Pointer, _Pointer, ctypes.c_char_p),
        "ggml_backend_tensor_get": (None, _Pointer, _Pointer, _Size, _Size),
        "ggml_backend_tensor_set": (None, _Pointer, _Pointer, _Size, _Size),
    },
    "cpu": {
        "ggml_backend_cpu_init": (_Pointer,),
        "ggml_backend_cpu_reg": (_Pointer,),
        "ggml_backend_cpu_set_n_threads": (None, _Pointer, ctypes.c_int),
        "ggml_cpu_has_avx2": (ctypes.c_int,),
        "ggml_cpu_has_fma": (ctypes.c_int,),
    },
}
"""Library -> function -> (type of the result, types of the arguments): ggml.h, ggml-backend.h and ggml-cpu.h."""


@frozen(eq=False)
class Engine:
    """The loaded libraries; `engine()` returns the only one."""

    functions: dict[str, Any]
    backend: int
    device: int
    special: tuple[int, ...]

    @property
    def version(self) -> str:
        """The version of ggml."""
        version: bytes = self.functions["ggml_version"]()
        return version.decode()

    @property
    def fused(self) -> bool:
        """True if the libraries were compiled for AVX2 and FMA, whose order of sums the target describes."""
        return bool(self.functions["ggml_cpu_has_avx2"]() and self.functions["ggml_cpu_has_fma"]())

    def read(self, content: bytes) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
        """Return the tensors of a GGUF file: name -> (type, its bytes, uint8 [rows, bytes of a row]).

        Raises:
            VerifyError: ggml does not read the file, or a type that is not one of `TYPES`.
        """
        call, context = self.functions, _Pointer()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            path.write_bytes(content)
            file = call["gguf_init_from_file"](str(path).encode(), _FileParams(False, ctypes.pointer(context)))
        if not file:
            do = "Deploy the model again: the file is damaged."
            raise VerifyError(where="ggml, model.gguf", found="a file that it does not read", wanted="a GGUF file", do=do)
        try:
            return dict(self._stored(file, context, i) for i in range(call["gguf_get_n_tensors"](file)))
        finally:
            call["gguf_free"](file)
            call["ggml_free"](context)

    def _stored(self, file: int, context: Any, index: int) -> tuple[str, tuple[str, np.ndarray[Any, Any]]]:
        call, names = self.functions, {number: name for name, number in TYPES.items()}
        name, kind = call["gguf_get_tensor_name"](file, index), call["gguf_get_tensor_type"](file, index)
        if kind not in names:
            wanted, do = f"one of {', '.join(TYPES)}", "Deploy the model again."
            raise VerifyError(where=f"ggml, tensor {name.decode()!r}", found=f"type {kind}", wanted=wanted, do=do)
        tensor = call["ggml_get_tensor"](context, name)
        data = ctypes.string_at(call["ggml_get_data"](tensor), call["ggml_nbytes"](tensor))
        return name.decode(), (names[kind], np.frombuffer(data, np.uint8).reshape(call["ggml_nrows"](tensor), -1))

    def quantize(self, kind: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the bytes of rows [N, K] in a type of ggml, uint8 [N, bytes of a row], by ggml's own quantizer."""
        given = np.ascontiguousarray(rows, np.float32)
        found = np.zeros((len(given), self._row_bytes(kind, given.shape[1])), np.uint8)
        place = (given.ctypes.data, found.ctypes.data, 0, *given.shape, None)
        self.functions["ggml_quantize_chunk"](TYPES[kind], *place)
        return found

    def product(
        self, kind: str, weight: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], threads: int = 1
    ) -> np.ndarray[Any, Any]:
        """Return rows [M, K] times a weight [N, K], in float32 [M, N]; the weight is repacked where llama.cpp repacks it.

        Args:
            kind: The type of the weight.
            weight: Its bytes, uint8 [N, bytes of a row].
            rows: float32 [M, K].
            threads: Threads of ggml; they change no number.
        Raises:
            VerifyError: bytes that are not those of rows with K entries.
        """
        rows, weight = np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(weight, np.uint8)
        (count, size), outputs, call = rows.shape, len(weight), self.functions
        wanted = (outputs, self._row_bytes(kind, size))
        if weight.shape != wanted:
            do = "Deploy the model again: the file is damaged, or of another version."
            raise VerifyError(where=f"ggml, weight in {kind}", found=f"shape {weight.shape}", wanted=f"{wanted}", do=do)
        found = np.zeros((count, outputs), np.float32)
        # As in llama.cpp: the first special kind of memory in which the device computes the product, else plain memory.
        for memory in (*self.special, call["ggml_backend_cpu_buffer_type"]()) if found.size and size else ():
            with self._context() as held, self._context() as work:
                w = call["ggml_new_tensor_2d"](held, TYPES[kind], size, outputs)
                x = call["ggml_new_tensor_2d"](work, TYPES["F32"], size, count)
                y = call["ggml_mul_mat"](work, w, x)
                with self._memory(held, memory), self._memory(work, call["ggml_backend_cpu_buffer_type"]()):
                    if call["ggml_backend_dev_supports_op"](self.device, y):
                        self._compute(work, {w: weight, x: rows}, {y: found}, threads)
                        break
        return found

    def _compute(self, context: int, given: dict[int, Any], wanted: dict[int, Any], threads: int) -> None:
        call = self.functions
        graph = call["ggml_new_graph"](context)
        for tensor in wanted:
            call["ggml_build_forward_expand"](graph, tensor)
        for tensor, array in given.items():
            call["ggml_backend_tensor_set"](tensor, array.ctypes.data, 0, array.nbytes)
        call["ggml_backend_cpu_set_n_threads"](self.backend, threads)
        if status := call["ggml_backend_graph_compute"](self.backend, graph):
            raise VerifyError(where="ggml", found=f"status {status}", wanted="status 0", do="Free some memory.")
        for tensor, array in wanted.items():
            call["ggml_backend_tensor_get"](tensor, array.ctypes.data, 0, array.nbytes)

    def _row_bytes(self, kind: str, size: int) -> int:
        found: int = self.functions["ggml_row_size"](TYPES[kind], size)
        return found

    @contextmanager
    def _context(self) -> Iterator[int]:
        context = self.functions["ggml_init"](_InitParams(_CONTEXT_BYTES, None, True))
        try:
            yield context
        finally:
            self.functions["ggml_free"](context)

    @contextmanager
    def _memory(self, context: int, kind: int) -> Iterator[None]:
        memory = self.functions["ggml_backend_alloc_ctx_tensors_from_buft"](context, kind)
        try:
            yield
        finally:
            self.functions["ggml_backend_buffer_free"](memory)


@cache
def engine() -> Engine:
    """Load ggml once.

    Raises:
        VerifyError: libggml-python is not installed, or has no libraries for this machine.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = {
        name: sorted(p for f in folders for p in Path(f).rglob(f"*ggml-{name}.*") if p.suffix in _SUFFIXES) for name in _NAMES
    }
    if not all(files.values()):
        do = "Install qfunc-torch[gguf], or pass runtime=run, where run(artifact, inputs) -> outputs."
        raise VerifyError(where="GgmlRunner", found="no libraries of ggml", wanted="libggml-python 0.20.2 or later", do=do)
    functions = {}
    for name in _NAMES:
        library = ctypes.CDLL(str(files[name][0]), mode=ctypes.RTLD_GLOBAL)
        for symbol, (result, *arguments) in _SIGNATURES[name].items():
            function = getattr(library, symbol)
            function.restype, function.argtypes = result, arguments
            functions[symbol] = function
    functions["ggml_log_set"](ctypes.cast(_SILENT, _Pointer), None)
    registry = functions["ggml_backend_cpu_reg"]()
    device = functions["ggml_backend_reg_dev_get"](registry, 0)
    listed = functions["ggml_backend_reg_get_proc_address"](registry, b"ggml_backend_dev_get_extra_bufts")
    kinds = ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(listed)(device) if listed else []
    special: list[int] = []
    while kinds and kinds[len(special)]:
        special.append(kinds[len(special)])
    return Engine(functions, functions["ggml_backend_cpu_init"](), device, tuple(special))


_NAMES = ("base", "cpu")
_SUFFIXES = (".so", ".dylib", ".dll")
_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _Pointer)(lambda level, text, data: None)
"""ggml prints a line for each weight that it repacks."""
