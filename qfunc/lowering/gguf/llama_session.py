"""A decoder loaded by llama.cpp, in a process of its own."""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from qfunc.errors import VerifyError

_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("llama_worker.py")))


@cache
def features() -> frozenset[str]:
    """Return the names of the instruction sets that llama.cpp is built for."""
    text = subprocess.run(_WORKER, capture_output=True, text=True, check=True).stdout
    pairs = (entry.split("=") for part in text.split("|") for entry in part.split(":")[-1:] if "=" in entry)
    return frozenset(name.strip() for name, value in pairs if value.strip() == "1")


class LlamaSession:
    """A file, loaded once."""

    def __init__(self, content: bytes, threads: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            path.write_bytes(content)
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.process = subprocess.Popen((*_WORKER, str(path), str(threads)), **pipes)
            (self.tokens,) = struct.unpack("<q", self._read(8))
        if self.tokens < 0:
            self.close()
            do = "Deploy the model again: the file is damaged, or its decoder is not that of the model."
            raise VerifyError(
                where="LlamaCppRunner, model.gguf", found="a file that llama.cpp rejects", wanted="a model", do=do
            )

    def __del__(self) -> None:
        if hasattr(self, "process"):
            self.close()

    def close(self) -> None:
        """End the process."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()

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
        return [np.stack([self._logits(sequence) for sequence in ids[0]])]

    def _logits(self, ids: Any) -> np.ndarray[Any, Any]:
        sink: IO[bytes] | None = self.process.stdin
        assert sink is not None
        sink.write(struct.pack("<q", len(ids)) + np.ascontiguousarray(ids, "<i4").tobytes())
        sink.flush()
        (status,) = struct.unpack("<q", self._read(8))
        if status:
            found, do = f"status {status} for {len(ids)} tokens", "Give shorter sequences, or free some memory."
            raise VerifyError(where="LlamaCppRunner", found=found, wanted="status 0", do=do)
        return np.frombuffer(self._read(4 * len(ids) * self.tokens), "<f4").reshape(len(ids), self.tokens)

    def _read(self, size: int) -> bytes:
        source: IO[bytes] | None = self.process.stdout
        assert source is not None
        content = source.read(size)
        if len(content) < size:
            do = "Deploy the model again, or install llama-cpp-python again: it ended its process."
            raise VerifyError(where="LlamaCppRunner", found=f"exit code {self.process.wait()}", wanted="logits", do=do)
        return content


__all__ = ["LlamaSession", "features"]
