"""What the files of a lowering can hold."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.specs._check import as_tuple, instance_of, integer, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.legality import Refuse, RequireSizes
from qfunc.specs.protocols import FormattedLowering

__all__ = ["FileFormat", "format_of"]


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


def format_of(lowering: Any) -> FileFormat:
    """Return the format of a lowering's files; that of Q/DQ ONNX if it has no `format`, and for None.

    >>> from qfunc.targets.runtimes import NcnnLowering, TensorRtRanges
    >>> format_of(NcnnLowering()).one_size, format_of(TensorRtRanges())
    ('a .param of ncnn', FileFormat())
    """
    found: FileFormat = lowering.format if isinstance(lowering, FormattedLowering) else FileFormat()
    return found
