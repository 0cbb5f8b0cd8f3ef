"""Kendryte K210: a float model, and the tables of the KPU for each convolution."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.format_checks import require, require_one_scale
from qfunc.lowering.onnx.opset import opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import FileFormat, Int
from qfunc.specs._values import readable

BYTE = Int(8, signed=False)
WEIGHT_ZERO = 128
"""The zero point of weights, one for a layer and the same for all channels."""


@readable
@frozen
class K210Lowering:
    """`model.onnx`, `kpu.json` and `kpu.bin`, for the K210.

    `model.onnx` computes in float with the quantized weights.  The compiler nncase reads it, and estimates its own ranges
    from images.  `kpu.json` has an entry for each convolution on the KPU, by the name of its node.  `reads` and `returns`
    are its tensors with their scales and zero points.  The others are the fields of the KPU's registers and tables:
    `pad_value`, `arg_x`, `shift_x`, `arg_w`, `shift_w` and `arg_add` of the sum; `batch_norm` as (norm_mul, norm_shift,
    norm_add) for each output channel; `activation` as 16 segments (x_start, y_mul, shift_number, result_bias).  `weights`
    is their place in `kpu.bin`: the offset in bytes, and [outputs, inputs of a group, height, width].

    The KPU pads 3x3 windows by 1 and moves by 1.  `pads` and `strides` are those of the convolution, for which nncase
    crops and picks entries.  No public tool packs these tables into a kmodel; only a simulator has executed them.

    `opset` is the version of ONNX's operators, 13 to 21.

    Source: Kendryte standalone SDK, kpu.h: kpu_layer_argument_t, kpu_batchnorm_argument_t and kpu_activate_table_t;
    nncase, modules/k210, kpu_conv2d.cpp: the values of arg_x, arg_w and arg_add.

    >>> K210Lowering()
    K210Lowering()
    """

    opset: int = opset_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the three files.

        Raises:
            DeployError: a tensor without uint8 codes, weights with another zero point than 128, a convolution with another
                window, groups of several channels, or sums that do not fit the tables; names the tensor or the op.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.side_file import json_bytes
        from qfunc.targets.k210.tables import layers

        for site in program.tensors:
            _require(site)
        entries, weights = layers(program.model, program.tensors)
        return {
            "model.onnx": float_model(program.model, program.tensors).SerializeToString(deterministic=True),
            "kpu.json": json_bytes({"layers": entries}),
            "kpu.bin": weights,
        }


def _require(site: QuantizedTensor) -> None:
    do = "Use the schemes of targets.k210, or edit.deploy(QdqLowering())."
    if site.role == "activation":
        require(site, site.format == BYTE, repr(site.format), f"{BYTE!r}, the only format of the KPU", do)
        require_one_scale(site, "the KPU")
    elif site.role == "weight":
        narrow = isinstance(site.format, Int) and not site.format.signed and site.format.bits <= 8
        require(site, narrow, repr(site.format), f"{BYTE!r}, the only format of the KPU", do)
        require(
            site,
            set(site.zero_point) == {WEIGHT_ZERO},
            f"the zero point {site.zero_point[0]}",
            f"{WEIGHT_ZERO}, the one that nncase gives a layer",
            do,
        )
