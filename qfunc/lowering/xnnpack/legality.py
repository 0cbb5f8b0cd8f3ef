"""The ops that no node of XNNPACK computes, by kind and attributes: `quantize` refuses them."""

from __future__ import annotations

from qfunc.lowering.tflite.constraints import MODES, OUTSIDE, UNWRITTEN
from qfunc.specs import Op, Refuse

NO_NODE = "ExecuTorch 1.5, backends/xnnpack/serialization/schema.fbs: no such node, or not in that form"
LEGALITY = (
    Refuse(Op((*UNWRITTEN, "round", "round_decimals", "prod", "flip")), because=NO_NODE, do=OUTSIDE),
    Refuse(Op("resize") & MODES, because=NO_NODE, do="Use mode='nearest' or mode='bilinear'."),
)

__all__ = ["LEGALITY"]
