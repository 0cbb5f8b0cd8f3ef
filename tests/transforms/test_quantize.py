"""quantize: sites where the target wants them, weights at once, both roads, dtypes and gradients kept."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Selector, edit
from tests.transforms.checks import arguments, calibrated, equal, leaves, quantized
from tests.transforms.nets import NAMES, network


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_both_roads_simulate_the_model(name: str, export: bool) -> None:
    model, batch, made = calibrated(name, export=export)
    for want, got in zip(leaves(model(*arguments(batch))), leaves(made(*arguments(batch))), strict=True):
        assert got.dtype == want.dtype
        error = (want - got).abs().max()
        assert 0 < error < 0.1 * (want.max() - want.min())


def test_the_roads_agree_bit_for_bit() -> None:
    _, batch, traced = calibrated("residual")
    _, _, exported = calibrated("residual", export=True)
    assert equal(traced(batch), exported(batch))


def test_weights_are_quantized_at_once() -> None:
    _, _, made = quantized("residual")
    for seat in quantizer_nodes(made):
        assert seat.module.ready == (seat.module.site.slot == "weight")
    weight = made.get_submodule("quantizers.conv1.weight")
    folded = made.get_parameter("conv1.weight").detach()
    codes = weight(folded) / weight.scale
    assert weight.scale.shape == (8, 1, 1, 1)
    assert codes.abs().amax((1, 2, 3)).round().tolist() == [weight.site.scheme.format.qmax] * 8


def test_outputs_keep_their_structure() -> None:
    _, batch, made = calibrated("dict_output")
    assert list(made(batch)) == ["features", "logits"]
    _, batch, made = calibrated("two_inputs")
    assert isinstance(made(*batch), tuple)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_simulated_in_their_dtype(dtype: torch.dtype) -> None:
    model, batch = network("residual")
    model, batch = model.to(dtype), batch.to(dtype)
    made = qfunc.calibrate([batch])(qfunc.quantize(targets.onnxruntime)(model))
    assert made(batch).dtype == dtype
    assert (made(batch) - model(batch)).abs().max() < 0.1
    assert all(s.module.scale.dtype == torch.float32 for s in quantizer_nodes(made))


def test_a_cast_of_the_quantized_model_leaves_its_qparams() -> None:
    _, batch, made = calibrated("residual")
    scales = {s.path: s.module.scale.clone() for s in quantizer_nodes(made)}
    for dtype in (torch.bfloat16, torch.float64):
        cast = copy.deepcopy(made).to(dtype)
        assert cast(batch.to(dtype)).dtype == dtype
        assert all(torch.equal(s.module.scale, scales[s.path]) for s in quantizer_nodes(cast))
        assert all(s.module.scale.dtype == torch.float32 for s in quantizer_nodes(cast))


def test_requires_grad_is_kept() -> None:
    model, _ = network("residual")
    model.requires_grad_(False)
    model.fc.weight.requires_grad_(True)
    made = qfunc.quantize(targets.onnxruntime)(model)
    assert {n for n, p in made.named_parameters() if p.requires_grad} == {"fc.weight"}


def test_ties_between_parameters_are_kept() -> None:
    model, _, made = quantized("shared_weight")
    assert made.get_parameter("first.weight") is made.get_parameter("second.weight")
    assert made.get_parameter("first.weight") is not model.first.weight


def test_a_shared_conv_has_one_weight_site_and_a_bias_site_for_each_call() -> None:
    _, _, made = calibrated("shared_conv")
    slots = [s.module.site.slot for s in quantizer_nodes(made)]
    assert (slots.count("weight"), slots.count("bias")) == (1, 2)


def test_skip_leaves_an_op_in_float() -> None:
    model, batch = network("residual")
    target = edit.pipe(targets.onnxruntime, edit.skip(edit.name("fc")))
    made = qfunc.calibrate([batch])(qfunc.quantize(target)(model))
    assert not [s.module.site.name for s in quantizer_nodes(made) if s.module.site.op == "fc"]
    report = qfunc.verify(target)(made, [batch])
    assert [name for name, _ in report.float_units] == ["fc"]
    assert report.agreement.startswith("bit-exact")


def test_override_narrows_the_weights_it_names() -> None:
    model, batch = network("residual")
    target = edit.pipe(targets.onnxruntime, edit.override(edit.name("conv2"), weights={"bits": 4}))
    made = qfunc.calibrate([batch])(qfunc.quantize(target)(model))
    widths = {
        s.module.site.name: s.module.site.scheme.format.qmax for s in quantizer_nodes(made) if s.module.site.slot == "weight"
    }
    full = next(
        s for s in quantizer_nodes(quantized("residual")[2]) if s.module.site.slot == "weight"
    ).module.site.scheme.format.qmax
    assert widths == {"conv1.weight": full, "conv2.weight": 7, "fc.weight": full}
    assert qfunc.verify(target)(made, [batch]).agreement.startswith("bit-exact")


def test_training_works_under_the_callers_inference_mode() -> None:
    model, batch = network("residual")
    with torch.inference_mode():
        made = qfunc.calibrate([batch])(qfunc.quantize(targets.onnxruntime)(model))
    made.train()(batch).sum().backward()
    assert all(p.grad is not None for p in made.parameters())
    assert not any(t.is_inference() for t in made.state_dict().values())


def test_an_optional_number_is_no_activation() -> None:
    _, batch, made = calibrated("two_inputs")
    assert "gain" not in {s.module.site.name for s in quantizer_nodes(made)}
    assert torch.equal(made(*batch, gain=0.0)[1], torch.zeros(5, 4))
    assert made(*batch)[1].any()


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x + x.tanh()) + x


def test_ops_are_selected_by_the_names_of_their_nodes() -> None:
    """The names are those in print(captured.graph); a name of a node is no path, and a path no name of a node."""
    model = Inner()
    ops = {n.name: n.target for n in qfunc.capture()(model).graph.nodes if n.op == "call_function"}
    assert list(ops) == ["tanh", "add", "block_0", "block_1", "add_1"]
    everything = ["x", "tanh", "add", "block.0.weight", "block.0.bias", "block.0", "block.1", "add_1"]

    def sites(selector: Selector) -> list[str]:
        made = qfunc.quantize(edit.skip(selector)(targets.onnxruntime))(model)
        return [s.module.site.name for s in quantizer_nodes(made)]

    assert sites(edit.node("add_1")) == everything[:-1]
    assert sites(edit.node("block_0")) == sites(edit.name("block.0")) == [n for n in everything if "block.0." not in n]
    assert sites(edit.node("block_*", "add*") | edit.op("tanh")) == []
    for wrong, similar in ((edit.node("block.0"), "block_0, block_1"), (edit.name("block_0"), "block.0, block.1")):
        with pytest.raises(SpecError) as caught:
            sites(wrong)
        assert str(caught.value) == (
            f"target 'onnxruntime', rules: found {wrong!r}, which matches nothing in the model, wanted a selector that "
            f"matches an op or a tensor. Use one of: {similar}."
        )


def test_batch_norms_in_training_are_folded_with_a_warning() -> None:
    layers = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1)
    model, quantize = nn.Sequential(*layers), qfunc.quantize(targets.onnxruntime)
    with pytest.warns(UserWarning, match="no longer train") as caught:
        folded = quantize(model)
    assert [str(w.message) for w in caught] == [
        "quantize: found BatchNorms in training mode ('1' and 1 more), which are folded and no longer train, wanted "
        "BatchNorms in evaluation mode. Call model.eval() first, or train them with batch_norm=qfunc.TrainBatchNorm()."
    ]
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"training mode \('0.1'\), which"):
        qfunc.quantize(targets.onnxruntime, submodules="0")(nn.Sequential(model[:2], model[2:]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qfunc.quantize(targets.onnxruntime, batch_norm=qfunc.TrainBatchNorm())(model)
        evaluated = quantize(model.eval())
        assert equal(list(evaluated.parameters()), list(folded.parameters()))
        without_file = qfunc.quantize(evolve(targets.onnxruntime, lowering=None))
        without_file(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 3)))
