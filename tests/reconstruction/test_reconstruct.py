"""reconstruct: laws of the result, on small networks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from attrs import evolve
from safetensors import safe_open
from torch import Tensor, nn

import qfunc
from qfunc import functions, targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.reconstruction import Blocks, Fisher, Method, SquaredError
from qfunc.reconstruction import run_graph as part
from qfunc.specs import edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.reconstruction.small_nets import (
    Attention, Chain, Inverted, Pair, Resnet, calibrated, codes, images,
)  # fmt: skip
from tests.reconstruction.small_nets import (
    functions as weight_functions,
)

QUICK = {"iterations": 12, "batch": 8, "rounding_lr": 0.2}
METHODS = {
    "adaround": qfunc.adaround(**QUICK),
    "brecq": qfunc.brecq(**QUICK, scale_lr=1e-3),
    "qdrop": qfunc.qdrop(**QUICK, scale_lr=1e-3),
}


def tokens(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    """Two batches of ids and masks."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(5)[None] < torch.randint(2, 6, (count, 1), generator=generator)
    ids = torch.randint(7, (count, 5), generator=generator)
    return list(zip(ids.split(7), mask.split(7), strict=True))


NETS: dict[str, tuple[type[nn.Module], list[Any]]] = {
    "resnet": (Resnet, list(images().split(7))),
    "inverted": (Inverted, list(images().split(7))),
    "attention": (Attention, tokens()),
    "pair": (Pair, [(torch.randn(7, 4), torch.randn(7, 3)), (torch.randn(5, 4), torch.randn(5, 3))]),
}


@pytest.mark.parametrize(
    ("net", "name"),
    [("resnet", "adaround"), ("resnet", "brecq"), ("inverted", "qdrop"), ("attention", "qdrop"), ("pair", "adaround")],
)
def test_the_laws_of_a_result(net: str, name: str, tmp_path: Path) -> None:
    kind, batches = NETS[net]
    model = kind()
    before = calibrated(model, batches)
    state = {k: v.clone() for k, v in before.state_dict().items()}
    after = qfunc.reconstruct(METHODS[name], batches, resume=tmp_path)(before)

    # The given model is what it was, and the float weights are those of the result.
    assert before.state_dict().keys() == state.keys()
    assert all(torch.equal(v, state[k]) for k, v in before.state_dict().items())
    assert all(
        torch.equal(v, state[k]) for k, v in after.state_dict().items() if k in state and not k.startswith("quantizers.")
    )
    # Each weight goes to one of its two neighbours: at most one code from nearest, and something moves.
    nearest, found = codes(before), codes(after)
    moved = {k: (found[k] - nearest[k]).abs().max() for k in nearest if k != "table.weight"}
    assert all(m <= 1 for m in moved.values())
    assert any(m == 1 for m in moved.values())
    # Soft is hard: training begins with the values that evaluation has.
    given = batches[0] if isinstance(batches[0], tuple) else (batches[0],)
    for value in (s.module for s in quantizer_nodes(after) if s.module.site.slot == "weight" and s.module.site.name in moved):
        weight = torch.randn(value.like)
        assert torch.equal(value.train()(weight), value.eval()(weight))
    # No unit's loss rose, and as a whole the units came nearer.
    losses = [_losses(file) for file in sorted(tmp_path.glob("*.safetensors"))]
    assert sum(min(new, old) for old, new in losses) < sum(old for old, _ in losses)
    assert [t.shape for t in qfunc_leaves(after(*given))] == [t.shape for t in qfunc_leaves(model(*given))]


def _losses(file: Path) -> tuple[float, float]:
    with safe_open(file, "pt") as held:
        told = held.metadata()
    return float(told["nearest"]), float(told["reconstructed"])


def qfunc_leaves(value: Any) -> list[Tensor]:
    """The tensors of an output."""
    return [value] if isinstance(value, Tensor) else list(value)


def test_the_same_arguments_give_the_same_bits_and_another_seed_others() -> None:
    batches = [images()]
    before = calibrated(Resnet(), batches)
    method = METHODS["qdrop"]
    runs = [qfunc.reconstruct(m, batches)(before).state_dict() for m in (method, method, evolve(method, seed=1))]
    assert all(torch.equal(runs[0][k], v) for k, v in runs[1].items())
    assert any(not torch.equal(runs[0][k], v) for k, v in runs[2].items())


