"""Run artifacts with ONNX Runtime, with ids that the tables of the file have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.errors import VerifyError
from qfunc.lowering.artifact import Artifact, file_of
from qfunc.lowering.checked_runtime import CheckedRuntime, names_of_nodes
from qfunc.lowering.code_outputs import ModelWithCodes
from qfunc.lowering.coded_state.ends import with_real_ends
from qfunc.lowering.machines.process import Machine, is_machine, opened
from qfunc.lowering.onnxruntime.session import Session
from qfunc.lowering.runner_support import FOURS, SATURATES, files_of, has, loading, other_kernels, this_cpu
from qfunc.specs._check import instance_of, integer
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu
from qfunc.targets.onnxruntime.block_products import ModelWithProducts, model_with_products
from qfunc.targets.onnxruntime.lstm_view import ModelWithLstms, model_with_lstms
from qfunc.targets.onnxruntime.optimized_model import OptimizedModel, optimized_model
from qfunc.targets.onnxruntime.profile import profile
from qfunc.targets.onnxruntime.written_positions import with_checked_positions

_MODEL = "model.onnx"
Run = Callable[[Sequence[Any]], list[Any]]
_MOVES, _LOOKUPS = ("Cast", "Reshape"), ("Gather", "GatherBlockQuantized")


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
            model = with_real_ends(file_of(files_of(artifact, "OnnxRuntimeRunner"), _MODEL))
            return with_checked_positions(_with_checked_ids(self.session(model).run, model), model)

    def session(self, model: bytes) -> Any:
        """Return a loaded model, which runs many batches."""
        return opened(self.machine, Session, model, optimise=self.optimise, threads=self.threads)

    def inside(self, artifact: Any) -> OptimizedModel | UnoptimizedModel | ModelWithCodes | ModelWithProducts | ModelWithLstms:
        """Return the model with its tensors of codes as outputs: those of the optimised graph, or all of them.

        A model with MatMulNBits has no codes: its real tensors are outputs.  One with DynamicQuantizeLSTM runs on one thread.
        """
        view = optimized_model if self.optimise else _unoptimized_model
        with loading("OnnxRuntimeRunner", "ONNX Runtime"):
            model = with_real_ends(file_of(files_of(artifact, "OnnxRuntimeRunner"), _MODEL))
            products = model_with_products(model, self.threads, self.machine) if self.optimise else None
            layers = model_with_lstms(model, self.machine) if self.optimise else None
            return products or layers or view(model, self.threads, self.machine)

    def profiled(self, artifact: Any, inputs: Sequence[Any]) -> dict[str, float]:
        """Return the seconds of each operation, by the names of the file; operations that the optimiser adds have their own."""
        model = with_real_ends(file_of(files_of(artifact, "OnnxRuntimeRunner"), _MODEL))
        return profile(model, inputs, self.threads, self.optimise)

    def checked(self) -> CheckedRuntime:
        """Return what a package for another machine needs."""
        return CheckedRuntime("onnxruntime", (_MODEL,), _shown, self._settings, page=True)

    def _settings(self, artifact: Artifact) -> dict[str, Any]:
        from qfunc.targets.onnxruntime.lstm_nodes import OPERATOR

        layers = names_of_nodes(artifact, _MODEL, OPERATOR, lambda node: str(node.name))
        return {"optimise": self.optimise, "threads": 1 if layers else self.threads}  # of several, each has own scales

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if the CPU computes the artifact as x86-64 with VNNI, else the reason; None stands for any artifact.

        `verify` asks this only for targets without `Runtime.builds`.  Without optimisation all kernels are float, and the
        result is "".
        """
        if not self.optimise or self.machine is not None:
            return ""
        exact = has(*FOURS) or (artifact is not None and not _exceeds_seven_bits(file_of(artifact.files, _MODEL)))
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


def _shown(artifact: Artifact) -> dict[str, str]:
    # The codes after each QuantizeLinear.
    return {name: name for name in names_of_nodes(artifact, _MODEL, "QuantizeLinear", lambda node: str(node.output[0]))}


@frozen(eq=False)
class UnoptimizedModel:
    """A model without optimisation, with each tensor NAME.codes as an int32 output.

    `units` maps each of them to "integer" (the result of an operator on codes) or "float" (quantized from a float tensor).
    It is None if no operator computes on codes.
    """

    session: Any
    tensors: frozenset[str]
    units: dict[str, str] | None
    difference: str = ""

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs, code tensor -> codes)."""
        values = dict(zip(self.session.outputs, self.session.run(inputs), strict=True))
        codes = {name: values.pop(f"{name}.seen") for name in self.tensors}
        return list(values.values()), codes


def _unoptimized_model(model: bytes, threads: int = 0, machine: Machine | None = None) -> UnoptimizedModel:
    """Load a model with its tensors of codes as outputs."""
    # Import here, so that `import qfunc` does not import onnx.
    import onnx

    from qfunc.files.onnx_model import read_model

    exposed = read_model(model)
    producers = {o: n.op_type for n in exposed.graph.node for o in n.output if o.endswith(".codes")}
    for name in producers:  # cast, because numpy has no 4-bit integers
        exposed.graph.node.append(onnx.helper.make_node("Cast", [name], [f"{name}.seen"], to=onnx.TensorProto.INT32))
        exposed.graph.output.append(onnx.helper.make_tensor_value_info(f"{name}.seen", onnx.TensorProto.INT32, None))
    session = opened(machine, Session, exposed.SerializeToString(), optimise=False, threads=threads)
    units = {name: "float" if op == "QuantizeLinear" else "integer" for name, op in producers.items()}
    return UnoptimizedModel(session, frozenset(producers), units if "integer" in units.values() else None)


def _with_checked_ids(run: Run, model: bytes) -> Run:
    """Return `run` of a model that first raises for ids outside of the tables that its inputs index.

    ONNX Runtime counts negative ids from the end, or reads other memory.  The tables are those of Gather and
    GatherBlockQuantized, whose indices are inputs, directly or after casts and reshapes.

    Raises:
        VerifyError: names the input, the id, the table and its rows.
    """
    import onnx

    graph = onnx.ModelProto.FromString(model).graph
    rows = {t.name: t.dims[0] for t in graph.initializer if t.dims}
    inputs = {v.name: place for place, v in enumerate(v for v in graph.input if v.name not in rows)}
    names = {name: name for name in inputs}  # tensor -> the input whose entries it has
    tables: list[tuple[str, str]] = []
    for node in graph.node:
        if node.op_type in _MOVES and node.input[0] in names:
            names[node.output[0]] = names[node.input[0]]
        along = next((a.i for a in node.attribute if a.name in ("axis", "gather_axis")), 0)
        if node.op_type in _LOOKUPS and not along and node.input[0] in rows and node.input[1] in names:
            tables.append((names[node.input[1]], node.input[0]))
    if not tables:
        return run

    def checked(given: Sequence[Any]) -> list[Any]:
        for name, table in tables:
            ids = np.asarray(given[inputs[name]])
            low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
            if low < 0 or high >= rows[table]:
                raise VerifyError(
                    where=f"OnnxRuntimeRunner, input {name!r}",
                    found=f"the id {low if low < 0 else high}",
                    wanted=f"ids from 0 to {rows[table] - 1}, as the table {table!r} has {rows[table]} rows",
                    do="Pass ids of the model's own tokenizer or table.",
                )
        return run(given)

    return checked
