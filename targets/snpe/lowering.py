"""Encodings: the files of qparams that AIMET writes and that SNPE, QNN and QAIRT read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from qfunc.lowering.format_checks import format_error, require_integers, require_per_tensor
from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.side_file import by_tensor, json_bytes
from qfunc.specs import FileFormat, Int
from qfunc.specs._values import readable

_WIDTHS = (2, 4, 8, 16)


@readable
@frozen
class SnpeEncodings:
    """`model.onnx` (float, with the quantized weights) and `encodings_V.json` for V of 0.6.1, 1.0.0 and 2.0.0.

    A code q represents s (q - z); m is the lowest code of the type.  The versions are:

    * 0.6.1: one entry a tensor or channel; offset = m - z (0 or less for unsigned codes, -128 for symmetric
      int8), min = s offset, max = s (offset + 2^bitwidth - 1); is_symmetric is the text "True" or "False".
    * 1.0.0: the same offset; scales and offsets are lists, over the output channels where there are several.
    * 2.0.0: ONNX's own y_scale and y_zero_point, which is left out if 0, with the axis of the channels.

    An encoding has all codes of its type.  An activation with narrower codes is refused; narrow weights are on the grid
    of the type.  The files include weights and biases; a bias derived from one weight scale has one encoding.
    MQBench leaves `param_encodings` empty and clips the weights, so that the converter computes its own ranges; it
    fails if the network's output is quantized.

    Use: `snpe-onnx-to-dlc --input_network model.onnx --quantization_overrides encodings_0.6.1.json`, then
    `snpe-dlc-quantize --override_params --bias_bitwidth 32`; `qairt-converter --quantization_overrides` reads the others.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.  All versions of the converter read opset 11, which MQBench writes; that of QAIRT 2.39 reads up to 22.

    Source: AIMET documentation, Encoding Format Specification, versions 0.6.1, 1.0.0 and 2.0.0; MQBench user
    guide, deploy/snpe, and convert_deploy.py: opset 11; QAIRT 2.39 documentation, SNPE tools, snpe-onnx-to-dlc.

    >>> SnpeEncodings()
    SnpeEncodings()
    """

    opset: int = opset_field(11, lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the float model and its encodings.

        Raises:
            DeployError: a format that encodings do not have, an activation with narrow codes, or an activation with
                several scales; names the tensor.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes

        proto = float_model(program.model, program.tensors)
        found = [_Encoding(tensor, site) for tensor, site in by_tensor(proto, program.tensors).items()]
        return {
            "model.onnx": to_bytes(proto, self),
            "encodings_0.6.1.json": json_bytes({"version": "0.6.1", **_by_role(found, dict, lambda e: (e.tensor, e.v0()))}),
            "encodings_1.0.0.json": json_bytes({"version": "1.0.0", **_by_role(found, list, _Encoding.v1)}),
            "encodings_2.0.0.json": json_bytes({"version": "2.0.0", "encodings": [e.v2() for e in found]}),
        }


class _Encoding:
    def __init__(self, tensor: str, site: QuantizedTensor) -> None:
        fmt = require_integers(site, tensor, "an encoding")
        self.tensor, self.activation, self.bits = tensor, site.role == "activation", fmt.bits
        if fmt.bits not in _WIDTHS and fmt != Int(32):
            wanted = f"integers of {', '.join(map(str, _WIDTHS))} bits, or Int(32): encodings have no others"
            raise format_error(site, tensor, repr(fmt), wanted, "Edit the scheme: format=Int(8).")
        if self.activation:
            require_per_tensor(site, tensor, "an activation's encoding")
        stored = Int(fmt.bits, fmt.signed)
        if self.activation and fmt != stored:
            wanted = f"{stored!r}: encodings have all codes of their type"
            raise format_error(site, tensor, repr(fmt), wanted, f"Edit the scheme: format={stored!r}.")
        uniform = site.role == "bias" and len({*zip(site.scale, site.zero_point, strict=True)}) == 1
        count = 1 if uniform else len(site.scale)
        self.axis = None if uniform else site.axis
        self.scales, self.zeros = list(site.scale[:count]), list(site.zero_point[:count])
        self.offsets = [stored.qmin - z for z in self.zeros]
        self.symmetric = fmt.signed and not any(self.zeros)
        self.dtype = f"{'' if fmt.signed else 'u'}int{fmt.bits}"

    def v0(self) -> list[dict[str, Any]]:
        each = zip(self.scales, self.offsets, strict=True)
        return [
            {
                "bitwidth": self.bits,
                "dtype": "int",
                "is_symmetric": str(self.symmetric),
                "min": scale * offset,
                "max": scale * (offset + (1 << self.bits) - 1),
                "scale": scale,
                "offset": offset,
            }
            for scale, offset in each
        ]

    def v1(self) -> dict[str, Any]:
        kind = "PER_TENSOR" if self.axis is None else "PER_CHANNEL"
        head = {"name": self.tensor, "dtype": "INT", "enc_type": kind, "bw": self.bits, "is_sym": self.symmetric}
        return head | {"scale": self.scales, "offset": self.offsets}

    def v2(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.tensor, "output_dtype": self.dtype}
        fields["y_scale"] = self.scales[0] if self.axis is None else self.scales
        if any(self.zeros):
            fields["y_zero_point"] = self.zeros[0] if self.axis is None else self.zeros
        return fields | ({} if self.axis is None else {"axis": self.axis})


def _by_role(found: list[_Encoding], gather: Callable[[Any], Any], entry: Callable[[_Encoding], Any]) -> dict[str, Any]:
    kinds = (("activation_encodings", True), ("param_encodings", False))
    return {kind: gather(entry(e) for e in found if e.activation == activation) for kind, activation in kinds}
