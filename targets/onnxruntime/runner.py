"""Run artifacts with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import field, frozen

from qfunc.lowering.artifact import file_of
from qfunc.lowering.checked_runtime import CheckedRuntime
from qfunc.lowering.code_outputs import ModelWithCodes
from qfunc.lowering.coded_state.ends import with_real_ends
from qfunc.lowering.machines.process import Machine, is_machine, opened
from qfunc.lowering.onnxruntime.session import Session
from qfunc.lowering.runner_support import FOURS, SATURATES, files_of, has, loading, other_kernels, this_cpu
from qfunc.specs._check import instance_of, integer
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu
from qfunc.targets.onnxruntime.block_products import ModelWithProducts, model_with_products
from qfunc.targets.onnxruntime.checked import checked_runtime
from qfunc.targets.onnxruntime.looked_up_ids import with_checked_ids
from qfunc.targets.onnxruntime.optimized_model import OptimizedModel, optimized_model
from qfunc.targets.onnxruntime.unoptimized_model import UnoptimizedModel, unoptimized_model
from qfunc.targets.onnxruntime.written_positions import with_checked_positions


@readable
@frozen(kw_only=True)
class OnnxRuntimeRunner:
    """ONNX Runtime's CPUExecutionProvider, with all graph optimisations or none.

    With `threads=0` the runtime chooses the number.  `machine` is another processor, a `Qemu` or a `Node`; None is this one.
    Needs the artifact's "model.onnx".

    >>> OnnxRuntimeRunner()
    OnnxRuntimeRunner()
    """

    optimise: bool = field(default=True, validator=instance_of(bool))
    threads: int = field(default=0, validator=integer(0))
    machine: Machine | None = field(default=None, validator=is_machine)

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order."""
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: ONNX Runtime does not load the file; of the function: ids outside of a table, or positions outside of a
                state.
        """
        with loading("OnnxRuntimeRunner", "ONNX Runtime"):
            model = with_real_ends(file_of(files_of(artifact, "OnnxRuntimeRunner"), "model.onnx"))
            return with_checked_positions(with_checked_ids(self.session(model).run, model), model)

    def session(self, model: bytes) -> Any:
        """Return a loaded model, which runs many batches."""
        return opened(self.machine, Session, model, optimise=self.optimise, threads=self.threads)

    def inside(self, artifact: Any) -> OptimizedModel | UnoptimizedModel | ModelWithCodes | ModelWithProducts:
        """Return the model with its tensors of codes as outputs: those of the optimised graph, or all of them.

        A model with MatMulNBits has no codes: its real tensors are outputs.
        """
        view = optimized_model if self.optimise else unoptimized_model
        with loading("OnnxRuntimeRunner", "ONNX Runtime"):
            model = with_real_ends(file_of(files_of(artifact, "OnnxRuntimeRunner"), "model.onnx"))
            products = model_with_products(model, self.threads, self.machine) if self.optimise else None
            return products or view(model, self.threads, self.machine)

    def checked(self) -> CheckedRuntime:
        """Return what a package for another machine needs."""
        return checked_runtime(self.optimise)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if the CPU computes the artifact as x86-64 with VNNI, else the reason; None stands for any artifact.

        `verify` asks this only for targets without `Runtime.builds`.  Without optimisation all kernels are float, and the
        result is "".
        """
        if not self.optimise or self.machine is not None:
            return ""
        exact = has(*FOURS) or (artifact is not None and not _exceeds_seven_bits(file_of(artifact.files, "model.onnx")))
        return other_kernels() or ("" if exact else SATURATES)

    @property
    def cpu(self) -> Cpu | None:
        """The processor; None without optimisation, where all kernels are float."""
        if not self.optimise:
            return None
        return this_cpu() if self.machine is None else self.machine.cpu

    def unlike(self) -> tuple[str, ...]:
        """Return the kinds of float ops that this processor computes in another order than the emulation, or may so."""
        if self.cpu is None:
            return ()
        if self.cpu.architecture != "x86-64":
            return ("matmul", "cached_attention", "rms_norm", "sin", "cos", "sum")
        known = self.machine is None and has("avx512f")
        return () if known else ("softmax", "gelu", "erf", "silu", "linear", "matmul", "cached_attention")


def _exceeds_seven_bits(model: bytes) -> bool:
    import onnx

    from qfunc.files.onnx_model import read_model

    stored = read_model(model).graph.initializer
    arrays = (onnx.numpy_helper.to_array(t) for t in stored if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1)
    return any(a.size and max(a.max(), -int(a.min())) > 64 for a in arrays)
