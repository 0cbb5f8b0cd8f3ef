"""Run artifacts with ncnn."""

from __future__ import annotations

import importlib
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.errors import VerifyError
from qfunc.files.ncnn_param import Line, input_shapes, read_param, split_axis
from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import code_names
from qfunc.lowering.runner_support import has, not_installed, other_kernels, require
from qfunc.specs._check import integer

_PARAM = "model.ncnn.param"
_OFF = (
    "use_vulkan_compute", "use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed", "use_bf16_storage",
    "use_packing_layout",
)  # fmt: skip
"""Options that change the results: float16 and bfloat16 round the values between layers, the Vulkan kernels and the packed
layout add in another order, and packed depthwise convolutions take 1/(s_x s_w) from rcpps, whose bits differ by CPU."""


@frozen
class NcnnRunner:
    """ncnn on the CPU, with float32 between int8 layers; it runs the examples of a batch one by one.

    Install the extra `ncnn`.  The runner switches off Vulkan, float16, bfloat16 and the packed layout
    (`use_packing_layout`), in which depthwise convolutions approximate 1/(s_x s_w) by rcpps.  Winograd and sgemm are on, as
    by default; they and `threads` change no codes.  Needs the artifact's "model.ncnn.param" and "model.ncnn.bin".

    >>> NcnnRunner()
    NcnnRunner(threads=1)
    """

    threads: int = field(default=1, validator=integer(1))

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
        return self.session(artifact.files).run

    def inside(self, artifact: Any) -> SessionWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: ncnn is not installed.
        """
        session = self.session(artifact.files)
        wanted = code_names(artifact)
        codes = tuple(b for b in sorted(session.blobs) if split_axis(b)[0] in wanted)
        return SessionWithCodes(session, codes, tuple(sorted(session.blobs - {*codes})))

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU computes as the target describes, else the reason why it may not."""
        if reason := other_kernels() or ("" if has(" fma ") else "without FMA its convolutions round twice"):
            return reason
        files = {} if artifact is None else artifact.files
        known = any(name.endswith(".ncnn.param") for name in files)
        layers = read_param(file_of(files, _PARAM), _PARAM) if known else []
        nine = any(map(_is_depthwise_of_nine, layers))
        return FUSES if nine and has("avx512f") else ""

    def session(self, files: Any) -> Session:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: ncnn is not installed, or rejects the file.
        """
        require(self.missing(), "NcnnRunner", "ncnn", "ncnn 1.0.20261020")
        layers = read_param(file_of(files, _PARAM), _PARAM)
        ncnn = importlib.import_module("ncnn")
        net = ncnn.Net()
        for option in _OFF:
            setattr(net.opt, option, False)
        net.opt.num_threads = self.threads
        with tempfile.TemporaryDirectory() as place:
            names = (_PARAM, "model.ncnn.bin")
            for name in names:
                Path(place, name).write_bytes(file_of(files, name))
            codes = [net.load_param(str(Path(place, names[0]))), net.load_model(str(Path(place, names[1])))]
        if any(codes):
            do = "Deploy this model again; a newer ncnn may have other layers."
            raise VerifyError(where="NcnnRunner", found=f"codes {codes} for the files", wanted="files that ncnn takes", do=do)
        return Session(ncnn, net, frozenset(blob for layer in layers for blob in layer.outputs), *_ends(layers))


def _ends(layers: list[Line]) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[int, ...]]]:
    # The blobs of the inputs and outputs in order, which their layers number, and the shapes of the inputs.
    blobs = {(layer.kind, layer.name): layer.outputs[0] for layer in layers if layer.outputs}
    numbered = [
        tuple(itertools.takewhile(bool, (blobs.get((kind, f"{name}{i}"), "") for i in itertools.count())))
        for kind, name in (("Input", "in"), ("Noop", "out"))
    ]
    return numbered[0], numbered[1], input_shapes(layers)


FUSES = "with AVX-512 its depthwise convolutions of 3x3 fuse product and sum"


def _is_depthwise_of_nine(line: Line) -> bool:
    # ncnn has a special kernel for this convolution, which clips nothing.
    parameters = line.parameters
    kernel, dilation, strides = ([parameters.get(k) for k in keys] for keys in (("1", "11"), ("2", "12"), ("3", "13")))
    plain = kernel == ["3", "3"] and dilation == ["1", "1"] and strides in (["1", "1"], ["2", "2"])
    return line.kind == "ConvolutionDepthWise" and plain and parameters.get("9") != "3"


@frozen(eq=False)
class Session:
    """A loaded model, the names of its blobs, and the shapes of its inputs. With other shapes ncnn reads beyond its memory."""

    ncnn: Any
    net: Any
    blobs: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]

    def run(self, inputs: Sequence[Any], codes: Sequence[str] = ()) -> list[Any]:
        """Return the outputs for one batch, one example after the other, then the blobs of codes."""
        batches = [np.ascontiguousarray(i) for i in inputs]
        count = len(self.outputs)
        found = []
        for place in range(len(batches[0])):
            extractor = self.net.create_extractor()
            extractor.set_light_mode(False)
            arrays = [b[place] if b.ndim > 1 else b[place : place + 1] for b in batches]
            for i, array in enumerate(arrays):
                if array.shape != self.shapes.get(f"in{i}"):
                    wanted = f"{self.shapes.get(f'in{i}')}, as in its file"
                    do = "Give as many batches as the model has inputs, of the shapes that calibration saw."
                    raise VerifyError(where=f"NcnnRunner, input {i}", found=f"shape {array.shape}", wanted=wanted, do=do)
                held_type = np.int32 if np.issubdtype(array.dtype, np.integer) else array.dtype  # indices
                # The layers assume channels that begin at multiples of 16 bytes. A clone has this layout.
                extractor.input(self.inputs[i], self.ncnn.Mat(np.ascontiguousarray(array, held_type)).clone())
            names = [(n, 0) for n in self.outputs] + [(n, 1) for n in codes]
            found.append([np.array(extractor.extract(n, kind)[1]) for n, kind in names])
        places = [(0, False)] * count + [split_axis(n)[1:] for n in codes]
        return [_joined(each, *place) for each, place in zip(zip(*found, strict=True), places, strict=True)]


def _joined(examples: Sequence[Any], axis: int, several: bool) -> Any:
    # The results of the examples as one batch.
    return np.concatenate(examples, axis) if several else np.stack(examples, axis)


@frozen(eq=False)
class SessionWithCodes:
    """A model whose blobs of codes are outputs.

    The file determines the layers that compute on integers, so that there is no partition to compare.
    """

    session: Session
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


__all__ = ["FUSES", "NcnnRunner"]
