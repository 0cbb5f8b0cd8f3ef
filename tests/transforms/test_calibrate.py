"""calibrate: every structure of batch, one lazy pass, bounded memory, several models at once."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError
from qfunc.estimators import Ema, MinMax
from qfunc.execution.observers import Observer, statistics
from qfunc.graph.float_network import float_network
from qfunc.graph.record import record_of
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Op, Tie, edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, quantized, same_state, state
from tests.transforms.nets import DictInput, network

TARGET = ONNXRUNTIME


def scale(model: nn.Module, site: str) -> float:
    return float(model.get_submodule(f"quantizers.{site}.output").scale)


def test_tensor_tuple_list_and_dict_batches_are_one() -> None:
    _, (a, b), made = quantized("two_inputs")
    want = state(qfunc.calibrate([(a, b)])(made))
    for batch in ([a, b], {"a": a, "b": b}, {"b": b, "a": a}):
        assert same_state(state(qfunc.calibrate([batch])(made)), want)
    _, x, made = quantized("residual")
    assert same_state(state(qfunc.calibrate([x])(made)), state(qfunc.calibrate([{"x": x}])(made)))


@pytest.mark.parametrize("export", [False, True])
def test_a_dict_may_be_the_one_input(export: bool) -> None:
    torch.manual_seed(0)
    model, batch = DictInput().eval(), {"a": torch.randn(2, 4), "b": torch.randn(2, 3)}
    made = qfunc.quantize(TARGET, (batch,) if export else None)(model)
    states = [state(qfunc.calibrate([b])(made)) for b in (batch, (batch,), {"b": batch["b"], "a": batch["a"]})]
    assert all(same_state(s, states[0]) for s in states)
    done = qfunc.calibrate([batch])(made)
    assert (done(batch) - model(batch)).abs().max() < 0.05
    if export:
        assert qfunc.verify(TARGET)(done, [batch]).agreement.startswith("bit-exact")


def test_a_longer_tuple_keeps_the_leading_entries_and_says_so_once() -> None:
    _, x, made = quantized("residual")
    labels = torch.zeros(2)
    with pytest.warns(UserWarning, match="extra elements are ignored") as caught:
        done = qfunc.calibrate([(x, labels), (x, labels), [x, labels]])(made)
    text = "calibrate: batches of 2 elements for 1 required inputs; extra elements are ignored."
    assert [str(w.message) for w in caught] == [text]
    assert caught[0].filename == __file__
    assert same_state(state(done), state(qfunc.calibrate([x, x, x])(made)))


@pytest.mark.parametrize("step", ["compare", "sensitivity", "correct_bias", "verify"])
def test_warnings_about_batches_name_the_line_of_the_user(step: str) -> None:
    _, x, made = quantized("residual")
    done, batches = qfunc.calibrate([x], progress=False)(made), [(x, torch.zeros(2))]
    with pytest.warns(UserWarning, match="extra elements are ignored") as caught:
        qfunc.verify(TARGET)(done, batches) if step == "verify" else getattr(qfunc, step)(batches)(done)
    assert {w.filename for w in caught} == {__file__}


def test_optional_inputs_are_not_required() -> None:
    _, (a, b), made = quantized("two_inputs")
    with pytest.warns(UserWarning, match="batches of 3 elements for 2 required inputs"):
        qfunc.calibrate([(a, b, 2.0)])(made)


class _Watched:
    """Batches made one at a time, each remembered weakly."""

    def __init__(self, shape: tuple[int, ...], count: int) -> None:
        self.shape, self.count, self.alive, self.most, self.made = shape, count, [], 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.count):
            self.made += 1
            batch = torch.randn(self.shape)
            self.alive.append(weakref.ref(batch))
            self.most = max(self.most, sum(r() is not None for r in self.alive))
            yield batch


def test_a_generator_is_read_once_lazily() -> None:
    _, _, made = quantized("residual")
    watched = _Watched((1, 3, 8, 8), 20)
    batches = iter(watched)
    step = qfunc.calibrate(batches)
    assert watched.made == 0
    step(made)
    assert watched.made == 20
    assert watched.most <= 3  # memory does not grow with the number of batches
    with pytest.raises(CalibrationError, match="no batches"):
        step(made)


def test_no_activation_outlives_its_batch() -> None:
    # The estimators' states must not grow: the sum of their sizes is the same after 2 and after 12 batches.
    _, _, made = quantized("branches", target=targets.tensorrt)
    sizes = []
    for count in (2, 12):
        observer = Observer(float_network(made), (0,), statistics([quantizer_nodes(made)]))
        for number in range(count):
            observer.read((torch.randn(1, 3, 8, 8),), number)
        assert not observer.pending
        sizes.append(sum(t.numel() for s in observer.states for t in torch.utils._pytree.tree_leaves(s)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("progress", [False, True])
def test_the_progress_bar_needs_a_terminal(
    terminal: bool, progress: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, x, made = quantized("residual")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    qfunc.calibrate([x], progress=progress)(made)
    written = capsys.readouterr()
    assert written.out == ""
    assert bool("calibrate" in written.err) == (terminal and progress)


@pytest.mark.parametrize("name", ["residual", "branches", "shared_conv"])
def test_one_pass_for_several_targets_equals_each_alone(name: str) -> None:
    model, x = network(name)
    batches = [x, 2 * x, x - 1]
    narrow = edit.pipe(TARGET, edit.activations(bits=4))  # the same estimator as TARGET's, another scheme
    several = tuple(qfunc.quantize(t)(model) for t in (TARGET, targets.tensorrt, narrow))
    together = qfunc.calibrate(iter(batches))(several)
    assert isinstance(together, tuple)
    for one, done in zip(several, together, strict=True):
        alone = qfunc.calibrate(batches)(one)
        assert same_state(state(done), state(alone))
        assert record_of(done) == record_of(alone)


def test_one_pass_runs_the_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network("branches")
    both = tuple(qfunc.quantize(t)(model) for t in (TARGET, targets.tensorrt))
    calls = 0
    relu = F.relu

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return relu(*args, **kwargs)

    for made in both:
        for node in made.graph.nodes:
            if node.target is relu:
                node.target = counted
        made.recompile()
    assert any(n.target is counted for n in both[0].graph.nodes)
    qfunc.calibrate([x, x])(both)
    assert calls == 2


def test_minmax_is_the_range_over_all_batches_and_ema_their_average() -> None:
    net = nn.Linear(2, 2)
    batches = [torch.tensor([[0.0, 2.55]]), torch.tensor([[0.0, 5.1]])]
    done = qfunc.calibrate(batches)(qfunc.quantize(TARGET)(net))
    assert scale(done, "input") == pytest.approx(5.1 / 255)
    target = edit.pipe(TARGET, edit.activations(estimator=Ema(MinMax(), decay=0.5)))
    done = qfunc.calibrate(batches)(qfunc.quantize(target)(net))
    assert scale(done, "input") == pytest.approx((2.55 + 5.1) / 2 / 255)


def test_a_union_tie_is_one_tensor_to_its_estimator() -> None:
    # Per batch the larger of both, then the average: not the larger of two averages.
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.cat([a, b])

    batches = [(torch.tensor([[1.0]]), torch.tensor([[9.0]])), (torch.tensor([[7.0]]), torch.tensor([[3.0]]))]
    target = edit.pipe(targets.tensorrt, edit.activations(estimator=Ema(MinMax(), decay=0.5)))
    done = qfunc.calibrate(batches)(qfunc.quantize(target)(Two()))
    assert scale(done, "a") == scale(done, "b") == pytest.approx((9 + 7) / 2 / 127)


@pytest.mark.parametrize(("leader", "want"), [("max_scale", 8.0), ("input", 2.0), ("output", 8.0)])
def test_other_leaders_of_a_tie(leader: str, want: float) -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return F.avg_pool1d(a, 1) + 6.0

    rules = (evolve(targets.tensorrt.rules[1], output=targets.tensorrt.rules[1].input),)
    target = evolve(targets.tensorrt, rules=rules, ties=(Tie(Op("add"), ("input", "output"), leader),))
    done = qfunc.calibrate([torch.tensor([[[2.0]]])])(qfunc.quantize(target)(Sum()))
    scales = {s.module.site.name: float(s.module.scale) for s in quantizer_nodes(done)}
    assert len(set(list(scales.values())[-2:])) == 1
    assert list(scales.values())[-1] == pytest.approx(want / 127)


def test_calibrating_again_replaces_what_was_found() -> None:
    _, x, made = quantized("residual")
    once = qfunc.calibrate([3 * x])(made)
    assert same_state(state(qfunc.calibrate([3 * x])(qfunc.calibrate([x])(made))), state(once))
    assert record_of(once).stage == "calibrated"


@pytest.mark.parametrize("target", [targets.onnxruntime, targets.litert, targets.tosa, targets.tengine_u8], ids=str)
def test_no_calibration_leaves_a_mark_on_the_next(target: Any) -> None:
    """Inputs 1e-8 times as large make biases overflow, which widens the scales of weights; the next calibration undoes it."""
    torch.manual_seed(3)
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval(), torch.randn(4, 3, 8, 8)
    made = qfunc.quantize(target)(net)
    once, wide = (qfunc.calibrate([f * x])(made) for f in (1.0, 1e-8))
    loaded = qfunc.quantize(target)(net)
    loaded.load_state_dict(wide.state_dict())

    def scales(model: Any) -> Any:
        found = {s.module.site.name: s.module.qparams().scale.flatten() for s in quantizer_nodes(model)}
        return found["0.weight"]

    assert (scales(wide) > scales(once)).any()
    with torch.no_grad():
        trained = copy.deepcopy(wide)
        trained.get_submodule("quantizers.0.weight").scale.mul_(1.5)  # as training may; this one stays
    assert (scales(qfunc.calibrate([x])(trained)) > scales(once)).any()
    for again in (wide, loaded, qfunc.calibrate([1e-6 * x])(wide), pickle.loads(pickle.dumps(wide))):
        assert same_state(state(qfunc.calibrate([x])(again)), state(once))


def test_all_zero_activations() -> None:
    _, x, made = quantized("residual")
    with pytest.warns(UserWarning, match="^calibrate, site 'x': found one code for all .* values, which are 0, "):
        done = qfunc.calibrate([x * 0])(made)
    assert scale(done, "x") == 1.0
    assert done(x * 0).isfinite().all()
    assert qfunc.verify(TARGET)(done, [x * 0]).agreement.startswith("bit-exact")


def test_an_empty_batch_changes_nothing() -> None:
    _, x, made = quantized("residual")
    want = qfunc.calibrate([x])(made)
    for batches in ([x[:0], x], [x, x[:0]]):
        done = qfunc.calibrate(batches)(made)
        assert same_state(state(done), state(want))
        assert record_of(done).inputs == record_of(want).inputs


def test_a_channel_without_weights_does_not_overflow_its_bias() -> None:
    # 1.0 / (s_x * 1e-14) has no int32 code: the channel's weight scale is widened until it has.
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        net[0].weight[0] *= 1e-12
        net[0].bias[0] = 1.0
    made = qfunc.quantize(TARGET)(net)
    done = qfunc.calibrate([x])(made)
    before, after = (m.get_submodule("quantizers.0.weight").scale.flatten() for m in (made, done))
    assert after[0] > before[0]
    assert torch.equal(after[1:], before[1:])
    assert (done(x)[:, 0] - 1).abs().max() < 0.01
    assert qfunc.verify(TARGET)(done, [x]).agreement.startswith("bit-exact")


def test_a_shared_weight_is_widened_for_both_biases() -> None:
    _, x, made = quantized("shared_weight")
    with torch.no_grad():
        made.get_parameter("first.weight").mul_(1.0)
        made.get_parameter("second.bias").fill_(1e6)
    with pytest.warns(UserWarning, match=r"^calibrate, site 'second': found one code for all 20 values, \[0, 1e\+06\], wanted"):
        done = qfunc.calibrate([x])(made)
    by_name = {s.module.site.name: s.module for s in quantizer_nodes(done)}
    weight = next(m for n, m in by_name.items() if n.endswith("weight")).scale.flatten()
    inputs = {"first.bias": "x", "second.bias": "relu"}
    for bias, source in inputs.items():
        assert torch.equal(by_name[bias].scale, by_name[source].scale * weight)
        assert (done.get_parameter(bias) / by_name[bias].scale).abs().max() <= 2**30 * 1.001


def test_the_estimators_see_no_quantized_value() -> None:
    # One float pass: what a narrow first layer destroys is still seen by the second.
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(16, 4)
    scales = []
    for target in (TARGET, edit.pipe(TARGET, edit.override(edit.name("0"), weights={"bits": 2}))):
        done = qfunc.calibrate([x])(qfunc.quantize(target)(net))
        scales.append(scale(done, "1"))
    assert scales[0] == scales[1]


def test_no_warning_and_no_random_number_is_spent() -> None:
    _, x, made = quantized("tokens")
    draw = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = qfunc.calibrate([x])(made)
    assert torch.equal(torch.get_rng_state(), draw)
    assert done(*arguments(x)).shape == (2, 6, 3)


def test_the_shapes_of_the_inputs_are_recorded() -> None:
    _, _, done = calibrated("two_inputs")
    assert [(i.shape, i.dtype) for i in record_of(done).inputs] == [((5, 4), "torch.float32"), ((5, 3), "torch.float32")]
