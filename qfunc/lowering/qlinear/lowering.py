"""TVM, by ONNX: QLinear operators on codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from qfunc.lowering.onnx.opset import opset_field
from qfunc.lowering.qlinear.constraints import require_site
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs._values import readable


@readable
@frozen
class QLinearLowering:
    """`model.onnx`: QLinear operators on bytes, between a QuantizeLinear of each input and a DequantizeLinear of each
    output.

    Conv becomes QLinearConv and MatMul QLinearMatMul; Gemm, Add, Concat and average pools become QGemm, QLinearAdd,
    QLinearConcat, QLinearAveragePool and QLinearGlobalAveragePool of the domain com.microsoft; MaxPool, reshaping,
    transposing, slicing and nearest Resize run on codes.  A Relu or Clip after such an op is dropped if its
    bounds are the ends of the codes, or beyond.  Weights are the simulation's codes, biases int32 of scale s_x*s_w,
    rounded half to even.  What has no such operator, or an input or output that is not quantized, stays in float.

    MQBench differs: it lets codes of weights wrap around, truncates biases, leaves linear layers in float, drops
    every Relu by setting zero points to 0 and cuts relu6's scale to 6/255, so that the artifact has other qparams
    than the simulation, and writes into the current directory; ONNX Runtime refuses its model.

    `opset` is the version of ONNX's operators, 13 to 21.

    Source: ONNX operator specification, QLinearConv-10, QLinearMatMul-21; onnxruntime, docs/ContribOperators.md;
    Apache TVM, python/tvm/relay/frontend/onnx.py; MQBench, deploy/deploy_onnx_qnn.py.

    >>> QLinearLowering()
    QLinearLowering()
    """

    opset: int = opset_field()

    def lower(self, model: Any, sites: Iterable[QuantizedTensor]) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: a tensor that is not in bytes.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.qlinear.rewrite import on_codes

        sites = tuple(sites)
        for site in sites:
            require_site(site)
        rewritten = on_codes(model, {p.real for s in sites for p in s.places})
        return {"model.onnx": rewritten.SerializeToString(deterministic=True)}


__all__ = ["QLinearLowering"]
