"""A decoder loaded by llama.cpp, through the bindings of llama-cpp-python."""

from __future__ import annotations

import ctypes
import importlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qfunc.errors import VerifyError

_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)
_SMALLEST = 256
"""llama.cpp pads a context to a multiple of this size."""


@cache
def library() -> Any:
    """Return the bindings, with an initialised llama.cpp that prints nothing."""
    llama_cpp = importlib.import_module("llama_cpp.llama_cpp")

    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


def features() -> set[str]:
    """Return the names of the instruction sets that llama.cpp is built for."""
    text = library().llama_print_system_info().decode()
    pairs = (entry.split("=") for part in text.split("|") for entry in part.split(":")[-1:] if "=" in entry)
    return {name.strip() for name, value in pairs if value.strip() == "1"}


class LlamaSession:
    """A file, loaded once."""

    def __init__(self, content: bytes, threads: int) -> None:
        self.llama, self.threads = library(), threads
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            path.write_bytes(content)
            self.model = self.llama.llama_model_load_from_file(str(path).encode(), self._model_parameters())
        if not self.model:
            do = "Deploy the model again: the file is damaged, or its decoder is not that of the model."
            raise VerifyError(
                where="LlamaCppRunner, model.gguf", found="a file that llama.cpp rejects", wanted="a model", do=do
            )
        self.tokens = self.llama.llama_vocab_n_tokens(self.llama.llama_model_get_vocab(self.model))

    def __del__(self) -> None:
        if getattr(self, "model", None):
            self.llama.llama_model_free(self.model)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the logits of token ids [B, T], in a list.

        Raises:
            VerifyError: other inputs, ids that the vocabulary does not have, or a batch that llama.cpp does not compute.
        """
        ids = [np.asarray(value) for value in inputs]
        if len(ids) != 1 or ids[0].ndim != 2 or ids[0].dtype.kind != "i":
            found = ", ".join(f"{value.dtype} {list(value.shape)}" for value in ids)
            do = "Export the model with input_ids only."
            raise VerifyError(where="LlamaCppRunner, inputs", found=found or "none", wanted="token ids [B, T]", do=do)
        if ids[0].size and not 0 <= ids[0].min() <= ids[0].max() < self.tokens:
            found, do = f"ids in [{ids[0].min()}, {ids[0].max()}]", "Give ids of the model's tokenizer."
            raise VerifyError(where="LlamaCppRunner, inputs", found=found, wanted=f"[0, {self.tokens - 1}]", do=do)
        found_ = np.zeros((*ids[0].shape, self.tokens), np.float32)
        for row, sequence in enumerate(ids[0]):
            found_[row] = self._logits(sequence)
        return [found_]

    def _logits(self, ids: Any) -> np.ndarray[Any, Any]:
        llama, count = self.llama, len(ids)
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = max(count, _SMALLEST)
        parameters.n_batch = parameters.n_ubatch = count
        parameters.n_threads = parameters.n_threads_batch = self.threads
        context = llama.llama_init_from_model(self.model, parameters)
        batch = llama.llama_batch_init(count, 0, 1)
        try:
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
                batch.seq_id[i][0] = 0
            batch.n_tokens = count
            if status := llama.llama_decode(context, batch):
                found, do = f"status {status} for {count} tokens", "Give shorter sequences, or free some memory."
                raise VerifyError(where="LlamaCppRunner", found=found, wanted="status 0", do=do)
            logits = llama.llama_get_logits(context)
            return np.ctypeslib.as_array(logits, (count, self.tokens)).copy()
        finally:
            llama.llama_batch_free(batch)
            llama.llama_free(context)

    def _model_parameters(self) -> Any:
        parameters = self.llama.llama_model_default_params()
        parameters.n_gpu_layers = 0
        return parameters


__all__ = ["LlamaSession", "features", "library"]
