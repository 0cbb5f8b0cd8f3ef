"""OpenPPL's JSON: a float model, and step, zero point and range of every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from qfunc.lowering.format_checks import require_integers
from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.side_file import by_tensor, derived, json_bytes
from qfunc.specs import FileFormat
from qfunc.specs._values import readable


@readable
@frozen
class PplDspLowering:
    """`model.onnx` (float, with the quantized weights) and `clip_ranges.json` {"ppl": {tensor: entry}}.

    An entry is {"step": s, "zero_point": z, "min": s (qmin - z), "max": s (qmax - z), "bit": b, "type": "biased"};
    step, zero_point, min and max are lists, over the channels, for a tensor with a scale for each channel.
    Weights have entries; a bias whose scale is derived from input and weight has none.

    "bit" is the width of the type.  MQBench writes log2(qmax - qmin + 1) instead, which is 7 for [-127, 127]; it stores
    weights clipped, not quantized, and fails if the network's output is quantized.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.  PPLNN's operators are those of opset 11.

    Source: MQBench, deploy_linear.py, backend ppl; OpenPPL PPLNN, guide to opset conversion: 'Most PPLNN supported
    ops are based on onnx opset 11'.

    >>> PplDspLowering()
    PplDspLowering()
    """

    opset: int = opset_field(11, lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the float model and its entries.

        Raises:
            DeployError: a format other than integers; names the tensor.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes

        proto = float_model(program.model, program.tensors)
        entries = {t: _entry(s, t) for t, s in by_tensor(proto, program.tensors).items() if not derived(s)}
        return {
            "model.onnx": to_bytes(proto, self),
            "clip_ranges.json": json_bytes({"ppl": entries}),
        }


def _entry(site: QuantizedTensor, tensor: str) -> dict[str, Any]:
    bits = require_integers(site, tensor, "PPL's JSON").bits
    content: dict[str, Any] = {
        "step": site.scale, "zero_point": site.zero_point, "min": site.minimum, "max": site.maximum,
    }  # fmt: skip
    if site.axis is None:
        content = {key: values[0] for key, values in content.items()}
    return content | {"bit": bits, "type": "biased"}
