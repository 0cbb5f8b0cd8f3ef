"""Lower a model to TOSA: one integer .tosa file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import frozen

from qfunc.lowering.format_checks import require_int8
from qfunc.lowering.program import Program, by_node
from qfunc.specs import FileFormat
from qfunc.specs._values import readable
from qfunc.targets.tosa.constraints import LEGALITY


@readable
@frozen
class TosaLowering:
    """`model.tosa`: TOSA 1.0 in the profile PRO-INT, for one example, with the model's zero points, weights and biases.

    qfunc writes the flatbuffer by its schema and needs no package of TOSA.  Inputs and outputs are int8 codes in the
    model's layout; `model.values.json` has their scales and zero points, and the names of the tensors.  Images inside the
    file have their channels last.  RESCALE multiplies by a scale of 31 bits and rounds once; functions of one tensor are
    TABLE; each group of a convolution is a separate convolution.

    Source: TOSA specification 1.0; tosa.fbs of tosa-tools 2026.8.

    >>> TosaLowering()
    TosaLowering()
    """

    format: ClassVar[FileFormat] = FileFormat(one_size="a TOSA file", legality=LEGALITY, names=True)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the files' bytes.

        Raises:
            DeployError: a tensor that is not int8, or an op that TOSA does not have on integers.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.constant_folding import folded
        from qfunc.lowering.nhwc.writer import Writer
        from qfunc.targets.tosa.builder import TosaBuilder
        from qfunc.targets.tosa.ops import COMPOSED, NODES, STEPS
        from qfunc.targets.tosa.tensor_names import with_tensor_names

        for site in program.tensors:
            require_int8(site, "tosa", "TOSA")
        graph, (source, _) = TosaBuilder(NODES), folded(program.model)
        file = Writer(source, graph, by_node(program)).write(STEPS, COMPOSED)
        values = graph.values_json([info.name for info in source.graph.input])
        if program.outputs:
            file, values = with_tensor_names(file, values, program.inputs, program.outputs)
        return {"model.tosa": file, "model.values.json": values}
