"""Tengine: a float model and a table of scales, with the fusions that Tengine expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from qfunc.lowering.format_checks import require, require_one_scale
from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.side_file import by_tensor
from qfunc.specs import FileFormat, Int
from qfunc.specs._values import readable

if TYPE_CHECKING:
    import onnx

    from qfunc.lowering.qdq.reader import QdqModel

BYTE = Int(8, signed=False)


@readable
@frozen
class TengineLowering:
    """`model.onnx` and `model.scale`, for Tengine's converter and its uint8 quantizer.

    `model.scale` is text, a line `tensor scale zero_point` for each quantized activation, with the tensors' names in
    `model.onnx`, which computes in float with the quantized weights.  Tengine fuses a convolution with the relu or
    relu6 after it, and the fused op may have the name of either, so that both lines have the activation's qparams.

        tm_convert_tool -f onnx -m model.onnx -o float.tmfile
        quant_tool_uint8 -m float.tmfile -f model.scale -i . -o uint8.tmfile

    The file has no lines for weights: the tool computes s = (max - min) / 255 and z = trunc(-min / s) from the stored
    weights, and rounds them.  These are the simulation's qparams if the stored weights reach the codes 0 and 255.  If
    they end at 254, which truncated zero points permit, the tool's scale is finer by 1/255, and weights move by up to
    a step.

    MQBench differs: it looks for `ReLU`, which ONNX does not have, so that its rule applies to relu6 only; treats any
    clip without constant bounds as relu6; stores weights clipped, not quantized; rounds zero points, which the tool
    truncates.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.  The converter reads the axes of Squeeze and the lengths of Split from attributes, as in opsets 11 and 12.

    Source: MQBench, deploy/deploy_tengine.py; OAID Tengine, tools/quantize/quant_save_graph.cpp and
    tools/convert_tool/utils/graph_optimizer/graph_opt.cpp; tools/convert_tool/onnx/onnx2tengine.cpp, load_squeeze and
    load_split.

    >>> TengineLowering()
    TengineLowering()
    """

    opset: int = opset_field(11, lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the two files.

        Raises:
            DeployError: a tensor that is not uint8 with one scale, or whose name has spaces.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes
        from qfunc.lowering.qdq.reader import QdqModel

        for site in program.tensors:
            _require(site)
        proto = float_model(program.model, program.tensors)
        found = by_tensor(proto, (s for s in program.tensors if s.role == "activation"))
        qparams = {tensor: (site.scale[0], site.zero_point[0]) for tensor, site in found.items()}
        qparams |= {c: qparams[a] for c, a in fusions(QdqModel(proto)).items() if a in qparams}
        lines = "".join(f"{tensor} {scale!r} {zero}\n" for tensor, (scale, zero) in qparams.items())
        return {"model.onnx": to_bytes(proto, self), "model.scale": lines.encode()}


def fusions(source: QdqModel) -> dict[str, str]:
    """Return {output of a convolution: output of the relu or relu6 that is its only reader}."""
    found = {}
    for node in source.graph.node:
        reader = source.only_reader(node.output[0]) if node.op_type == "Conv" else None
        if reader is not None and _clamps(reader, source):
            found[node.output[0]] = reader.output[0]
    return found


def _clamps(node: onnx.NodeProto, source: QdqModel) -> bool:
    # The bounds of Clip are inputs; a missing bound, or one that is no constant, is not a bound of relu6.
    if node.op_type != "Clip":
        return bool(node.op_type == "Relu")
    bounds = [source.constants[n] for n in node.input[1:] if n in source.constants]
    return len(bounds) == 2 and bool(np.array_equal(bounds, [0, 6]))


def _require(site: QuantizedTensor) -> None:
    do = "Use the schemes of targets.tengine_u8, or edit.deploy(QdqLowering())."
    fine = site.format == (Int(32) if site.role == "bias" else BYTE)
    require(site, fine, repr(site.format), f"{BYTE!r}, biases Int(32): Tengine's uint8 has no other formats", do)
    if site.role != "bias":
        require_one_scale(site, "Tengine's uint8")
    spaced = [t for t in site.tensors if any(c.isspace() for c in t)]
    require(
        site,
        not spaced,
        f"the name {spaced[:1]}",
        "names without spaces, which end a name in the file",
        "Rename the module.",
    )
