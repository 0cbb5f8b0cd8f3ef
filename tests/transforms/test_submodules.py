"""quantize(submodules=): the outer module stays what it is, its submodules are quantized models, every step takes the whole."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc.errors import QfuncError
from qfunc.graph.record import TensorInfo, record_of
from qfunc.graph.submodules import quantized_submodules
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import same_state, state

TARGET = edit.weights(bits=7)(ONNXRUNTIME)  # of 7 bits, so that any x86-64 computes the same


class Body(nn.Module):
    """conv-bn-relu with an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.width = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), 6

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Head(nn.Module):
    """A linear layer that is called by name, leaves an option out, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor, gain: float | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.fc(x) if mask is None else self.fc(x) * mask}


class Detector(nn.Module):
    """What no road captures: it keeps the rows that its own scores select, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head, self.last, self.calls = Body(), Head(), nn.Linear(5, 4), 0
        self.stages = [self.backbone]

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        self.calls += 1
        features = self.stages[0](images).mean((2, 3)) * self.backbone.width
        logits = self.head(x=features)["logits"]
        return [{"scores": self.last(row)} for row in logits[logits.max(1).values > 0]]


class Writer(nn.Module):
    """A loop that generates: two layers, the first of which runs twice, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 6)])
        self.layers.append(self.layers[0])
        self.head, self.pool = nn.Linear(6, 11, bias=False), nn.MaxPool1d(2)
        self.head.weight = self.table.weight
        self.spare = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))

    def forward(self, ids: Tensor) -> Tensor:
        while ids.shape[1] < 6 and not bool((ids[:, -1] == 3).any()):
            hidden = self.table(ids)
            for layer in self.layers:
                hidden = layer(hidden)
            ids = torch.cat([ids, self.head(hidden[:, -1]).argmax(-1, keepdim=True)], 1)
        return ids


def detector() -> tuple[Detector, list[Tensor]]:
    torch.manual_seed(0)
    return Detector().eval(), [torch.randn(4, 3, 8, 8) for _ in range(2)]


def writer() -> tuple[Writer, list[Tensor]]:
    torch.manual_seed(0)
    return Writer().eval(), [torch.tensor([[1, 2], [4, 5]])]


def calibrated(**how: Any) -> tuple[Detector, list[Tensor]]:
    model, batches = detector()
    return qfunc.calibrate(batches)(qfunc.quantize(TARGET, submodules=("backbone", "head"), **how)(model)), batches


@pytest.mark.parametrize("export", [False, True])
def test_each_submodule_is_as_if_quantized_alone_on_what_it_is_given(export: bool) -> None:
    model, batches = detector()
    with torch.no_grad():
        features = [model.backbone(x) for x in batches]
    how = {"example_inputs": (batches[0],)} if export else {}
    done, _ = calibrated(**how)
    alone = {"example_inputs": (batches[0],)} if export else {}
    wanted = qfunc.calibrate(batches)(qfunc.quantize(TARGET, **alone)(model.backbone))
    assert same_state(state(done.backbone), state(wanted))
    assert record_of(done.backbone).inputs == (TensorInfo((4, 3, 8, 8), "torch.float32"),)
    rows = [x.mean((2, 3)) * 6 for x in features]
    low, high = min(float(x.min()) for x in rows), max(float(x.max()) for x in rows)
    scale = done.head.get_submodule("quantizers.x.output").scale
    assert float(scale) == pytest.approx((high - min(low, 0)) / 255, rel=1e-6)  # float32
    assert qfunc.verify(TARGET)(done, batches).agreement.startswith("bit-exact: 0 of ")


def test_the_outer_module_stays_what_it_is() -> None:
    model, batches = detector()
    model.train()
    seen: list[str] = []
    model.register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    model.backbone.register_forward_pre_hook(lambda module, _: seen.append(type(module).__name__))
    before = copy.deepcopy(model.state_dict())
    made = qfunc.quantize(TARGET, submodules=("backbone", "head"))(model)
    done = qfunc.calibrate(batches)(made)
    assert type(made) is type(done) is Detector
    assert done.stages[0] is done.backbone
    assert (done.training, done.backbone.training, done.backbone.width, done.calls) == (True, True, 6, 0)
    seen.clear()
    done.eval()(batches[0])
    assert seen == ["GraphModule", "Detector"]
    assert (model.calls, made.calls, done.calls, model.training) == (0, 0, 1, True)
    assert same_state(model.state_dict(), before)
    assert not {t.data_ptr() for t in model.state_dict().values()} & {t.data_ptr() for t in done.state_dict().values()}


@pytest.mark.parametrize("export", [False, True])
def test_what_a_hook_returns_counts_once(export: bool) -> None:
    model, batches = detector()
    model.head.fc.register_forward_hook(lambda *given: given[2] * 2)
    model.backbone.register_forward_hook(lambda *given: given[2] * 2)
    made = qfunc.quantize(TARGET, (batches[0],) if export else None, submodules=("backbone", "head"))(model)
    done = qfunc.calibrate(batches)(made)
    for a, b in zip(done(batches[0]), model(batches[0]), strict=True):
        assert torch.allclose(a["scores"], b["scores"], atol=0.3)  # some codes of 8 bits, doubled twice
    with pytest.raises(QfuncError, match="found forward hooks on the model itself"):
        qfunc.capture()(model.backbone)


def test_the_rest_runs_in_evaluation_mode() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.drop(x))

    model, x = Dropped().train(), torch.rand(64, 6)
    done = qfunc.calibrate([x])(qfunc.quantize(TARGET, submodules="head")(model))
    assert float(done.head.get_submodule("quantizers.input.output").scale) == pytest.approx(float(x.max()) / 255, rel=1e-6)
    assert done.drop.training


def test_training_checkpoints_and_pickles() -> None:
    model, batches = detector()
    done, _ = calibrated()
    fresh = qfunc.quantize(TARGET, submodules=("backbone", "head"))(model)
    fresh.load_state_dict(done.state_dict())
    file = io.BytesIO()
    torch.save(done, file)
    file.seek(0)
    for other in (fresh, copy.deepcopy(done), torch.load(file, weights_only=False)):
        a, b = other(batches[0]), done(batches[0])
        assert len(a) == len(b) > 0
        assert all(torch.equal(x["scores"], y["scores"]) for x, y in zip(a, b, strict=True))
    before = copy.deepcopy(state(done))
    done.train()
    torch.stack([row["scores"] for row in done(batches[0])]).sum().backward()
    torch.optim.SGD(done.parameters(), 0.1).step()
    moved = {k for k, v in state(done).items() if not torch.equal(v, before[k])}
    assert {"backbone.conv.weight", "head.fc.weight", "last.weight"} <= moved


def test_reports_name_tensors_by_their_paths_in_the_whole_model() -> None:
    done, batches = calibrated()
    names = ["backbone.x", "backbone.conv.weight", "backbone.conv.bias", "backbone.relu"]
    names += ["head.x", "head.fc.weight", "head.fc.bias", "head.fc"]
    found = qfunc.explain(done)
    assert [s.tensor for s in found.sites] == names
    assert ("last", "Linear") in [(f.op, f.kind) for f in found.floats]
    errors = qfunc.compare(batches)(done)
    assert [r.tensor for r in errors.rows if r.slot] == names
    assert [r.tensor for r in errors.outputs] == ["backbone.relu", "head.fc"]
    alone = qfunc.compare(batches)(done.backbone)
    assert [r.agreement for r in errors.rows[:4]] == [r.agreement for r in alone.rows]
    losses = qfunc.sensitivity(batches)(done)
    assert [r.site for r in losses.rows] == names
    assert losses.rows[:4] == qfunc.sensitivity(batches)(done.backbone).rows
    left = qfunc.bypass(edit.name("head.*"), roles=("weight",))(done)
    assert [s.tensor for s in qfunc.explain(left).sites] == [n for n in names if n not in names[5:7]]
    exact, simulated = qfunc.emulate(TARGET)(done), done(batches[0])
    assert type(exact) is Detector
    assert torch.allclose(exact(batches[0])[0]["scores"], simulated[0]["scores"], atol=0.05)  # a code of the head


def test_biases_are_corrected_where_the_submodules_run() -> None:
    done, batches = calibrated()
    fixed = qfunc.correct_bias(batches)(done)
    assert torch.equal(fixed.backbone.conv.bias, qfunc.correct_bias(batches)(done.backbone).conv.bias)
    assert not torch.equal(fixed.head.fc.bias, done.head.fc.bias)
    assert torch.equal(fixed.last.bias, done.last.bias)


def test_what_is_shared_stays_shared() -> None:
    model, batches = writer()
    made = qfunc.quantize(TARGET, submodules=("layers.*", "head"))(model)
    done = qfunc.calibrate(batches)(made)
    for one in (made, done, qfunc.correct_bias(batches)(done), qfunc.emulate(TARGET)(done)):
        assert list(quantized_submodules(made)) == ["layers.0", "layers.1", "head"]
        assert one.layers[0] is one.layers[2]
    for one in (made, done, qfunc.bypass(edit.name("layers.1*"))(done)):
        assert one.head.weight is one.table.weight
        assert one.head.weight is not model.head.weight
    report = qfunc.verify(TARGET)(done, batches)  # the length grows, as it did in calibration
    assert report.agreement.startswith("bit-exact")


def test_an_option_that_is_given_by_name() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Head()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(mask=(x > 0).float()[:, :5], x=x)["logits"]

    torch.manual_seed(0)
    model, x = Masked().eval(), torch.randn(4, 6)
    done = qfunc.calibrate([x])(qfunc.quantize(TARGET, (x,), submodules="head")(model))
    assert torch.allclose(done(x), model(x), atol=0.1)  # some steps of 8 bits
    with pytest.raises(
        QfuncError, match=r"^call of submodule 'head': found mask=a Tensor, wanted mask=None, to which capture fixed"
    ):
        qfunc.calibrate([x])(qfunc.quantize(TARGET, submodules="head")(model))


def test_selectors_speak_of_the_whole_model() -> None:
    model, _ = writer()
    mine = edit.override(edit.name("layers.1.*"), weights={"bits": 4})(TARGET)
    formats = {s.tensor: s.format for s in qfunc.explain(qfunc.quantize(mine, submodules=("layers.*", "head"))(model)).sites}
    assert formats["layers.1.weight"] == "Int(4, low=-7)"
    assert formats["layers.0.0.weight"] == formats["head.weight"] == "Int(7, low=-63)"


def test_a_layer_alone_is_known_by_its_path_and_its_classes(tmp_path: Any) -> None:
    model, batches = detector()
    mine = edit.override(edit.name("last"), weights={"bits": 5})(TARGET)
    done = qfunc.calibrate(batches)(qfunc.quantize(mine, submodules=("backbone", "last"))(model))
    found = {s.tensor: (s.op, s.format) for s in qfunc.explain(done).sites if not s.tensor.startswith("backbone")}
    assert found == {
        "last.input": ("last", "Int(8, signed=False)"),
        "last.weight": ("last", "Int(5, low=-15)"),
        "last.bias": ("last", "Int(32)"),
        "last": ("last", "Int(8, signed=False)"),
    }
    qfunc.save(tmp_path, qfunc.FloatWeights())(done.last)
    assert same_state(state(qfunc.load(tmp_path)(model.last)), state(done.last))
    both = edit.module("Detector") & edit.module("Linear")
    for last, text in ((edit.name("last"), "named 'last'"), (both, "in Detector and in Linear")):
        left = qfunc.explain(qfunc.quantize(edit.skip(last)(TARGET), submodules=("backbone", "last"))(model))
        assert {s.tensor.partition(".")[0] for s in left.sites} == {"backbone"}
        assert [f.why for f in left.floats if f.op == "last"] == [f"rule 0 keeps it in float: {text}"]
    with pytest.raises(QfuncError) as refused:
        qfunc.quantize(edit.skip(edit.module("Detektor"))(TARGET), submodules="last")(model)
    assert str(refused.value) == (
        "target 'onnxruntime', rules: found ModuleType('Detektor'), which matches nothing in the model, wanted a selector that "
        "matches an op or a tensor. Use one of: Detector."
    )


def test_one_submodule_is_saved_and_loaded(tmp_path: Any) -> None:
    mine = edit.override(edit.name("head.*"), weights={"bits": 4})(TARGET)
    model, batches = detector()
    done = qfunc.calibrate(batches)(qfunc.quantize(mine, submodules=("backbone", "head"))(model))
    qfunc.save(tmp_path, qfunc.FloatWeights())(done.backbone)
    assert same_state(state(qfunc.load(tmp_path)(model.backbone)), state(done.backbone))
    assert sorted(qfunc.deploy(mine)(done.backbone).files) == ["model.onnx", "qfunc.json"]


def test_a_tuple_of_models_is_calibrated_in_one_pass() -> None:
    model, batches = detector()
    chips = [edit.activations(bits=bits)(TARGET) for bits in (8, 6)]
    several = tuple(qfunc.quantize(chip, submodules=("backbone", "head"))(model) for chip in chips)
    seen: list[int] = []
    several[0].backbone.register_forward_hook(lambda *_: seen.append(1))
    done = qfunc.calibrate(iter(batches))(several)
    assert len(seen) == len(batches)
    for one, alone in zip(done, several, strict=True):
        assert same_state(state(one), state(qfunc.calibrate(batches)(alone)))
    model.last.bias.data += 1
    other = qfunc.quantize(chips[1], submodules=("backbone", "head"))(model)
    with pytest.raises(QfuncError, match="quantized models of different networks"):
        qfunc.calibrate(batches)((several[0], other))


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_wrappers_are_opened(wrap: Callable[[nn.Module], Any]) -> None:
    model, batches = detector()
    assert type(qfunc.quantize(TARGET, submodules="backbone")(wrap(model))) is Detector
    model.backbone = wrap(model.backbone)
    model.stages = [model.backbone]
    done = qfunc.calibrate(batches)(qfunc.quantize(TARGET, submodules="backbone")(model))
    assert len(done(batches[0])) > 0
    with pytest.raises(QfuncError, match=r"compare: found a .*, wanted the calibrated model inside"):
        qfunc.compare(batches)(wrap(done.backbone))
