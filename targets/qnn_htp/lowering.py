"""Lower a model to Q/DQ ONNX for Qualcomm's HTP, with activations as bounds of codes."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from qfunc.lowering.onnx.lowering import QdqLowering
from qfunc.lowering.onnx.opset import opset_field
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._values import readable
from qfunc.targets.qnn_htp.constraints import LEGALITY, require_scales


@readable
@frozen(kw_only=True)
class QnnHtpLowering:
    """The `model.onnx` of `ExplicitQdqLowering`, with each Relu or Clip before a QuantizeLinear as bounds of codes.

    With bounds a, b and codes q(x) in m..n, q(min(max(x, a), b)) = min(max(q(x), q(a)), q(b)), because q is monotonic.  If
    q(a) = m and q(b) = n, the op is dropped; else it becomes Max, Min or both, each on codes, with a constant code.  The HTP
    ignores the upper bound of a Clip whose lower bound is the lowest code, and the provider rejects a Clip after a
    convolution.  If a weight has one scale, so has its bias, because the HTP misreads several equal scales.

    Source: onnxruntime-qnn 2.7, measured.

    >>> QnnHtpLowering(opset=17)
    QnnHtpLowering(opset=17)
    """

    opset: int = opset_field()

    @property
    def format(self) -> FileFormat:
        """The opset, and the ops that the backend lacks."""
        return FileFormat(opset=self.opset, legality=LEGALITY)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes, the same for the same model.

        Raises:
            DeployError: a product whose scale is at least 2^8 times the output's.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model, prune
        from qfunc.targets.qnn_htp.rewrite import bound_codes, share_bias_scale

        rewritten = float_model(program.model, ())
        bound_codes(rewritten)
        share_bias_scale(rewritten)
        require_scales(rewritten)
        prune(rewritten)
        return QdqLowering().lower(evolve(program, model=rewritten))
