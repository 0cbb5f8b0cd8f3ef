"""TOSA: one .tosa of integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from attrs import frozen

from qfunc.lowering.format_checks import require_int8
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.tosa.constraints import LEGALITY
from qfunc.specs import Refuse
from qfunc.specs._values import readable


@readable
@frozen
class TosaLowering:
    """`model.tosa`: TOSA 1.0 by the profile PRO-INT, of one example, with the model's own zero points, weights and biases.

    The flatbuffer is written here, by its schema: no package of TOSA's is needed.  Its inputs and outputs are int8 codes
    in the model's own layout; `model.values.json` has their scales and zero points, and names the tensors.  Inside,
    images have their channels last.  Scales are multipliers of 31 bits in RESCALE with one rounding; functions of one
    tensor are TABLE; groups of convolutions are convolutions by themselves.

    Source: TOSA specification 1.0; tosa.fbs of tosa-tools 2026.8.

    >>> TosaLowering()
    TosaLowering()
    """

    legality: ClassVar[tuple[Refuse, ...]] = LEGALITY

    def lower(self, model: Any, sites: Iterable[QuantizedTensor]) -> Mapping[str, bytes]:
        """Return the files' bytes.

        Raises:
            DeployError: a tensor that is not in int8, or an op that has no form on integers.
        """
        # onnx is imported here, where it is first needed.
        from qfunc.lowering.nhwc.writer import Writer
        from qfunc.lowering.qdq_reader import QdqModel
        from qfunc.lowering.tosa.builder import TosaBuilder
        from qfunc.lowering.tosa.ops import NODES, STEPS

        for site in sites:
            require_int8(site, "tosa", "TOSA")
        graph, source = TosaBuilder(NODES), QdqModel(model)
        file = Writer(source, graph).write(STEPS)
        return {"model.tosa": file, "model.values.json": graph.listed([info.name for info in source.graph.input])}


__all__ = ["TosaLowering"]
