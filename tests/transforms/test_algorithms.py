"""Every estimator and function of the library through the whole pipeline: quantize, calibrate, train, deploy."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import fx, nn

import qfunc
from qfunc import estimators, functions, targets
from qfunc.errors import SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Log, Op, PerChannel, PerToken, Rule, Scale, Scheme, edit
from qfunc.specs.formats import NVFP4
from tests.transforms.nets import network

ESTIMATORS = sorted(estimators.__all__)
ACTIVATIONS = ("Fixed", "Lsq", "LsqPlus", "Pact", "Dsq", "Tqt", "QDrop", "Stochastic")
WEIGHTS = ("Fixed", "Lsq", "LsqPlus", "DoReFa", "Dsq", "Tqt", "QDrop", "Stochastic", "AdaRound")


def pipeline(target: Any) -> tuple[fx.GraphModule, torch.Tensor]:
    """A calibrated residual network and its input."""
    model, x = network("residual")
    return qfunc.calibrate([x, 0.5 * x])(qfunc.quantize(target)(model)), x


def trained(model: fx.GraphModule, x: torch.Tensor) -> fx.GraphModule:
    """After three steps of SGD; the scales of a derived bias follow its sources."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("role", ["weights", "activations"])
def test_every_estimator_calibrates_a_network_that_stays_exact(name: str, role: str) -> None:
    target = getattr(edit, role)(estimator=getattr(estimators, name)())(targets.onnxruntime)
    model, x = pipeline(target)
    assert qfunc.verify(target)(model, [x]).agreement.startswith("bit-exact")


@pytest.mark.thorough
@pytest.mark.parametrize(("role", "name"), [*(("weights", n) for n in WEIGHTS), *(("activations", n) for n in ACTIVATIONS)])
def test_every_function_trains_and_deploys_what_it_simulates(role: str, name: str) -> None:
    target = getattr(edit, role)(function=getattr(functions, name)())(targets.onnxruntime)
    model, x = pipeline(target)
    before = {k: v.clone() for k, v in model.named_parameters()}
    assert qfunc.verify(target)(model, [x]).agreement.startswith("bit-exact")
    trained(model, x)
    learned = [k for k, v in model.named_parameters() if k.startswith("quantizers.")]
    function = getattr(functions, name)()
    for seat in quantizer_nodes(model):
        if seat.module.site.function == function and hasattr(function, "learned") and seat.module.ready:
            assert set(function.learned(seat.module.site.scheme)) <= {k for k, _ in seat.module.named_parameters()}
    assert not learned or any(not torch.equal(before[k], p) for k, p in model.named_parameters() if k in learned)
    assert qfunc.verify(target)(model, [x]).agreement.startswith("bit-exact")


def test_a_bias_follows_scales_that_were_trained() -> None:
    # The oracle is the definition: s_bias = float32(s_input * s_weight), in the artifact's own report.
    target = edit.weights(function=functions.Lsq())(targets.onnxruntime)
    model, _ = pipeline(target)
    with torch.no_grad():
        model.get_parameter("quantizers.conv1.weight.scale").mul_(1.5)
    held = {t["name"]: t for t in json.loads(qfunc.deploy(target)(model).files["qfunc.json"])["tensors"]}
    (x,) = held["x"]["scale"]
    want = [float(torch.tensor(x) * torch.tensor(w)) for w in held["conv1.weight"]["scale"]]
    assert held["conv1.bias"]["scale"] == want
    assert held["conv1.weight"]["scale"] != (1.5 * torch.tensor(want)).tolist()


def test_what_the_hardware_dictates_does_not_train() -> None:
    target = edit.pipe(targets.onnxruntime, edit.weights(function=functions.Lsq()), edit.activations(function=functions.Lsq()))
    model, _ = pipeline(target)
    dictated = [s for s in quantizer_nodes(model) if not isinstance(s.module.site.value, Scheme)]
    assert dictated
    assert not [name for s in dictated for name, _ in s.module.named_parameters()]


