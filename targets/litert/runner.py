"""Run artifacts with LiteRT, and with TensorFlow Lite Micro, the interpreter of microcontrollers."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.errors import VerifyError
from qfunc.lowering.artifact import Artifact, file_of
from qfunc.lowering.checked_runtime import CheckedRuntime
from qfunc.lowering.code_outputs import ModelWithCodes, code_names, with_code_outputs
from qfunc.lowering.machines.process import Machine, is_machine, opened
from qfunc.lowering.runner_support import files_of, loading, not_installed, other_kernels, require, this_cpu
from qfunc.specs._check import integer, one_of, refuse
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu
from qfunc.targets.litert.session import RESOLVERS, Session
from qfunc.targets.litert.units import changed_kernels, needed_tensors, written_units

_MODEL = "model.tflite"


@readable
@frozen
class LiteRtRunner:
    """LiteRT on the CPU, with one of its three kernel sets, which round differently.

    "xnnpack", the default, is the XNNPACK delegate, and the optimised kernels for all other ops; "reference" is the plain
    loops; "optimised" is the optimised kernels alone.  Install the extra `litert`.  With `threads=0` the runtime chooses
    the number.  `machine` is another processor, a `Qemu`, or a `Node` or `Browser`, where LiteRT.js runs "xnnpack", example by
    example; None is this one.  Needs the artifact's "model.tflite".

    >>> LiteRtRunner("reference")
    LiteRtRunner('reference')
    """

    kernels: str = field(default="xnnpack", validator=one_of(tuple(RESOLVERS)))
    threads: int = field(default=0, validator=integer(0))
    machine: Machine | None = field(default=None, validator=is_machine)

    def __attrs_post_init__(self) -> None:
        if self._web and self.kernels != "xnnpack":
            raise refuse(self, "kernels", self.kernels, "'xnnpack', which LiteRT.js runs", "Leave it out for this machine.")

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("ai_edge_litert", "ai-edge-litert")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        file = file_of(files_of(artifact, "LiteRtRunner"), _MODEL)
        run: Callable[[Sequence[Any]], list[Any]] = self.session(file).run
        return run

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        plain = self.session(file_of(files_of(artifact, "LiteRtRunner"), _MODEL), listed=True)
        content, last, executed, needed = with_outputs(artifact, "LiteRtRunner")
        exposed = self.session(content, listed=True)
        before, after = (frozenset(session.facts.get("delegated", ())) for session in (plain, exposed))  # LiteRT.js tells none
        difference = changed_kernels(before, after, needed.intersection(executed))
        return ModelWithCodes(plain.run, exposed.run, last, joined=self._web, executed=executed, difference=difference)

    def checked(self) -> CheckedRuntime:
        """Return what a package for another machine needs."""
        return CheckedRuntime("litert", (_MODEL,), _shown, lambda _: {"kernels": self.kernels})

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU computes as the targets describe, else the reason why it may not."""
        return other_kernels() if self.machine is None else ""

    @property
    def cpu(self) -> Cpu:
        """The processor."""
        return this_cpu() if self.machine is None else self.machine.cpu

    @property
    def _web(self) -> bool:
        return self.machine is not None and self.machine.cpu.architecture == "wasm"

    def session(self, model: bytes, listed: bool = False) -> Any:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        if self.machine is None:
            require(self.missing(), "LiteRtRunner", "litert", "ai-edge-litert 2.3")
        with loading("LiteRtRunner", "LiteRT"):
            return opened(self.machine, Session, model, kernels=self.kernels, threads=self.threads, listed=listed)


def with_outputs(artifact: Any, runner: str) -> tuple[bytes, dict[str, bool], dict[str, str], frozenset[str]]:
    """Return the file with its codes as additional outputs, and facts of the file.

    Code tensor -> True if its channels are last; the units; the tensors on which an output of the artifact depends.
    """
    flatbuffers: Any = importlib.import_module("flatbuffers")
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    with loading(runner, "TensorFlow Lite"):
        model = schema.ModelT.InitFromPackedBuf(file_of(files_of(artifact, "LiteRtRunner"), _MODEL), 0)
        graph = model.subgraphs[0]
        names, needed = [t.name.decode() for t in graph.tensors], needed_tensors(model)
    indices: dict[str, int] = with_code_outputs(artifact, zip(names, range(len(names)), strict=True))
    graph.outputs = np.array([*graph.outputs, *indices.values()], np.int32)
    model.signatureDefs = None  # which lists the outputs
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    last = {n: names[i].endswith(".nhwc") for n, i in indices.items()}
    return bytes(builder.Output()), last, written_units(model, code_names(artifact)), needed


