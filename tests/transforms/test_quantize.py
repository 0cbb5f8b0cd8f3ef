"""quantize: sites where the target wants them, weights at once, both roads, dtypes and gradients kept."""

from __future__ import annotations

import copy

import pytest
import torch

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
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
    assert report.verdict.startswith("bit-exact")


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
    assert qfunc.verify(target)(made, [batch]).verdict.startswith("bit-exact")


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
