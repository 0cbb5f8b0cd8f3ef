"""Run artifacts with ncnn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from itertools import count, takewhile
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.errors import VerifyError
from qfunc.files.ncnn_param import Line, input_shapes, read_param, split_axis
from qfunc.lowering.artifact import Artifact, file_of
from qfunc.lowering.checked_runtime import CheckedRuntime
from qfunc.lowering.code_outputs import code_names
from qfunc.lowering.machines.process import Machine, is_machine, opened
from qfunc.lowering.runner_support import files_of, has, not_installed, other_kernels, require, this_cpu
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu, x86_64_avx2, x86_64_sse4, x86_64_vnni
from qfunc.targets.ncnn.session import FILES, Session

_PARAM, _BIN = "model.ncnn.param", "model.ncnn.bin"


@readable
@frozen
class NcnnRunner:
    """ncnn on the CPU, with float32 between int8 layers; it runs the examples of a batch one by one.

    Install the extra `ncnn`.  The runner switches off Vulkan, float16, bfloat16 and the packed layout
    (`use_packing_layout`), in which depthwise convolutions approximate 1/(s_x s_w) by rcpps.  Winograd and sgemm are on, as
    by default; they and `threads` change no codes.  `machine` is another processor, a `Qemu`; None is this one.  Needs the
    artifact's "model.ncnn.param" and "model.ncnn.bin".

    >>> NcnnRunner()
    NcnnRunner()
    """

    threads: int = field(default=1, validator=integer(1))
    machine: Machine | None = field(default=None, validator=is_machine)

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("ncnn", "ncnn")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: ncnn is not installed.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: ncnn is not installed.
        """
        return self.session(files_of(artifact, "NcnnRunner")).run

    def inside(self, artifact: Any) -> SessionWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: ncnn is not installed.
        """
        session = self.session(files_of(artifact, "NcnnRunner"))
        wanted = code_names(artifact)
        codes = tuple(b for b in sorted(session.blobs) if split_axis(b)[0] in wanted)
        return SessionWithCodes(session, codes, tuple(sorted(session.blobs - {*codes})))

    def checked(self) -> CheckedRuntime:
        """Return what a package for another machine needs."""
        return CheckedRuntime("ncnn", (_PARAM, _BIN), _shown, _settings)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU computes as the target describes, else the reason why it may not."""
        if reason := other_kernels() or ("" if has("fma") else "without FMA its convolutions round twice"):
            return reason
        files = {} if artifact is None else files_of(artifact, "NcnnRunner")
        known = any(name.endswith(".ncnn.param") for name in files)
        layers = read_param(file_of(files, FILES[0]), FILES[0]) if known else []
        nine = any(map(_is_depthwise_of_nine, layers))
        return APART if nine and not has("avx512f") else ""

    @property
    def cpu(self) -> Cpu:
        """The processor; on x86-64, FMA and AVX-512 stand for the features that come with them."""
        if self.machine is not None:
            return self.machine.cpu
        cpu = this_cpu()
        if cpu.architecture != "x86-64":
            return cpu
        if has("avx512f"):
            return x86_64_vnni
        return (cpu if "avxvnni" in cpu.features else x86_64_avx2) if has("fma") else x86_64_sse4

    def session(self, files: Any) -> LoadedNet:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: ncnn is not installed, or rejects the file.
        """
        if self.machine is None:
            require(self.missing(), "NcnnRunner", "ncnn", "ncnn 1.0.20261020")
        layers = read_param(file_of(files, FILES[0]), FILES[0])
        session = opened(self.machine, Session, *(file_of(files, name) for name in FILES), threads=self.threads)
        if any(codes := session.facts["codes"]):
            do = "Deploy this model again; a newer ncnn may have other layers."
            raise VerifyError(where="NcnnRunner", found=f"codes {codes} for the files", wanted="files that ncnn takes", do=do)
        return LoadedNet(session, frozenset(blob for layer in layers for blob in layer.outputs), *_ends(layers))


def _ends(layers: list[Line]) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[int, ...]]]:
    # The blobs of the inputs and outputs in order, which their layers number, and the shapes of the inputs.
    blobs = {(layer.kind, layer.name): layer.outputs[0] for layer in layers if layer.outputs}
    numbered = [
        tuple(itertools.takewhile(bool, (blobs.get((kind, f"{name}{i}"), "") for i in itertools.count())))
        for kind, name in (("Input", "in"), ("Noop", "out"))
    ]
    return numbered[0], numbered[1], input_shapes(layers)


APART = "without AVX-512 its depthwise convolutions of 3x3 round product and sum"


def _is_depthwise_of_nine(line: Line) -> bool:
    # ncnn has a special kernel for this convolution, which clips nothing.
    parameters = line.parameters
    kernel, dilation, strides = ([parameters.get(k) for k in keys] for keys in (("1", "11"), ("2", "12"), ("3", "13")))
    plain = kernel == ["3", "3"] and dilation == ["1", "1"] and strides in (["1", "1"], ["2", "2"])
    return line.kind == "ConvolutionDepthWise" and plain and parameters.get("9") != "3"


@frozen(eq=False)
class LoadedNet:
    """A session, the names of its blobs, and the shapes of its inputs. With other shapes ncnn reads beyond its memory."""

    session: Any
    blobs: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]

    def run(self, inputs: Sequence[Any], codes: Sequence[str] = ()) -> list[Any]:
        """Return the outputs for one batch, then the blobs of codes."""
        arrays = [np.asarray(i) for i in inputs]
        for i, array in enumerate(arrays):
            shape = array.shape[1:] if array.ndim > 1 else (1,)
            if shape != self.shapes.get(f"in{i}"):
                wanted = f"{self.shapes.get(f'in{i}')}, as in its file"
                do = "Give as many batches as the model has inputs, of the shapes that calibration saw."
                raise VerifyError(where=f"NcnnRunner, input {i}", found=f"shape {shape}", wanted=wanted, do=do)
            if np.issubdtype(array.dtype, np.integer):  # indices
                arrays[i] = array.astype(np.int32)
        blobs = [(name, 0, 0, False) for name in self.outputs] + [(name, 1, *split_axis(name)[1:]) for name in codes]
        found: list[Any] = self.session.run(arrays, names=self.inputs[: len(arrays)], blobs=blobs)
        return found


@frozen(eq=False)
class SessionWithCodes:
    """A model whose blobs of codes are outputs.

    The file determines the layers that compute on integers, so that there is no partition to compare.
    """

    session: LoadedNet
    names: tuple[str, ...]
    real_names: tuple[str, ...] = ()
    units: None = None
    difference: str = ""

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors of codes."""
        return frozenset(split_axis(n)[0] for n in self.names)

    @property
    def reals(self) -> frozenset[str]:
        """The names of the real tensors."""
        return frozenset(self.real_names)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model, tensor -> codes or real values in the model's layout)."""
        names = (*self.names, *self.real_names)
        found = self.session.run(inputs, names)
        first = len(found) - len(names)
        return found[:first], dict(zip((split_axis(n)[0] for n in names), found[first:], strict=True))


def _shown(artifact: Artifact) -> dict[str, str]:
    # The blobs of codes whose examples are along the first axis.
    lines = read_param(file_of(artifact.files, _PARAM), _PARAM)
    return {blob: blob for line in lines for blob in line.outputs if blob.endswith(".codes")}


def _settings(artifact: Artifact) -> dict[str, Any]:
    # The blobs of the inputs and outputs.
    lines = read_param(file_of(artifact.files, _PARAM), _PARAM)
    blobs = {(line.kind, line.name): line.outputs[0] for line in lines if line.outputs}
    inputs, outputs = (
        list(takewhile(bool, (blobs.get((kind, f"{name}{i}"), "") for i in count())))
        for kind, name in (("Input", "in"), ("Noop", "out"))
    )  # fmt: skip
    return {"blobs": inputs, "outputs": outputs}
