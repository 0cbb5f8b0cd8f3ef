"""OpenPPL's text for CUDA: a float model, and one number for each tensor."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.format_checks import format_error, require_integers, require_per_tensor, require_symmetric
from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.side_file import by_tensor, derived
from qfunc.specs import FileFormat
from qfunc.specs._values import readable

_ARTIFACT = "PPL-CUDA's text"


@readable
@frozen
class PplCudaLowering:
    """`model.onnx` (float, with the quantized weights) and `clip_ranges.txt`, lines of "tensor: max(|low|, |high|)".

    The number is s max(|qmin|, |qmax|).  Weights with several scales have no line, because one number cannot represent
    them, and derived biases have none either: the runtime reads both from the float model.

    MQBench trains with zero points, which the text cannot represent, and calls the file .json.  It stores weights
    clipped, not quantized, and fails if the network's output is quantized.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.  PPLNN's operators are those of opset 11.

    Source: MQBench, deploy_linear.py, backend ppl-cuda; OpenPPL PPLNN, guide to opset conversion: 'Most PPLNN supported
    ops are based on onnx opset 11'.

    >>> PplCudaLowering()
    PplCudaLowering()
    """

    opset: int = opset_field(11, lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the float model and its lines.

        Raises:
            DeployError: a zero point, an activation with several scales, a format other than integers, or a name
                of two lines; names the tensor.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes

        proto = float_model(program.model, program.tensors)
        lines = [f"{t}: {_largest(s, t)!r}\n" for t, s in by_tensor(proto, program.tensors).items() if _has_line(s, t)]
        return {"model.onnx": to_bytes(proto, self), "clip_ranges.txt": "".join(lines).encode()}


def _has_line(site: QuantizedTensor, tensor: str) -> bool:
    require_integers(site, tensor, _ARTIFACT)
    require_symmetric(site, tensor, _ARTIFACT)
    return not derived(site) and (site.role == "activation" or site.axis is None)


def _largest(site: QuantizedTensor, tensor: str) -> float:
    require_per_tensor(site, tensor, _ARTIFACT)
    if tensor.splitlines() != [tensor]:
        raise format_error(site, tensor, "a name of several lines", "a name of one line", "Rename the module or input.")
    return max(-site.minimum[0], site.maximum[0])
