"""What stands in the ONNX model for each format: run by ONNX Runtime, and compared with the formula or the simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve, frozen
from onnx import numpy_helper
from torch import Tensor, nn

import qfunc
from qfunc import functions, targets
from qfunc.errors import SpecError
from qfunc.lowering import ExplicitQdqLowering, QdqLowering
from qfunc.lowering.onnx.remove_quantizers import float_model
from qfunc.lowering.program import Program
from qfunc.numerics.qparams import Affine
from qfunc.specs import Algorithm, Int, Log, Op, PerChannel, Rule, Scale, Scheme, ZeroPoint, edit, from_json, to_json
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME

NARROW = (Int(8, low=-127), Int(8, signed=False, high=100), Int(16, signed=False, low=1), Int(16))


def parts(target: Any, net: nn.Module, *batches: Tensor) -> tuple[Any, onnx.ModelProto, tuple[Any, ...]]:
    """(the calibrated model, its Q/DQ model, its sites): what a lowering is given."""
    seen: list[Any] = []

    @frozen
    class Spy:
        def lower(self, program: Any) -> dict[str, bytes]:
            seen.append((program.model, program.tensors))
            return {"model.onnx": program.model.SerializeToString()}

    target = evolve(target, lowering=Spy())
    done = qfunc.calibrate(list(batches), progress=False)(qfunc.quantize(target)(net))
    qfunc.deploy(target)(done)
    return done, *seen[0]


def deployed(target: Any, net: nn.Module, x: Tensor) -> tuple[Any, onnx.ModelProto]:
    """(the calibrated model, its artifact's model.onnx, which is ONNX and the same each time)."""
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    files = qfunc.deploy(target)(done).files
    assert set(files) == {"model.onnx", "qfunc.json"}
    assert qfunc.deploy(target)(done).files["model.onnx"] == files["model.onnx"]
    proto = onnx.load_from_string(files["model.onnx"])
    onnx.checker.check_model(proto)
    return done, proto


def run(model: onnx.ModelProto, x: Tensor) -> Tensor:
    return torch.from_numpy(OnnxRuntimeRunner(optimise=False).session(model.SerializeToString()).run([x])[0])


def inputs_only(scheme: Scheme, function: Any = None) -> Any:
    algorithm = targets.tensorrt.activation if function is None else Algorithm(targets.tensorrt.activation.estimator, function)
    rules = (Rule(Op("relu"), input=scheme),)
    return evolve(targets.tensorrt, rules=rules, fusions=(), ties=(), commuting=(), legality=(), activation=algorithm)


@pytest.mark.parametrize("fmt", NARROW, ids=repr)
def test_integers_saturate_at_the_ends_of_their_own_codes(fmt: Int) -> None:
    scheme = Scheme(fmt, zero_point=None if fmt.signed else ZeroPoint())
    done, model, (site,) = parts(inputs_only(scheme), nn.ReLU(), torch.randn(7, 5))
    s, z = site.scale[0], site.zero_point[0]
    x = torch.tensor([[-1e6, 1e6, s * (fmt.qmax - z), s * (fmt.qmax + 1 - z), s * (fmt.qmin - 1 - z)]])
    real = next(v for v in model.graph.node if v.op_type == "DequantizeLinear").output[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(real, onnx.TensorProto.FLOAT, None))
    outputs = OnnxRuntimeRunner(optimise=False).session(model.SerializeToString()).run([x])
    low, high = (np.float32(s) * np.float32(q - z) for q in (fmt.qmin, fmt.qmax))
    assert outputs[1].tolist() == [[low, high, high, high, low]]
    assert torch.equal(torch.from_numpy(outputs[0]), done(x))


@pytest.mark.parametrize("function", [functions.Fixed(), functions.NnieLog()], ids=repr)
def test_logarithmic_activations_are_a_function_of_the_model_s_own(function: Any) -> None:
    done, model, (site,) = parts(inputs_only(Scheme(Log()), function), nn.ReLU(), torch.randn(7, 5) * 3)
    onnx.checker.check_model(model)
    assert [f.name for f in model.functions] == ["LogQuantize"]
    z = 16 * np.log2(site.scale[0])
    smallest = 2 ** ((z - 16) / 16)
    ends = torch.tensor([0.0, 1e9, smallest * 0.999, smallest * 1.001])
    x = torch.cat((torch.randn(4000), torch.randn(3996) * 1e-3, ends)).float()
    # The oracle is NNIE's published formula in float64; float32 holds its values to half an ulp.
    real = x[x > 0].double()
    code = torch.clamp(torch.round(16 * torch.log2(real)) - round(z), 0, 127)
    wanted = torch.where(real < smallest, 0.0, 2 ** ((code + round(z)) / 16)).float()
    got = run(model, x.reshape(-1, 5)).flatten()
    assert torch.allclose(got[x > 0], wanted, rtol=2**-23, atol=0)
    assert torch.allclose(got, done(x.reshape(-1, 5)).flatten(), rtol=2**-23, atol=0)
    assert int(site.high) == 127
    assert site.maximum == pytest.approx([2 ** ((z + 127) / 16)])


@frozen
class Halves:
    """x_hat = round(x / s) s, written as a node of its own."""

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Affine:
        return qparams

    def apply(self, params: Affine, x: Tensor, scheme: Scheme) -> Tensor:
        return functions.Fixed().apply(params, x, scheme)

    def export(self, params: Affine, x: Tensor, scheme: Scheme) -> Any:
        return functions.Fixed().export(params, x, scheme)

    def onnx(self, graph: Any, tensor: str, qparams: Affine, scheme: Scheme, name: str) -> str:
        text = """<opset_import: ["" : 21], domain: "mine">
            Halves <low: float, high: float>(x, s) => (y) {
                l = Constant<value_float: float = @low>() h = Constant<value_float: float = @high>()
                d = Div(x, s) r = Round(d) c = Clip(r, l, h) y = Mul(c, s) }"""
        scale = graph.number(float(qparams.scale), f"{name}.scale")
        low, high = float(scheme.format.qmin), float(scheme.format.qmax)
        return str(graph.call(text, [tensor, scale], name, low=low, high=high))


def test_a_function_writes_its_own_node() -> None:
    done, model, (site,) = parts(inputs_only(Scheme(), Halves()), nn.ReLU(), torch.randn(7, 5))
    onnx.checker.check_model(model)
    assert [(n.domain, n.op_type) for n in model.graph.node] == [("mine", "Halves"), ("", "Relu")]
    x = torch.randn(9, 5) * 2
    assert torch.equal(run(model, x), done(x))
    assert [n.op_type for n in float_model(model, [site]).graph.node] == ["Relu"]
    assert len(float_model(model, [site]).functions) == 0


class Net(nn.Module):
    """A residual block; every size differs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 5, (1, 3), padding=(0, 1))
        self.pool, self.fc = nn.MaxPool2d(2, ceil_mode=True), nn.Linear(5 * 4 * 3, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        return self.fc(self.pool(torch.relu(self.b(y) + y)).flatten(1))


@pytest.mark.parametrize("target", [ONNXRUNTIME, targets.tensorrt], ids=["onnxruntime", "tensorrt"])
def test_the_float_model_has_the_quantized_weights_and_no_quantizers(target: Any) -> None:
    torch.manual_seed(0)
    net = Net()
    done, model, sites = parts(target, net, torch.randn(2, 3, 8, 6))
    before = model.SerializeToString()
    made = float_model(model, sites)
    onnx.checker.check_model(made)
    assert model.SerializeToString() == before
    assert {n.op_type for n in made.graph.node} == {"Conv", "Relu", "Add", "MaxPool", "Flatten", "Gemm"}
    stored = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in made.graph.initializer}
    weights = {s.name: s for s in sites if s.role != "activation"}
    with torch.no_grad():
        for name, site in weights.items():
            # The oracle is the definition, s clamp(round(w / s)), by channel.
            tensor = net.get_parameter(name)
            scale = torch.tensor(site.scale).reshape([-1] + [1] * (tensor.ndim - 1))
            wanted = torch.clamp(torch.round(tensor / scale), site.low, site.high) * scale
            assert torch.equal(stored[name], wanted)
            net.get_parameter(name).copy_(stored[name])
        x = torch.randn(3, 3, 8, 6)
        assert torch.allclose(run(made, x), net(x), atol=1e-5)  # the order of float32 sums
    assert set(stored) >= set(weights)
    # Every tensor that a site names is there, by the name that the site gives it.
    there = {o for n in made.graph.node for o in n.output} | {i.name for i in made.graph.input} | set(stored)
    assert {t for s in sites for t in s.tensors} <= there
    assert set(done.state_dict()) >= {"a.weight"}


def test_zero_points_of_weights_are_subtracted() -> None:
    torch.manual_seed(0)
    rules = (Rule(Op("linear"), weight=Scheme(Int(8, signed=False), zero_point=ZeroPoint())),)
    net = nn.Linear(6, 5)
    _, model, sites = parts(evolve(targets.tensorrt, rules=rules, ties=(), legality=()), net, torch.randn(2, 6))
    (weight,) = (numpy_helper.to_array(i) for i in float_model(model, sites).graph.initializer if i.name == "weight")
    assert np.abs(weight - net.weight.detach().numpy()).max() <= sites[0].scale[0] / 2 * (1 + 1e-6)  # half a step
    assert sites[0].zero_point[0] > 50


def test_chosen_quantizers_stay() -> None:
    _, model, sites = parts(targets.tensorrt, Net(), torch.randn(2, 3, 8, 6))
    made = float_model(model, sites, kept=("x",))
    assert [n.op_type for n in made.graph.node][:2] == ["QuantizeLinear", "DequantizeLinear"]
    assert sum(n.op_type == "QuantizeLinear" for n in made.graph.node) == 1


def test_an_input_that_is_an_output_keeps_its_name() -> None:
    _, model, sites = parts(inputs_only(Scheme()), nn.Sequential(nn.ReLU()), torch.randn(3, 4))
    identity = onnx.ModelProto()
    identity.CopyFrom(model)
    del identity.graph.node[2:]
    identity.graph.output[0].name = sites[0].places[0].real
    made = float_model(identity, sites)
    onnx.checker.check_model(made)
    assert [(n.op_type, list(n.output)) for n in made.graph.node] == [("Identity", [sites[0].places[0].real])]


def test_a_scale_a_channel_is_named_by_its_axis() -> None:
    _, _, sites = parts(targets.tensorrt, Net(), torch.randn(2, 3, 8, 6))
    site = next(s for s in sites if s.name == "b.weight")
    assert (site.axis, len(site.scale), site.role, site.readers) == (0, 5, "weight", ("b",))
    assert isinstance(targets.tensorrt.rules[0].weight, Scheme)
    assert targets.tensorrt.rules[0].weight.scale == Scale(PerChannel())


def test_explicit_q_dq_has_no_copies_for_the_sake_of_an_optimiser() -> None:
    """Conv -> QuantizeLinear in the file of an engine; the copy stands in that for ONNX Runtime, and computes the same."""
    skipped = edit.skip(edit.op("conv"))(inputs_only(Scheme()))
    rules = (Rule(Op("relu"), input=Scheme()),)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    _, model, sites = parts(evolve(skipped, rules=rules), net, torch.randn(2, 3, 5, 6))
    guarded, plain = (
        onnx.load_from_string(q.lower(Program(model, sites))["model.onnx"]) for q in (QdqLowering(), ExplicitQdqLowering())
    )
    kinds = ["Conv", "Max", "QuantizeLinear", "DequantizeLinear", "Relu"]
    assert [n.op_type for n in guarded.graph.node] == kinds
    assert [n.op_type for n in plain.graph.node] == [k for k in kinds if k != "Max"]
    x = torch.randn(2, 3, 5, 6)
    assert torch.equal(run(plain, x), run(guarded, x))


class Mixed(nn.Module):
    """Convolutions, a sum, a product, a maximum, an average, a concatenation and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 5, 1), nn.Conv2d(5, 5, 3, padding=1), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Any:
        """Scores."""
        x = torch.relu(self.a(x))
        x = nn.functional.max_pool2d(x + self.b(x), 2)
        x = nn.functional.leaky_relu(torch.sigmoid(x) * x)
        return self.fc(nn.functional.adaptive_avg_pool2d(torch.cat([x, x], 1), 1).flatten(1))


