"""Lower a model to GGUF: the weights in blocks, and the graph that reads them."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from qfunc.lowering.program import Program
from qfunc.specs import FLOAT16, FLOAT32, FileFormat, PerBlock, Scheme
from qfunc.specs._check import one_of
from qfunc.specs._values import readable
from qfunc.specs.formats import GGUF_Q8_0
from qfunc.targets.ggml.types import WEIGHTS

_INPUTS = {"Q8_0": (32, FLOAT16), "Q8_1": (32, FLOAT16), "Q8_K": (256, FLOAT32)}
"""Name of a type that ggml quantizes inputs to -> (entries of a block, format of its scale)."""
_WEIGHTS, _GRAPH = "model.gguf", "model.onnx"
_DO = (
    "Choose one of them; a mix, such as Q4_K_M, is for a whole decoder: "
    "targets.gguf(kind, qfunc.targets.runtimes.decoder_config(model.config))."
)


@readable
@frozen
class GgufSchemes:
    """The schemes of weights of some types, and of the inputs that ggml quantizes for these types at run time.

    >>> from qfunc.specs.formats import GGUF_Q4_0
    >>> GgufSchemes(("Q8_0", "Q4_0"))(GGUF_Q4_0, constant=True)
    ''
    """

    kinds: tuple[str, ...]

    def __call__(self, scheme: Scheme, constant: bool) -> str:
        """Return a description of the schemes of the first type, or "" for a scheme of any type."""
        found = [_wanted(kind, scheme, constant) for kind in self.kinds]
        return "" if "" in found else found[0]


def _wanted(name: str, scheme: Scheme, constant: bool) -> str:
    kind = WEIGHTS[name]
    if constant:
        return "" if kind.holds(scheme) else f"weights in {name}, as specs.formats.GGUF_{name} describes them"
    scale, (size, number) = scheme.scale, _INPUTS[kind.input]
    stored = scale.shared == PerBlock(-1, size) and scale.format == number and scheme.symmetric
    fits = stored and scale.dynamic and scheme.format == GGUF_Q8_0.format
    return "" if fits else f"inputs that ggml quantizes to {kind.input} at run time"


@readable
@frozen
class GgufLowering:
    """`model.gguf` with the weights that are quantized, and `model.onnx` with all else.

    qfunc writes both files; ggml is needed only to run them.  A weight has the name of its parameter, and the bytes that
    llama.cpp writes for it.  In the ONNX model a product is a node `ggml.MulMat`: its input is a real tensor, its attribute
    `weight` the name of a tensor of `model.gguf`, its output their product in real units, without a bias.  The file has no
    hyperparameters of an architecture, which llama.cpp reads.

    Args:
        kind: The type of the weights, one of "Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1", "MXFP4", "Q6_K", "Q5_K", "Q4_K",
            "Q3_K" and "Q2_K".
    Source: ggml, docs/gguf.md, src/ggml-common.h.

    >>> GgufLowering("Q4_0")
    GgufLowering('Q4_0')
    """

    kind: str = field(default="Q8_0", validator=one_of(tuple(WEIGHTS), _DO))

    @property
    def format(self) -> FileFormat:
        """Weights of the type, in blocks."""
        return FileFormat(blocks=True, schemes=GgufSchemes((self.kind,)))

    @property
    def scheme(self) -> Scheme:
        """The scheme of the weights."""
        return WEIGHTS[self.kind].scheme

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the files' bytes.

        Raises:
            DeployError: a name that is too long for ggml.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.targets.ggml.file import gguf_file
        from qfunc.targets.ggml.rewrite import with_products

        graph, weights = with_products(program.model, self.kind)
        values: dict[str, str | int] = {"general.architecture": "qfunc", "general.quantization_version": 2}
        return {_WEIGHTS: gguf_file(values, weights), _GRAPH: graph.SerializeToString(deterministic=True)}
