"""A process of its own in which llama.cpp computes logits: `python -P llama_worker.py [FILE THREADS]`.

Other libraries with a ggml of their own would share it with llama.cpp in one process, and llama.cpp ends its process on an
error.  Without arguments it prints what llama.cpp is built for.  With a file, it writes the number of tokens of the vocabulary
(int64, -1 if llama.cpp rejects the file); then, for each sequence that it reads (int64 length, int32 ids), a status (int64),
and if that is 0 the logits in float32.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from typing import Any

_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)
_SMALLEST = 256
"""llama.cpp pads a context to a multiple of this size."""


def library() -> Any:
    """Return the bindings of llama-cpp-python, with an initialised llama.cpp that prints nothing."""
    llama = importlib.import_module("llama_cpp.llama_cpp")
    llama.llama_log_set(_SILENT, ctypes.c_void_p(0))
    llama.llama_backend_init()
    return llama


def load(llama: Any, path: str) -> Any:
    """Return the model of a file, on the CPU; nothing that llama.cpp rejects."""
    parameters = llama.llama_model_default_params()
    parameters.n_gpu_layers = 0
    return llama.llama_model_load_from_file(path.encode(), parameters)


def logits(llama: Any, model: Any, ids: tuple[int, ...], tokens: int, threads: int) -> tuple[int, bytes]:
    """Return the status, and the logits of a sequence, computed as one batch from an empty cache."""
    count = len(ids)
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = max(count, _SMALLEST)
    parameters.n_batch = parameters.n_ubatch = count
    parameters.n_threads = parameters.n_threads_batch = threads
    context = llama.llama_init_from_model(model, parameters)
    if not context:
        return -1, b""
    batch = llama.llama_batch_init(count, 0, 1)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    batch.n_tokens = count
    status = llama.llama_decode(context, batch)
    found = b"" if status else ctypes.string_at(llama.llama_get_logits(context), 4 * count * tokens)
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    return status, found


def serve(path: str, threads: int) -> None:
    """Answer sequences until the input ends."""
    llama, source, sink = library(), sys.stdin.buffer, sys.stdout.buffer
    model = load(llama, path)
    tokens = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)) if model else -1
    sink.write(struct.pack("<q", tokens))
    sink.flush()
    while model and len(head := source.read(8)) == 8:
        (count,) = struct.unpack("<q", head)
        status, found = logits(llama, model, struct.unpack(f"<{count}i", source.read(4 * count)), tokens, threads)
        sink.write(struct.pack("<q", status) + found)
        sink.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1], int(sys.argv[2]))
    else:
        sys.stdout.write(library().llama_print_system_info().decode())