@frozen
class TfliteMicroRunner:
    """TensorFlow Lite Micro on this machine, by the reference kernels, of which those of CMSIS-NN are bit-exact replacements.

    Install the packages `tflite-micro` and `ai-edge-litert`.  Tensors have the sizes in the file, so that each example is
    an invocation; outputs have the examples along their first axis.  `arena` is the size in bytes of the memory of all
    tensors; 0 computes it from the file.  Needs the artifact's "model.tflite".

    Source: tflite-micro on PyPI, python/tflite_micro/runtime.py; CMSIS-NN README ("bit-exact with TensorFlow Lite reference
        kernels").

    >>> TfliteMicroRunner()
    TfliteMicroRunner(arena=0)
    """

    arena: int = field(default=0, validator=integer(0))

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("tflite_micro", "tflite-micro") or not_installed("ai_edge_litert", "ai-edge-litert")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: a package is not installed, or the interpreter refuses the file.
        """
        return self.session(file_of(files_of(artifact, "TfliteMicroRunner"), _MODEL)).run(inputs)

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: a package is not installed, or the interpreter refuses the file.
        """
        plain = self.session(file_of(files_of(artifact, "TfliteMicroRunner"), _MODEL))
        exposed, last, executed, _ = with_outputs(artifact, "TfliteMicroRunner")
        return ModelWithCodes(plain.run, self.session(exposed).run, last, executed=executed)

    def session(self, model: bytes) -> MicroSession:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: a package is not installed, or the interpreter refuses the file.
        """
        if missing := self.missing():
            do = "Install qfunc-torch[litert] and tflite-micro, or pass runtime=run, where run(artifact, inputs) -> outputs."
            wanted = "tflite-micro and ai-edge-litert 2.3 or later"
            raise VerifyError(where="TfliteMicroRunner", found=missing, wanted=wanted, do=do)
        runtime = importlib.import_module("tflite_micro.python.tflite_micro.runtime")
        schema = importlib.import_module("ai_edge_litert.schema_py_generated")
        with loading("TfliteMicroRunner", "TensorFlow Lite Micro"):
            graph = schema.Model.GetRootAs(model, 0).Subgraphs(0)
            arena = self.arena or _memory(graph)
            interpreter = runtime.Interpreter.from_bytes(model, arena_size=arena)
        return MicroSession(interpreter, int(graph.OutputsLength()))


@frozen(eq=False)
class MicroSession:
    """An interpreter of one model, and the number of its outputs."""

    interpreter: Any
    outputs: int

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch."""
        arrays = [np.ascontiguousarray(i) for i in inputs]
        found = [self._one([a[i : i + 1] for a in arrays]) for i in range(len(arrays[0]))]
        return [np.concatenate([np.atleast_1d(p) for p in parts]) for parts in zip(*found, strict=True)]

    def _one(self, arrays: Sequence[Any]) -> list[Any]:
        for index, array in enumerate(arrays):
            self.interpreter.set_input(array, index)
        self.interpreter.invoke()
        return [self.interpreter.get_output(i) for i in range(self.outputs)]


def _memory(graph: Any) -> int:
    # All tensors at once, at 8 bytes an element, and 512 bytes for the records of each: more than the interpreter needs.
    sizes = [graph.Tensors(i).ShapeAsNumpy() for i in range(graph.TensorsLength())]
    return (1 << 20) + sum(512 + 8 * int(np.prod(s)) for s in sizes)


def _shown(artifact: Artifact) -> dict[str, str]:
    # The tensors of the file by their names in the model.
    from qfunc.targets.litert.builder import schema

    graph = schema().ModelT.InitFromPackedBuf(file_of(artifact.files, _MODEL), 0).subgraphs[0]
    names = [t.name.decode() for t in graph.tensors]
    counts = Counter(names)
    return {name.removesuffix(".nhwc"): name for name in reversed(names) if counts[name] == 1}
