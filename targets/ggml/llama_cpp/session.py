"""A decoder loaded by llama.cpp, in a process of its own.

The state of a sequence, as llama.cpp copies it, is the positions of its tokens, and their keys and values in float16.
"""

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
import torch

from qfunc.errors import VerifyError
from qfunc.graph.input_limits.positions import PASS_POSITIONS, wrong_position

_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("worker.py")))
Array = np.ndarray[Any, Any]
_F16 = 1
_HEAD, _CELL, _TENSOR = struct.Struct("<IiII"), struct.Struct("<iii"), struct.Struct("<iQ")
_MAGIC = 0xAF143CD8


def _is_cache(others: list[Array], ids: Array) -> bool:
    positions, *cache = others
    consecutive = positions.shape == ids.shape and positions.size > 0 and bool((np.diff(positions) == 1).all())
    return consecutive and len(cache) > 1 and all(t.ndim == 4 and len(t) == len(ids) for t in cache)


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
            self.tokens, rope = struct.unpack("<2q", self._read(16))
            self.adjacent = rope == 0  # llama.h: LLAMA_ROPE_TYPE_NORM
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
        """Return [logits] of token ids [B, T], or [logits, *cache] of ids, their positions [B, T] and a cache.

        Raises:
            VerifyError: other inputs, ids that the vocabulary does not have, positions outside of the cache, or a batch that
                llama.cpp does not compute.
        """
        ids, *others = (np.asarray(value) for value in inputs) if inputs else [np.zeros(0)]
        if ids.ndim != 2 or ids.dtype.kind != "i" or (others and not _is_cache(others, ids)):
            found = ", ".join(f"{value.dtype} {list(value.shape)}" for value in (ids, *others)) if inputs else "none"
            wanted = "token ids [B, T], alone or with consecutive positions [B, T] and a cache"
            do = "Export the model with input_ids only, or pass qfunc.decoder(length)(model).program."
            raise VerifyError(where="LlamaCppRunner, inputs", found=found, wanted=wanted, do=do)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.tokens:
            found, do = f"ids in [{ids.min()}, {ids.max()}]", "Give ids of the model's tokenizer."
            raise VerifyError(where="LlamaCppRunner, inputs", found=found, wanted=f"[0, {self.tokens - 1}]", do=do)
        if not others:
            return [np.stack([self._step(np.asarray(sequence))[0] for sequence in ids])]
        positions, *cache = others
        length = np.size(cache[0], 2)
        if found := wrong_position(torch.tensor(positions), length, None):
            wanted = f"consecutive positions from 0 to {length - 1}, as the cache has {length}"
            raise VerifyError(where="LlamaCppRunner, inputs", found=found, wanted=wanted, do=PASS_POSITIONS)
        rows = [self._with_cache(np.asarray(row), int(positions[i, 0]), [t[i] for t in cache]) for i, row in enumerate(ids)]
        return [np.stack(parts) for parts in zip(*rows, strict=True)]

    def _with_cache(self, ids: Array, first: int, cache: list[Array]) -> list[Array]:
        before = packed(cache, first, self.adjacent) if first else b""
        logits, state = self._step(ids, first, cache[0].shape[1], before)
        return [logits, *unpacked(state, first + len(ids), cache, self.adjacent)]

    def _step(self, ids: Array, first: int = 0, length: int = 0, state: bytes = b"") -> tuple[Array, bytes]:
        sink: IO[bytes] | None = self.process.stdin
        assert sink is not None
        head = struct.pack("<4q", len(ids), first, length, len(state))
        sink.write(head + np.ascontiguousarray(ids, "<i4").tobytes() + state)
        sink.flush()
        status, size = struct.unpack("<2q", self._read(16))
        if status:
            found, do = f"status {status} for {len(ids)} tokens", "Give shorter sequences, or free some memory."
            raise VerifyError(where="LlamaCppRunner", found=found, wanted="status 0", do=do)
        logits = np.frombuffer(self._read(4 * len(ids) * self.tokens), "<f4").reshape(len(ids), self.tokens)
        return logits, self._read(size)

    def _read(self, size: int) -> bytes:
        source: IO[bytes] | None = self.process.stdout
        assert source is not None
        content = source.read(size)
        if len(content) < size:
            do = "Deploy the model again, or install llama-cpp-python again: it ended its process."
            raise VerifyError(where="LlamaCppRunner", found=f"exit code {self.process.wait()}", wanted="logits", do=do)
        return content


def packed(cache: Sequence[Array], count: int, adjacent: bool) -> bytes:
    """Return the state of `count` tokens from position 0.

    Args:
        cache: Keys and values of each layer in turn, [H, L, D], with values of float16.
        count: The tokens.
        adjacent: The file has entries i and i + D / 2 of a key beside each other.
    Source: llama.cpp, src/llama-context.cpp: state_seq_write_data, and src/llama-kv-cache.cpp: state_write.

    >>> zeros = np.zeros((2, 8, 4), np.float32)
    >>> len(packed([zeros, zeros], 3, True)) == 16 + 3 * 12 + 8 + 2 * (12 + 3 * 16)
    True
    """
    parts = [_HEAD.pack(_MAGIC, 0, 1, count), *(_CELL.pack(position, 1, 0) for position in range(count))]
    parts.append(struct.pack("<II", 0, len(cache) // 2))
    keys = [_paired(t) if adjacent else t for t in cache[::2]]
    for tensor in (*keys, *cache[1::2]):
        rows = tensor[:, :count].swapaxes(0, 1).astype("<f2").reshape(count, -1)
        parts += [_TENSOR.pack(_F16, 2 * rows.shape[1]), rows.tobytes()]
    return b"".join(parts)


def _paired(keys: Array) -> Array:
    return keys.reshape(*keys.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(keys.shape)


def _apart(keys: Array) -> Array:
    return keys.reshape(*keys.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(keys.shape)


def unpacked(state: bytes, count: int, cache: Sequence[Array], adjacent: bool) -> list[Array]:
    """Return the cache of a state in float32; rows after the tokens are those of `cache`.

    Raises:
        VerifyError: a state of another form, as of another version of llama.cpp.

    >>> cache = [np.arange(16, dtype=np.float32).reshape(2, 2, 4), np.ones((2, 2, 4), np.float32)]
    >>> [bool((a == b).all()) for a, b in zip(unpacked(packed(cache, 2, True), 2, cache, True), cache)]
    [True, True]
    """
    end, found = _HEAD.size + count * _CELL.size + 8, list[Array]()
    for index, tensor in enumerate((*cache[::2], *cache[1::2])):
        heads, _, size = tensor.shape
        start, end = end + _TENSOR.size, end + _TENSOR.size + 2 * count * heads * size
        rows = np.frombuffer(state[start:end].ljust(end - start, b"\0"), "<f2").reshape(count, heads, size)
        result = np.array(tensor, np.float32)
        result[:, :count] = (_apart(rows) if adjacent and 2 * index < len(cache) else rows).swapaxes(0, 1)
        found.append(result)
    ordered = [t for pair in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True) for t in pair]
    if packed(ordered, count, adjacent) != state:
        do = "Install llama-cpp-python 0.3.36, or compare whole sequences, from a model exported with input_ids only."
        found_bytes, wanted = f"a state of {len(state)} bytes", "that of llama.cpp 0.3.36 for this cache"
        raise VerifyError(where="LlamaCppRunner", found=found_bytes, wanted=wanted, do=do)
    return ordered
