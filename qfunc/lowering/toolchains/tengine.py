"""Tengine: the table of scales and the fusions that it expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from qfunc.lowering.format_checks import require, require_one_scale
from qfunc.lowering.onnx.opset import opset_field
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.toolchains.side_file import by_tensor
from qfunc.specs import Int
from qfunc.specs._values import readable

if TYPE_CHECKING:
    import onnx

    from qfunc.lowering.qdq_reader import QdqModel

__all__ = ["TengineLowering", "fusions"]


BYTE = Int(8, signed=False)


@readable
@frozen
class TengineLowering:
    """`model.onnx` and `model.scale`, for Tengine's converter and its uint8 quantizer.

    `model.scale` is text, a line `tensor scale zero_point` for each quantized activation, with the tensors' names in
    `model.onnx`, which computes in float with the quantized weights.  Tengine fuses a convolution with the relu or
    relu6 after it, and the fused op has the name of either: the convolution's output is given the activation's qparams.

        tm_convert_tool -f onnx -m model.onnx -o float.tmfile
        quant_tool_uint8 -m float.tmfile -f model.scale -i . -o uint8.tmfile

    The file has no lines for weights: the tool finds their scales itself, (max - min) / 255 and trunc(-min / s), of
    the stored weights, and rounds them.  These are the simulation's where the stored weights reach codes 0 and 255;
    where they end at 254, as truncated zero points let them, the tool's scale is finer by 1/255 and weights move by
    up to a step.

    MQBench differs: it looks for `ReLU`, which no ONNX has, so that its rule holds for relu6 alone; takes relu6 for
    any clip whose bounds are not constants; stores weights clipped and not quantized; takes zero points that were
    rounded, where the tool truncates.

    `opset` is the version of ONNX's operators, 13 to 21.

    Source: MQBench, deploy/deploy_tengine.py; OAID Tengine, tools/quantize/quant_save_graph.cpp and
    tools/convert_tool/utils/graph_optimizer/graph_opt.cpp.

    >>> TengineLowering()
    TengineLowering()
    """

    opset: int = opset_field()

    def lower(self, model: Any, sites: Iterable[QuantizedTensor]) -> Mapping[str, bytes]:
        """Return the two files.

        Raises:
            DeployError: a tensor that is not uint8 with one scale, or whose name has spaces.
        """
        # onnx is imported here, where it is first needed.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.qdq_reader import QdqModel

        sites = tuple(sites)
        for site in sites:
            _require(site)
        made = float_model(model, sites)
        found = by_tensor(made, (s for s in sites if s.role == "activation"))
        qparams = {tensor: (site.scale[0], site.zero_point[0]) for tensor, site in found.items()}
        qparams |= {c: qparams[a] for c, a in fusions(QdqModel(made)).items() if a in qparams}
        lines = "".join(f"{tensor} {scale!r} {zero}\n" for tensor, (scale, zero) in qparams.items())
        return {"model.onnx": made.SerializeToString(deterministic=True), "model.scale": lines.encode()}


def fusions(source: QdqModel) -> dict[str, str]:
    """Return, for each convolution whose only reader is a relu or relu6: its output -> the activation's output."""
    found = {}
    for node in source.graph.node:
        reader = source.only_reader(node.output[0]) if node.op_type == "Conv" else None
        if reader is not None and _clamps(reader, source):
            found[node.output[0]] = reader.output[0]
    return found


def _clamps(node: onnx.NodeProto, source: QdqModel) -> bool:
    # Clip has its bounds as inputs; a bound that is not given, or not a constant, is not relu6's.
    if node.op_type != "Clip":
        return bool(node.op_type == "Relu")
    bounds = [source.constants[n] for n in node.input[1:] if n in source.constants]
    return len(bounds) == 2 and bool(np.array_equal(bounds, [0, 6]))


def _require(site: QuantizedTensor) -> None:
    do = "Use the schemes of targets.tengine_u8, or edit.deploy(QdqLowering())."
    fine = site.format == (Int(32) if site.role == "bias" else BYTE)
    require(site, fine, repr(site.format), f"{BYTE!r}, biases Int(32), as Tengine's uint8 has it", do)
    if site.role != "bias":
        require_one_scale(site, "Tengine's uint8")
    spaced = [t for t in site.tensors if any(c.isspace() for c in t)]
    require(
        site, not spaced, f"the name {spaced[:1]}", "names without spaces, which end a name in the file", "Rename the module."
    )