def test_training_sees_the_surrogate_with_noise_of_seed_and_step() -> None:
    # The oracle is QDrop's definition: with p = 1/2 each element is either x or its quantized value.
    target = edit.activations(function=functions.QDrop())(targets.tensorrt)
    model, x = pipeline(target)
    seat = next(s for s in quantizer_nodes(model) if s.tensor == "x").module
    hard = seat.eval()(x)
    assert torch.equal(seat(x), hard)
    seat.train()
    first, second = seat(x), seat(x)
    kept = (first == x) & (hard != x)
    assert 0.4 < kept.sum() / (hard != x).sum() < 0.6  # 0.5 +- 5 standard errors of some thousand draws
    assert torch.equal(torch.where(kept, x, hard), first)
    assert not torch.equal(first, second)
    seat.step.zero_()
    assert torch.equal(seat(x), first)
    assert int(seat.step) == 1


def test_a_dynamic_scale_is_that_of_each_tensor() -> None:
    rules = (Rule(Op("linear"), input=Scheme(scale=Scale(PerToken(), dynamic=True))),)
    target = evolve(targets.tensorrt, rules=rules, ties=(), legality=(), lowering=None)
    net = nn.Linear(6, 5).eval()
    made = qfunc.quantize(target)(net)
    x = torch.randn(3, 6) * torch.tensor([[1.0], [10.0], [0.1]])
    scale = x.abs().amax(1, keepdim=True) / 127
    assert torch.allclose(made(x), net(torch.round(x / scale) * scale), atol=1e-6)  # the order of float32 sums
    assert "at run time" in str(qfunc.explain(made))
    assert "dynamic scale" in repr(made)


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (NVFP4, "Float(2, mantissa=1, max=6.0) with a scale PerBlock(-1, size=16)"),
        (Scheme(Log(), Scale(PerChannel())), "Log() with a scale PerChannel(0)"),
    ],
)
def test_formats_without_integer_units_are_simulated_only(weight: Scheme, found: str) -> None:
    target = evolve(targets.qdq, rules=(Rule(Op("linear"), weight=weight),), ties=(), legality=(), lowering=None)
    net, x = nn.Linear(32, 5), torch.randn(3, 32)
    done = qfunc.calibrate([x])(qfunc.quantize(target)(net))
    assert (done(x) - net(x)).abs().max() < 0.5
    with pytest.raises(SpecError) as caught:
        qfunc.emulate(target)(done)
    assert str(caught.value) == (
        f"site 'weight': found {found}, wanted integers with one static scale per tensor or channel. "
        "Use the quantized model itself, since other formats are only simulated, or an integer target."
    )


def test_learned_parameters_survive_a_state_dict_and_a_file(tmp_path: Any) -> None:
    target = edit.pipe(
        targets.onnxruntime,
        edit.weights(function=functions.AdaRound(functions.Lsq())),
        edit.activations(function=functions.LsqPlus()),
    )
    model, x = pipeline(target)
    trained(model, x)
    qfunc.save(tmp_path)(model)
    again = qfunc.load(tmp_path)(network("residual")[0].eval())
    assert all(torch.equal(p, dict(again.named_parameters())[k]) for k, p in model.named_parameters() if "quantizers" in k)
    fresh = qfunc.quantize(target)(network("residual")[0])
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(x), model(x))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by Dynamo, of autograd functions
@pytest.mark.parametrize("name", ["onnxruntime", "vitis", "tensorrt"])
def test_a_simulation_is_one_graph_to_a_compiler(name: str) -> None:
    """Derived biases, powers of two, weights alone: in evaluation and in training, with gradients."""
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)), torch.randn(2, 3, 6, 6)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(getattr(targets, name))(net.eval()))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))
    model.train()
    compiled(x).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, model.parameters(), strict=True))
