"""Lower a model to ncnn: one .param and one .bin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import frozen

from qfunc.files.ncnn_param import with_blob_names
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._values import readable
from qfunc.targets.ncnn.constraints import LEGALITY, require_site

_PARAM = "model.ncnn.param"


@readable
@frozen
class NcnnLowering:
    """`model.ncnn.param` and `model.ncnn.bin`: int8 convolutions and linear layers with the codes and scales of the model.

    qfunc writes the files; ncnn is needed only to run them.  The blobs of the inputs have
    the names of the arguments, those of the outputs their names in the forward's value, or "out0", "out1", ...; they hold
    one example without the batch axis.  The blobs "<tensor>.codes" are int8.  A scale
    is stored as float32(1/s).  A convolution requantizes if another convolution reads its codes (8=102, depthwise 8=101);
    relu and clip are fused into the layer before them, and all other ops compute in float32.  Each group of a grouped
    convolution is a separate layer, because ncnn has one scale for each group.

    Source: ncnn 20261020, docs/developer-guide/param-and-model-file-structure.md and operators.md.

    >>> NcnnLowering()
    NcnnLowering()
    """

    format: ClassVar[FileFormat] = FileFormat(one_size="a .param of ncnn", legality=LEGALITY, names=True)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the files' bytes.

        Raises:
            DeployError: a tensor that is not in symmetric int8, or an op that ncnn does not have.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.inline_functions import without_functions
        from qfunc.targets.ncnn.ops import WRITERS
        from qfunc.targets.ncnn.writer import Writer

        for site in program.tensors:
            require_site(site)
        files = Writer(without_functions(program.model)).write(WRITERS)
        renamed = {f"in{i}": name for i, name in enumerate(program.inputs)}
        renamed |= {f"out{i}": name for i, name in enumerate(program.outputs) if name}
        return {**files, _PARAM: with_blob_names(files[_PARAM], renamed)}
