"""What the files of a lowering can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from qfunc.specs._check import as_tuple, frozen_callable, implements, instance_of, integer, refuse, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.legality import Refuse, RequireSizes
from qfunc.specs.protocols import Arithmetic, FormattedLowering, MixtureArithmetic
from qfunc.specs.scheme import Scheme

_EARLIEST, _LATEST = 13, 21
"""The opsets of the models that lowerings receive."""


def _schemes(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple):
        raise refuse(instance, attribute.name, value, "functions of a scheme", "Give a function, or a tuple of them.")
    for one in value:
        frozen_callable("Write a function of a scheme.")(instance, attribute, one)


def _mixture(instance: Any, attribute: Any, value: Any) -> None:
    implements(Arithmetic, optional=True)(instance, attribute, value)
    if value is not None and not isinstance(value, MixtureArithmetic):
        raise refuse(instance, attribute.name, value, "an arithmetic of mixtures of experts or None", "Add the method takes.")


@readable
@frozen
class FileFormat:
    """What the files of a lowering can hold, as data; a lowering has it as `format`.

    Args:
        opset: The opset of the ONNX model that the lowering receives; for one before 13, and for None, it receives a model
            of opset 21.
        one_size: What fixes all sizes of the inputs but the batch, for messages, such as "a .pte"; "" if they may vary.
        bias_bits: The largest number of bits of a bias.
        blocks: True if the files hold weights with scales of blocks, and inputs that are quantized at run time.
        parameters: True if the ONNX model shall have the names of the parameters in its metadata, a JSON list under
            "parameters", because the file has the parameters and no graph.
        legality: `Refuse` and `RequireSizes` values of ops that the files cannot express, so that `quantize` refuses them.
        quantizers: True if the files have the QuantizeLinear and DequantizeLinear of the ONNX model, so that an opset before
            13, too, limits the schemes.
        schemes: Functions (scheme, constant) of module level, or frozen values, that return a description of the schemes
            whose codes the files hold, or "" for one of these.  Without them, the files hold the codes that QuantizeLinear
            and DequantizeLinear have in the opset.
        experts: The arithmetic of a mixture of experts that the files hold as one op, a `MixtureArithmetic`; None if its
            layers stay as they are.
        recurrent: True if the files hold recurrent layers whose input and state are quantized at run time, with one scale.
        names: True if the files have names of inputs and outputs beside their tensors, those of `Program.inputs` and
            `Program.outputs`; otherwise the tensors of the ONNX model have the names.
    Raises:
        SpecError: a field of the wrong kind, or a scheme function that is a lambda or can change.

    >>> FileFormat(opset=17, one_size="a .pte")
    FileFormat(17, one_size='a .pte')
    """

    opset: int | None = field(default=None, validator=integer(1, optional=True))
    one_size: str = field(default="", validator=instance_of(str))
    bias_bits: int = field(default=32, validator=integer(1, 64))
    blocks: bool = field(default=False, validator=instance_of(bool))
    parameters: bool = field(default=False, validator=instance_of(bool))
    legality: tuple[Refuse | RequireSizes, ...] = field(
        default=(), converter=as_tuple, validator=tuple_of(Refuse, RequireSizes)
    )
    quantizers: bool = field(default=False, validator=instance_of(bool))
    schemes: tuple[Callable[[Scheme, bool], str], ...] = field(default=(), converter=as_tuple, validator=_schemes)
    experts: MixtureArithmetic | None = field(default=None, validator=_mixture)
    names: bool = field(default=False, validator=instance_of(bool))
    recurrent: bool = field(default=False, validator=instance_of(bool))

    @property
    def received(self) -> int:
        """The opset of the model that the lowering receives.

        >>> FileFormat(opset=13).received, FileFormat(opset=11).received, FileFormat().received
        (13, 21, 21)
        """
        return self.opset if self.opset is not None and self.opset >= _EARLIEST else _LATEST

    def refuses(self, scheme: Scheme, constant: bool) -> str:
        """Return what the first of `schemes` that refuses a scheme describes, or "".

        >>> from qfunc.targets.runtimes import GgufLowering
        >>> GgufLowering("Q4_0").format.refuses(Scheme(), constant=True)
        'weights in Q4_0, as specs.formats.GGUF_Q4_0 describes them'
        """
        return next(filter(None, (reason(scheme, constant) for reason in self.schemes)), "")


def format_of(lowering: Any) -> FileFormat:
    """Return the format of a lowering's files; that of Q/DQ ONNX if it has no `format`, and for None.

    >>> from qfunc.targets.runtimes import NcnnLowering, TensorRtRanges
    >>> format_of(NcnnLowering()).one_size, format_of(TensorRtRanges())
    ('a .param of ncnn', FileFormat())
    """
    found: FileFormat = lowering.format if isinstance(lowering, FormattedLowering) else FileFormat()
    return found
