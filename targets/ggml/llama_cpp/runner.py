"""Run GGUF files of whole decoders with llama.cpp."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

from attrs import field, frozen

from qfunc.lowering.artifact import file_of
from qfunc.lowering.runner_support import files_of, loading, not_installed, other_kernels, require, this_cpu
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu


@readable
@frozen
class LlamaCppRunner:
    """llama.cpp on the CPU: the logits of all tokens of a batch of sequences, each in a context of its own.

    Install the extra `llamacpp`, which compiles llama.cpp.  Attention is llama.cpp's default, one pass over a cache in float16,
    and the tokens of a call are one batch.  `threads` change no number, except those of a single token after 256 and more,
    whose keys llama.cpp divides among them; the target describes one thread.  Needs the artifact's "model.gguf".

    >>> LlamaCppRunner()
    LlamaCppRunner()
    """

    threads: int = field(default=1, validator=integer(1))

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("llama_cpp", "llama-cpp-python")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the logits, float32 [B, T, vocabulary], of token ids [B, T]; with positions and a cache, also the cache after.

        Raises:
            VerifyError: llama-cpp-python is not installed, or rejects the file.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: llama-cpp-python is not installed, or rejects the file.
        """
        require(self.missing(), "LlamaCppRunner", "llamacpp", "llama-cpp-python 0.3.36")
        # Import here, so that `import qfunc` does not load llama.cpp.
        from qfunc.targets.ggml.llama_cpp.session import LlamaSession

        with loading("LlamaCppRunner", "llama.cpp"):
            return LlamaSession(file_of(files_of(artifact, "LlamaCppRunner"), "model.gguf"), self.threads).run

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this llama.cpp computes as the target describes, else the reason why it may not."""
        if self.missing() or other_kernels():
            return other_kernels()
        from qfunc.targets.ggml.llama_cpp.session import features

        if platform.libc_ver()[0] != "glibc":
            return "this C library computes other sines and exponentials than glibc"
        wide = {"AVX512", "FMA", "F16C"} <= features()
        return "" if wide else "this llama.cpp is built without AVX-512, and adds in another order"

    @property
    def cpu(self) -> Cpu:
        """The processor."""
        return this_cpu()
