"""HiSilicon NNIE: a float model, and the largest magnitude of each layer's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.format_checks import require, require_one_scale
from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import FileFormat, Log
from qfunc.specs._values import readable

FORMAT = Log(magnitude_bits=7, steps_per_octave=16)


@readable
@frozen
class NnieLowering:
    """`model.onnx` and `gfpq_param_dict.json`, for NNIE's mapper.

    `gfpq_param_dict.json` is `{"nnie": {"gfpq_param_dict": {node: [c of each quantized input]}}}`.  The
    vendor's tool computes z = round(16 log2 c) - 127 and accepts only values of which 16 log2 c is an integer
    (gfpq_param_table_8bit.txt), so that c = 2^((z + 127) / 16).  Layers that NNIE does not quantize and convolutions
    with groups have no entry.  An Upsample, which NNIE splits in two, has a second entry `NODE_permute_K`, where K
    counts the Upsamples.

    `model.onnx` computes in float with the quantized weights, from which the tool computes their z.  Resize is
    written as Upsample(x, scales), which ONNX removed in opset 10.  The model defines it as a function, so that other
    tools can run it.

    MQBench differs: it reads the groups from the second attribute of a convolution, whatever that is; fails on an
    Upsample whose input has no qparams; stores weights clipped, not quantized; writes the observed c, which is in the
    vendor's table only by chance.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.  The mapper reads Caffe; converters from ONNX to Caffe read what MQBench writes, opset 11.

    Source: MQBench, deploy/deploy_nnie.py, convert_deploy.py and user guide hardware/nnie; HiSVP development guide,
    gfpq_param_table_8bit.txt.

    >>> NnieLowering()
    NnieLowering()
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
            DeployError: a tensor in another format than NNIE's, or a Resize that Upsample cannot represent.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes
        from qfunc.lowering.side_file import json_bytes
        from qfunc.targets.nnie.table import entries, upsample

        for site in program.tensors:
            _require(site)
        proto = float_model(program.model, program.tensors)
        for node in proto.graph.node:
            if node.op_type == "Resize":
                upsample(proto, node)
        clips = {p.real: clip(s) for s in program.tensors if s.role == "activation" for p in s.places}
        table = {"nnie": {"gfpq_param_dict": entries(program.model, {n.name for n in proto.graph.node}, clips)}}
        return {
            "model.onnx": to_bytes(proto, self),
            "gfpq_param_dict.json": json_bytes(table),
        }


def clip(site: QuantizedTensor) -> float:
    """Return the vendor's c = 2^((z + 127) / 16), with z = 16 log2 s.

    >>> from qfunc.lowering.quantized_tensor import Place
    >>> places = (Place("x", "x.real"),)
    >>> clip(QuantizedTensor("x", "activation", "x", (), FORMAT, (2.0**-7,), (0,), "half_even", places)) == 2 ** (15 / 16)
    True
    """
    return float(2.0 ** ((round(16 * math.log2(site.scale[0])) + site.high) / 16))


def _require(site: QuantizedTensor) -> None:
    wanted, do = f"{FORMAT!r}, the only format of NNIE", "Use the schemes of targets.nnie, or edit.deploy(QdqLowering())."
    require(site, site.format == FORMAT, repr(site.format), wanted, do)
    require_one_scale(site, "NNIE")