@pytest.mark.thorough
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", range(2, 9))
def test_codes_that_no_kernel_takes_are_left_to_float_by_the_optimiser_too(bits: int, symmetric: bool) -> None:
    """int8 and fewer bits than 8: ONNX Runtime makes uint8 of some, and refuses to load others, unless they are hidden."""
    torch.manual_seed(bits)
    target = edit.activations(bits=bits, symmetric=symmetric)(targets.onnxruntime)
    x = torch.randn(4, 3, 8, 6) * 3
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Mixed()))
    report = qfunc.verify(target, OnnxRuntimeRunner(threads=1))(done, [x, torch.randn(3, 3, 8, 6) * 3])
    assert report.disagreements == ()
    assert (report.predicted > 0) == (bits == 8 and not symmetric)
    if not report.predicted:
        # Sums of floats in another order move a code by one where it lies between two.
        assert all(r.largest_lsb <= 1 for r in report.of("codes"))
        assert sum(r.mismatches for r in report.of("codes")) <= report.elements // 1000


class Attended(nn.Module):
    """A softmax, whose output the hardware fixes, and a product that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.key(x) @ x.transpose(1, 2), -1) @ self.value(x)


@pytest.mark.parametrize("bits", [2, 5, 7, 10, 16])
def test_a_softmax_stays_as_the_hardware_fixes_it_and_its_reader_takes_that(bits: int) -> None:
    torch.manual_seed(bits)
    target, batch = edit.activations(bits=bits)(targets.onnxruntime), torch.randn(3, 5, 6)
    done = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(Attended().eval()))
    formats = {s.tensor: s.format for s in qfunc.explain(done).sites if s.slot == "output"}
    assert (formats["softmax"], formats["value"]) == ("Int(8, signed=False)", f"Int({bits}, signed=False)")
    report = qfunc.verify(target)(done, [batch])
    assert report.agreement.startswith("bit-exact"), report
    assert report.disagreements == ()


def test_two_rules_that_want_one_tensor_in_two_formats_are_refused() -> None:
    target = edit.inputs(edit.name("matmul_1"), Scheme(Int(8)))(targets.onnxruntime)
    own = edit.outputs(edit.op("softmax"), Scheme(Int(8, signed=False), zero_point=ZeroPoint()))(target)
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(own)(Attended().eval())
    assert str(caught.value) == (
        "target 'onnxruntime', tensor 'softmax': found Int(8, signed=False) by its producer's rule and Int(8) by the rule of "
        "'matmul_1', wanted one format, because no tensor has two quantizers in series. "
        "Use edit.inputs(edit.name('matmul_1'), Scheme(Int(8, signed=False), zero_point=ZeroPoint()))."
    )


def test_integers_wider_than_quantize_linear_makes_are_refused_by_quantize() -> None:
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(edit.activations(bits=24)(targets.onnxruntime))(nn.Linear(3, 2))
    assert str(caught.value) == (
        "target 'onnxruntime', op 'linear', input 'input'; op 'linear', output 'linear': found Int(24, signed=False) for "
        "OnnxRuntimeLowering(), wanted at most 16 bits: QuantizeLinear has no wider codes (ONNX operators). Set it with "
        "edit.deploy(...), or edit the scheme."
    )


SOFTPLUS = [(1.0, 20.0), (2.0, 20.0), (2.0, 1.0), (0.5, 3.0), (1.0, 2.0), (-1.5, 20.0)]


@pytest.mark.parametrize("by_export", [False, True])
@pytest.mark.parametrize(("beta", "threshold"), SOFTPLUS)
def test_a_softplus_has_its_slope_and_its_threshold(beta: float, threshold: float, by_export: bool) -> None:
    x = torch.randn(2, 3, 8, 6) * 3
    net = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Softplus(beta, threshold))
    target = targets.qdq
    done = qfunc.quantize(target, example_inputs=(x,) if by_export else None)(net)
    done = qfunc.calibrate([x], progress=False)(done)
    data = qfunc.deploy(target)(done).files["model.onnx"]
    got = OnnxRuntimeRunner(optimise=False, threads=1).session(data).run([x])[0]
    # One exp, one logarithm and one quotient of float32, each right to a few roundings.
    assert torch.allclose(torch.from_numpy(got), done.eval()(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["snpe", "ppl_cuda", "nnie", "vitis", "openvino", "onnx_qnn", "qnn_htp", "tengine_u8", "stpu"])
def test_a_lowering_names_the_opset_of_its_models(name: str) -> None:
    target = getattr(targets, name)
    target = edit.deploy(evolve(target.lowering, opset=13))(target)
    done = qfunc.calibrate([torch.randn(2, 3, 8, 6)], progress=False)(qfunc.quantize(target)(Net()))
    files = qfunc.deploy(target)(done).files
    models = [onnx.load_from_string(content) for file, content in files.items() if file.endswith(".onnx")]
    assert {next(o.version for o in m.opset_import if o.domain == "") for m in models} == {13}
    assert from_json(to_json(target)) == target
