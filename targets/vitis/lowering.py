"""AMD Vitis AI: a float model, a table of scales, and the Q/DQ model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.format_checks import require, require_one_scale
from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import FileFormat, Format, Int
from qfunc.specs._values import readable


@readable
@frozen
class VitisLowering:
    """`vitis.json`, `model_float.onnx` and `model.onnx`, for the DPU of Vitis AI.

    `vitis.json` is `{"vitis": {tensor: {"scale": s}}}` for activations, weights and biases, with the tensors' names
    in `model_float.onnx`.  The DPU's fix position of a tensor is -log2 s, always an integer.  `model_float.onnx`
    computes in float with the quantized weights and biases; `model.onnx` is the same with QuantizeLinear and
    DequantizeLinear, which round half to even where the DPU rounds half up.

    AMD's compiler reads an xmodel: a graph of XIR with a fix position for each tensor.  MQBench's converter writes it in
    AMD's container, from models with MQBench's quantizers; the positions are those of the table:

        python -m mqbench.deploy.convert_xir -Q model.onnx -C model_float.onnx -N net
        vai_c_xir -x model_float.onnx_int.xmodel -a arch.json -o compiled -n net

    Vitis AI's execution provider for ONNX Runtime reads `model.onnx`.  These tools are not on the package index; they
    were not executed.

    MQBench differs: it stores weights clipped, not quantized, and writes no scale for the network's input.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.

    Source: MQBench, deploy/deploy_linear.py, convert_xir.py and user guide deploy/vitis; AMD UG1414, vai_c_xir.

    >>> VitisLowering()
    VitisLowering()
    """

    opset: int = opset_field(21, lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the three files.

        Raises:
            DeployError: a tensor without exactly one fix position on the DPU.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes
        from qfunc.lowering.side_file import by_tensor, json_bytes

        for site in program.tensors:
            _require(site)
        proto = float_model(program.model, program.tensors)
        table = {tensor: {"scale": site.scale[0]} for tensor, site in by_tensor(proto, program.tensors).items()}
        return {
            "vitis.json": json_bytes({"vitis": table}),
            "model_float.onnx": to_bytes(proto, self),
            "model.onnx": to_bytes(program.model, self),
        }


def _byte(fmt: Format, constant: bool) -> bool:
    return isinstance(fmt, Int) and fmt.signed and (fmt == Int(8) or (constant and fmt.bits <= 8))


def _require(site: QuantizedTensor) -> None:
    do = "Use the schemes of targets.vitis, or edit.deploy(QdqLowering())."
    require(site, _byte(site.format, site.role != "activation"), repr(site.format), "Int(8), the only format of the DPU", do)
    require_one_scale(site, "the DPU")
    require(site, not any(site.zero_point), f"zero point {site.zero_point[0]}", "no zero point, because the DPU has none", do)
    scale = site.scale[0]
    require(
        site,
        math.frexp(scale)[0] == 0.5,
        f"scale {scale!r}",
        "a power of two: a fix position is -log2 of the scale",
        do,
    )
