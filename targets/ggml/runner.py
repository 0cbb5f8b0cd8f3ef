"""Run artifacts with ggml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import field, frozen

from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithReals
from qfunc.lowering.runner_support import files_of, loading, not_installed, other_kernels, require, this_cpu
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu
from qfunc.targets.ggml.engine import PACKAGE, engine


@readable
@frozen
class GgmlRunner:
    """ggml on the CPU for the products, ONNX Runtime for all else.

    Install the extra `gguf`.  As llama.cpp does, the runner repacks weights in Q4_0 if 8 divides their outputs.  `threads`
    change no number.  Needs the artifact's "model.gguf" and "model.onnx".

    >>> GgmlRunner()
    GgmlRunner()
    """

    threads: int = field(default=1, validator=integer(1))

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed(PACKAGE, "libggml-python")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: libggml-python is not installed.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: libggml-python is not installed.
        """
        run: Callable[[Sequence[Any]], list[Any]] = self.session(artifact).run
        return run

    def inside(self, artifact: Any) -> ModelWithReals:
        """Return the model with its real tensors as outputs.

        Raises:
            VerifyError: libggml-python is not installed.
        """
        session = self.session(artifact)
        return ModelWithReals(session.run, lambda inputs: session.run(inputs, session.reals), session.reals)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this ggml computes as the target describes, else the reason why it may not."""
        fused = bool(self.missing()) or engine().fused
        return other_kernels() or ("" if fused else "this ggml is built without AVX2 and FMA, and adds in another order")

    @property
    def cpu(self) -> Cpu:
        """The processor."""
        return this_cpu()

    def session(self, artifact: Any) -> Any:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: libggml-python is not installed, or rejects the file.
        """
        require(self.missing(), "GgmlRunner", "gguf", "libggml-python 0.20.2")
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.files.onnx_model import read_model
        from qfunc.targets.ggml.session import GgmlSession

        with loading("GgmlRunner", "ggml"):
            graph = read_model(file_of(files_of(artifact, "GgmlRunner"), "model.onnx"))
            return GgmlSession(engine(), file_of(files_of(artifact, "GgmlRunner"), "model.gguf"), graph, self.threads)
