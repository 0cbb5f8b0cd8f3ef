"""LiteRT as a runner of artifacts."""

from __future__ import annotations

import importlib
import importlib.util
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.errors import VerifyError
from qfunc.specs._check import integer, one_of

_RESOLVERS = {"xnnpack": "AUTO", "reference": "BUILTIN_REF", "optimised": "BUILTIN_WITHOUT_DEFAULT_DELEGATES"}


@frozen
class LiteRt:
    """LiteRT on the CPU, with one of its three kernel sets, which round differently.

    "xnnpack": the default, the XNNPACK delegate with the optimised kernels behind it; "reference": the plain loops;
    "optimised": the optimised kernels alone.  It is the extra `litert`, imported where it runs.  `threads=0` leaves
    their number to the runtime.  Needs the artifact's "model.tflite".

    >>> LiteRt("reference")
    LiteRt(kernels='reference', threads=0)
    """

    kernels: str = field(default="xnnpack", validator=one_of(tuple(_RESOLVERS)))
    threads: int = field(default=0, validator=integer(0))

    def missing(self) -> str:
        """ "" where it can run, else what is not there."""
        return "" if importlib.util.find_spec("ai_edge_litert") is not None else "the package ai-edge-litert is not installed"

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        return self.opened(artifact.files["model.tflite"]).run(inputs)

    def inside(self, artifact: Any) -> Shown:
        """A view of the tensors of codes inside.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        model = artifact.files["model.tflite"]
        sites = {t for s in artifact.report["tensors"] if s["role"] == "activation" for t in s["tensors"]}
        return Shown(self.opened(model), self.opened(*_with_outputs(model, {f"{t}.codes" for t in sites})))

    def comparable(self, artifact: Any = None) -> str:
        """ "" where it computes as the targets say, else why it may not on this CPU."""
        machine = platform.machine()
        return "" if machine in ("x86_64", "AMD64") else f"{machine} has other kernels than x86-64"

    def opened(self, model: bytes, names: Sequence[str] = ()) -> Opened:
        """A loaded model, for many batches; `names` are those of its last outputs.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        if missing := self.missing():
            do = "Install qfunc-torch[litert], or pass runtime=run, where run(artifact, inputs) -> outputs."
            raise VerifyError(where="LiteRt", found=missing, wanted="ai-edge-litert 2.3 or later", do=do)
        litert = importlib.import_module("ai_edge_litert.interpreter")
        resolver = getattr(litert.OpResolverType, _RESOLVERS[self.kernels])
        made = litert.Interpreter(
            model_content=model, num_threads=self.threads or None, experimental_op_resolver_type=resolver
        )  # fmt: skip
        return Opened(made, tuple(names))


@frozen(eq=False)
class Opened:
    """An interpreter of one model."""

    interpreter: Any
    names: tuple[str, ...]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for one batch, each read once."""
        places = self.interpreter.get_input_details()
        arrays = [np.ascontiguousarray(i.numpy() if hasattr(i, "numpy") else i) for i in inputs]
        for place, array in zip(places, arrays, strict=True):
            self.interpreter.resize_tensor_input(place["index"], array.shape)
        self.interpreter.allocate_tensors()
        for place, array in zip(places, arrays, strict=True):
            self.interpreter.set_tensor(place["index"], array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(o["index"]) for o in self.interpreter.get_output_details()]


@frozen(eq=False)
class Shown:
    """A model as deployed, and the same with its tensors of codes as further outputs.

    What LiteRT computes on integers stands in the file, so that there is no partition to compare.
    """

    plain: Opened
    exposed: Opened
    units: None = None
    difference: str = ""

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors of codes."""
        return frozenset(n.removesuffix(".nhwc") for n in self.exposed.names)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """(the outputs of the model as deployed, code tensor -> codes in the model's own layout)."""
        names = self.exposed.names
        values = self.exposed.run(inputs)[-len(names) :] if names else []
        codes = {}
        for name, value in zip(names, values, strict=True):
            codes[name.removesuffix(".nhwc")] = np.moveaxis(value, -1, 1) if name.endswith(".nhwc") else value
        return self.plain.run(inputs), codes


def _with_outputs(model: bytes, wanted: set[str]) -> tuple[bytes, list[str]]:
    # The file with those of its tensors as outputs behind its own, and their names.
    flatbuffers: Any = importlib.import_module("flatbuffers")
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    held = schema.ModelT.InitFromPackedBuf(model, 0)
    graph = held.subgraphs[0]
    names = [t.name.decode() for t in graph.tensors]
    chosen: dict[str, int] = {}
    for index, name in enumerate(names):
        plain = name.removesuffix(".nhwc")
        if plain in wanted:
            chosen.setdefault(plain, index)
    graph.outputs = np.array([*graph.outputs, *chosen.values()], np.int32)
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(held.Pack(builder), b"TFL3")
    return bytes(builder.Output()), [names[i] for i in chosen.values()]


__all__ = ["LiteRt"]
