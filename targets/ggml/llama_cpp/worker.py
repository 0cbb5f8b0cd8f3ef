"""A process of its own in which llama.cpp computes logits: `python -P worker.py [FILE THREADS]`.

Other libraries with a ggml of their own would share it with llama.cpp in one process, and llama.cpp ends its process on an
error.  Without arguments it prints what llama.cpp is built for.  With a file, it writes the number of tokens of the vocabulary
(int64, -1 if llama.cpp rejects the file) and its type of RoPE (int64).  Then it reads sequences: int64 length, position of the
first token, size of the context (0 for one of the length) and bytes of the state before; int32 ids; the state, as llama.cpp
copies it.  For each it writes a status and the bytes of the state after (int64), and if the status is 0 the logits in float32
and the state, which is left out of a sequence without context.
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


def logits(
    llama: Any, model: Any, ids: tuple[int, ...], tokens: int, threads: int, first: int = 0, length: int = 0, state: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Return the status, the logits of tokens that are one batch, and the state after them.

    Args:
        ids: The tokens.
        tokens: The size of the vocabulary.
        threads: Of llama.cpp.
        first: The position of the first token.
        length: The size of the context; 0 for that of the tokens, whose state is not returned.
        state: The state before, empty for none.
    """
    count = len(ids)
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = max(length or count, _SMALLEST)
    parameters.n_batch = parameters.n_ubatch = count
    parameters.n_threads = parameters.n_threads_batch = threads
    context = llama.llama_init_from_model(model, parameters)
    if not context:
        return -1, b"", b""
    if (
        state
        and llama.llama_state_seq_set_data(context, (ctypes.c_uint8 * len(state)).from_buffer_copy(state), len(state), 0) == 0
    ):
        llama.llama_free(context)
        return -4, b"", b""
    batch = llama.llama_batch_init(count, 0, 1)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, first + i, 1, 1
        batch.seq_id[i][0] = 0
    batch.n_tokens = count
    status = llama.llama_decode(context, batch)
    found = b"" if status else ctypes.string_at(llama.llama_get_logits(context), 4 * count * tokens)
    after = b"" if status or not length else _state(llama, context)
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    return status, found, after


def _state(llama: Any, context: Any) -> bytes:
    size = llama.llama_state_seq_get_size(context, 0)
    held = (ctypes.c_uint8 * size)()
    llama.llama_state_seq_get_data(context, held, size, 0)
    return bytes(held)


def serve(path: str, threads: int) -> None:
    """Answer sequences until the input ends."""
    llama, source, sink = library(), sys.stdin.buffer, sys.stdout.buffer
    model = load(llama, path)
    tokens = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)) if model else -1
    sink.write(struct.pack("<2q", tokens, llama.llama_model_rope_type(model) if model else -1))
    sink.flush()
    while model and len(head := source.read(32)) == 32:
        count, first, length, size = struct.unpack("<4q", head)
        ids, state = struct.unpack(f"<{count}i", source.read(4 * count)), source.read(size)
        status, found, after = logits(llama, model, ids, tokens, threads, first, length, state)
        sink.write(struct.pack("<2q", status, len(after)) + found + after)
        sink.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1], int(sys.argv[2]))
    else:
        sys.stdout.write(library().llama_print_system_info().decode())
