"""A target for an invented NPU, with its own op, estimator, function, node and artifact: see docs/new_target.md.

    python examples/new_target.py

Scales are powers of two.  A shift that rounds half up converts sums to codes.  Grouped convolutions have 4-bit weights.
There is an op that no other chip has.
"""

import json
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx, nn

import qfunc
from qfunc import estimators, functions, specs, targets
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import FloatKernel, Kernel, Op, Rule, Scheme
from qfunc.testing import check_estimator, check_function, check_target

KNEE = '<opset_import: ["":21], domain: "npu"> Knee (x) => (y) {k = Constant<value_float = 0.25>() b = Mul(k, x) y = Min(x, b)}'


@fx.wrap
def knee(x: Tensor) -> Tensor:
    return torch.minimum(x, 0.25 * x)


@frozen
class NineTenths:
    init, update = estimators.MinMax().init, estimators.MinMax().update

    def finalize(self, state: Any, scheme: Scheme) -> Affine:
        return from_range(0.9 * state.low, 0.9 * state.high, scheme)


def value(x: Tensor, *qparams: Tensor) -> Tensor:
    return x


def leaky(grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor) -> Any:
    return torch.where((low <= x) & (x <= high), grad, 0.1 * grad), None, None, None, None


LEAKY = functions.with_gradient(value, leaky, trains=())
QUANTIZE = """<opset_import: ["": 21], domain: "npu"> Quantize <low: float, high: float> (x, s) => (y) {
    l = Constant<value_float: float = @low>() h = Constant<value_float: float = @high>() half = Constant<value = float {0.5}>()
    t = Div(x, s) f = Floor(t) rest = Sub(t, f) up = GreaterOrEqual(rest, half) one = CastLike(up, x) q = Add(f, one)
    held = Clip(q, l, h) y = Mul(held, s) }"""


@frozen
class Leaky:
    init, apply, export = LEAKY.init, LEAKY.apply, LEAKY.export

    def onnx(self, graph: Any, tensor: str, qparams: Affine, scheme: Any, name: str) -> Any:
        scale, (low, high) = graph.number(float(qparams.scale), f"{name}.scale"), (scheme.format.qmin, scheme.format.qmax)
        return graph.call(QUANTIZE, [tensor, scale], name, low=float(low), high=float(high))


def row(t: Any) -> dict[str, Any]:
    return {"scale": t.scale, "zero_point": t.zero_point, "quant_min": t.low, "quant_max": t.high, "round_mode": t.rounding}


@frozen
class NpuFiles:
    def lower(self, program: Any) -> dict[str, bytes]:
        table = json.dumps({t.tensors[0]: row(t) for t in program.tensors}, indent=1)
        return {"model.onnx": program.model.SerializeToString(deterministic=True), "npu.json": table.encode()}


BYTE, NIBBLE = (Scheme(specs.Int(bits), specs.Scale(power_of_two=True), rounding="half_up") for bits in (8, 4))
MAC, MOVES = Op(("conv", "linear")), Op(("flatten", "max_pool"))

npu = specs.Target(
    name="npu",
    ops=specs.OpKind("knee", f"{__name__}.knee", onnx=KNEE),
    rules=(
        Rule(Op("conv") & ~specs.Attr("groups", 1), weight=NIBBLE),
        Rule(MAC | Op("knee"), input=BYTE, weight=BYTE, bias=specs.DerivedQParams(), output=BYTE),
    ),
    fusions=specs.Fusion(MAC, specs.FusionStep(Op("relu"))),
    kernels=(Kernel(MAC, specs.Shift("half_up")), Kernel(Op("knee"), FloatKernel(rounding="half_up"))),
    commuting=MOVES,
    runtime=specs.Runtime("npu simulator", runner=targets.runtimes.OnnxRuntimeRunner(optimise=False)),
    lowering=NpuFiles(),
    source="the NPU's programming guide, chapter 3",
    weight=specs.Algorithm(estimators.MinMax(), Leaky()),
    activation=specs.Algorithm(NineTenths(), Leaky()),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, groups=6)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.depthwise(knee(self.stem(x))).relu().flatten(1))


def main() -> None:
    torch.manual_seed(0)
    model, batches = Net().eval(), [torch.randn(4, 3, 8, 8) * 3 for _ in range(3)]
    check_estimator(NineTenths(), schemes=[BYTE], examples=5)
    check_function(Leaky(), schemes=[BYTE], examples=1, exempt={"saturation": "clipped values keep a tenth of their gradient"})
    check_target(npu, models=[(model, batches[0])])
    check_target(npu, examples=5)

    calibrated = qfunc.calibrate(batches)(qfunc.quantize(npu)(model))
    print(qfunc.verify(npu)(calibrated, batches).verdict)
    for name, t in json.loads(qfunc.deploy(npu)(calibrated).files["npu.json"]).items():
        print(f"{name:17} {t['scale'][0]:<16} {t['quant_min']:>11} {t['quant_max']:>10}  {t['round_mode']}")


if __name__ == "__main__":
    main()