def test_the_generator_of_torch_is_left_alone() -> None:
    batches = [images()]
    before = calibrated(Chain(), batches)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    qfunc.reconstruct(qfunc.qdrop(iterations=2), batches)(before)
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_moves_where_nothing_is_gained() -> None:
    """Weights that are codes already: rounding to nearest changes nothing, so that nothing can be better."""
    model, batches = nn.Sequential(nn.Linear(3, 4, bias=False)), [torch.randn(8, 3)]
    before = calibrated(model, batches)
    held = next(s.module for s in quantizer_nodes(before) if s.module.site.slot == "weight")
    with torch.no_grad():
        weight = before.get_parameter("0.weight")
        weight.copy_(held(weight))
    after = qfunc.reconstruct(METHODS["adaround"], batches)(before)
    assert torch.equal(codes(after)["0.weight"], codes(before)["0.weight"])
    assert torch.equal(after(batches[0]), before(batches[0]))


def test_a_loss_that_would_rise_leaves_rounding_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimisation that rounds every weight up, and multiplies every learned scale."""
    batches = [images()]
    before = calibrated(Chain(2), batches)
    state, learned = {k: v.clone() for k, v in before.state_dict().items()}, list[str]()
    shapes = {s.path: s.module.like for s in quantizer_nodes(before)}

    def worst(step: Any, rounded: list[str], learning: list[str], *_: Any) -> part.Optimized:
        learned.extend(f"{path}.scale" for path in learning)
        qparams = {path: step.simulated.get_submodule(path).qparams() for path in learning}
        larger = {path: q._replace(scale=1000 * q.scale) for path, q in qparams.items()}
        return part.Optimized({path: torch.ones(shapes[path], dtype=torch.bool) for path in rounded}, larger)

    monkeypatch.setattr(part, "optimise", worst)
    after = qfunc.reconstruct(qfunc.qdrop(), batches)(before)
    nearest, found = codes(before), codes(after)
    assert all(torch.equal(found[k], nearest[k]) for k in nearest)
    assert len(learned) == 2
    assert all(torch.equal(after.state_dict()[name], state[name]) for name in learned)


@pytest.mark.parametrize("done", [2])
def test_what_is_resumed_equals_what_was_never_interrupted(done: int, tmp_path: Path) -> None:
    batches = list(images().split(5))
    before = calibrated(Resnet(), batches)
    method = METHODS["qdrop"]
    whole = qfunc.reconstruct(method, batches, resume=tmp_path)(before)
    files = sorted(tmp_path.glob("unit-*"))
    assert len(files) == 4
    kept = {f: f.stat().st_mtime_ns for f in files[:done]}
    for file in files[done:]:
        file.unlink()
    again = qfunc.reconstruct(method, batches, resume=tmp_path)(before)
    assert all(torch.equal(whole.state_dict()[k], v) for k, v in again.state_dict().items())
    assert {f: f.stat().st_mtime_ns for f in files[:done]} == kept


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_saved_loaded_and_deployed_as_other_models_are(bits: int, tmp_path: Path) -> None:
    """At 8 bits the target as it is, which conftest narrows where kernels saturate; narrower codes lie in bytes."""
    model, batches = Resnet(), list(images().split(6))
    target = edit.weights(bits=bits)(targets.onnxruntime) if bits < 8 else targets.onnxruntime
    before = calibrated(model, batches, target)
    after = qfunc.reconstruct(METHODS["qdrop"], batches)(before)
    assert any(not torch.equal(v, codes(before)[k]) for k, v in codes(after).items())
    qfunc.save(tmp_path)(after)
    assert torch.equal(qfunc.load(tmp_path)(model)(batches[0]), after(batches[0]))
    emulated = qfunc.emulate(target)(after)(batches[0])
    file = qfunc.deploy(target)(after).files["model.onnx"]
    held = [t for t in onnx.load_from_string(file).graph.initializer if t.name.endswith("weight.codes")]
    assert len(held) == 7
    assert {t.data_type for t in held} == {onnx.TensorProto.INT8}
    (run,) = OnnxRuntimeRunner().session(file).run([batches[0]])
    assert torch.equal(torch.as_tensor(run), emulated)
    report = qfunc.verify(target)(after, batches)
    assert report.agreement.startswith("bit-exact")
    # Integer kernels computed it: the codes of every unit that is predicted to be one were compared.
    integer = {u.tensor for u in Partition(QuantizedModel(after), target).units if u.integer}
    assert len(integer) >= 7
    assert {r.name for r in report.of("codes")} >= integer


def test_each_op_runs_once_in_float_and_twice_as_quantized_whatever_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, int] = {}
    old = part.run_step

    def counted(module: Any, names: Any, stream: str, *rest: Any) -> Any:
        for node in module.graph.nodes:
            if node.op == "call_function":
                calls[f"{stream} {node.name}"] = calls.get(f"{stream} {node.name}", 0) + 1
        return old(module, names, stream, *rest)

    monkeypatch.setattr(part, "run_step", counted)
    batches = list(images().split(4))
    for depth in (2, 4):
        calls.clear()
        qfunc.reconstruct(qfunc.adaround(iterations=1, rounding_lr=1e-6), batches)(calibrated(Chain(depth), batches))
        convs = {k: v for k, v in calls.items() if "body" in k}
        assert len(convs) == 2 * depth
        # Of three batches each; a third pass would be that of a unit whose loss rose.
        assert {v for k, v in convs.items() if k.startswith("float")} == {3}
        assert {v for k, v in convs.items() if k.startswith("quantized")} == {6}


def test_tensors_beyond_the_budget_go_to_files_and_change_no_bit() -> None:
    batches = list(images().split(5))
    before = calibrated(Resnet(), batches)
    one, other = (qfunc.reconstruct(METHODS["qdrop"], batches, memory=m)(before).state_dict() for m in (1 << 30, 1000))
    assert all(torch.equal(one[k], v) for k, v in other.items())


def test_only_what_is_selected_is_rounded_anew() -> None:
    batches = [images()]
    before = calibrated(Resnet(), batches)
    after = qfunc.reconstruct(METHODS["brecq"], batches, select=edit.name("first.*"))(before)
    made = {k for k, f in weight_functions(after).items() if isinstance(f, functions.AdaRound)}
    assert made == {"first.one.weight", "first.two.weight"}
    assert {k for k, v in codes(after).items() if not torch.equal(v, codes(before)[k])} == made


def test_training_goes_on_from_the_rounding_that_was_found() -> None:
    batches = [images()]
    after = qfunc.reconstruct(METHODS["adaround"], batches)(calibrated(Chain(), batches))
    start = copy.deepcopy(after)(batches[0])
    after.train()
    assert torch.equal(after(batches[0]), start)
    after(batches[0]).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in after.named_parameters() if n.endswith("conv.weight"))


def test_submodules_that_are_quantized_alone() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = Chain(), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    batches = list(images().split(5))
    model = Outer()
    before = qfunc.calibrate(batches)(qfunc.quantize(targets.academic(3, 4), submodules="body")(model))
    after = qfunc.reconstruct(METHODS["adaround"], batches)(before)
    alone = qfunc.calibrate(batches)(qfunc.quantize(targets.academic(3, 4))(model.body))
    wanted = qfunc.reconstruct(METHODS["adaround"], batches)(alone)
    assert type(after) is Outer
    assert torch.equal(after.body(batches[0]), wanted(batches[0]))


def test_learned_scales_are_those_of_the_result_and_fixed_ones_stay() -> None:
    batches = [images()]
    before = calibrated(Resnet(), batches)
    scales = {s.path: s.module.qparams().scale for s in quantizer_nodes(before) if not s.module.site.constant}
    (entrance,) = (s.path for s in quantizer_nodes(before) if s.tensor == "x")
    for name, changed in (("adaround", False), ("brecq", True)):
        after = qfunc.reconstruct(METHODS[name], batches)(before)
        now = {s.path: s.module.qparams().scale for s in quantizer_nodes(after) if not s.module.site.constant}
        assert any(not torch.equal(v, scales[k]) for k, v in now.items()) is changed
        assert torch.equal(now[entrance], scales[entrance])


@pytest.mark.parametrize("loss", [SquaredError(), Fisher()])
def test_a_method_of_ones_own(loss: Any) -> None:
    batches = [images()]
    model = Resnet()
    before = calibrated(model, batches, targets.academic(2, 8))
    method = Method(unit=Blocks(), loss=loss, iterations=30, rounding_lr=0.3, batch=12)
    after = qfunc.reconstruct(method, batches)(before)
    wanted = model(batches[0])
    assert (after(batches[0]) - wanted).square().sum() < 0.8 * (before(batches[0]) - wanted).square().sum()
