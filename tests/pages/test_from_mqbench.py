"""docs/from_mqbench.md: every name of MQBench has a row, and every row's expression makes what its section says."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import estimators, functions, targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.ops.node import kind_of
from qfunc.reconstruction import Method, mqbench
from qfunc.specs import Algorithm, Target, edit

PAGE = (Path(__file__).parents[2] / "docs/from_mqbench.md").read_text()
OBSERVERS = ["MinMax", "EMAMinMax", "EMAQuantile", "ClipStd", "LSQ", "LSQPlus", "MSE", "EMAMSE", "MinMaxFloor", "PoTMode"]
QUANTIZERS = ["Fixed", "Learnable", "NNIE", "DoReFa", "PACT", "DSQ", "Tqt", "AdaRound", "QDrop"]
BACKENDS = [
    "Academic",
    "Academic_NLP",
    "Tensorrt",
    "Tensorrt_NLP",
    "QDQ",
    "OPENVINO",
    "SNPE",
    "PPLW8A16",
    "PPLCUDA",
    "STPU",
    "NNIE",
    "Vitis",
    "ONNX_QNN",
    "Tengine_u8",
]
SCHEME = ["bit", "symmetry", "per_channel", "pot_scale", "symmetric_range"]
KEYS = [
    *(
        f"extra_qconfig_dict.{role}_{key}"
        for role in "wa"
        for key in ("observer", "fakequantize", "fakeq_params", "observer_extra_args")
    ),
    *(f"extra_qconfig_dict.{role}_qscheme.{key}" for role in "wa" for key in SCHEME),
    "extra_qconfig_dict.*_qscheme, observer kwargs",
    *(f"extra_quantizer_dict.additional_{what}" for what in ("function_type", "module_type", "node_name")),
    *(f"extra_quantizer_dict.exclude_{what}" for what in ("function_type", "module_name", "node_name")),
    "extra_quantizer_dict.academic_mode",
    *(f"extra_fuse_dict.additional_{what}" for what in ("fuser_method_mapping", "fusion_pattern", "qat_module_mapping")),
    *["preserve_attr", "concrete_args", "leaf_module", "custom_tracer", "is_qat", "freeze_bn"],
]
SWITCHES = [
    "enable_calibration",
    "enable_calibration_woquantization, act_fake_quant",
    "enable_calibration_woquantization, weight_fake_quant",
    "enable_calibration_quantization",
    "enable_quantization, weight_cali_on or act_cali_on",
    "enable_quantization",
    "disable_all",
    "disable_all, for a part of the model",
    "enable_all",
]
MODULES = [
    *(f"nniqat.Conv{bn}{n}d" for bn in ("Bn", "BnReLU", "ReLU") for n in (1, 2, 3)),
    *(f"nniqat.{kind}" for kind in ("LinearReLU", "LinearBn1d", "ConvFreezebn2d", "ConvFreezebnReLU2d")),
    *(f"nniqat.ConvTranspose{rest}2d" for rest in ("Bn", "BnReLU", "ReLU", "Freezebn", "FreezebnReLU")),
    *(f"nnqat.{kind}" for kind in ("Conv2d", "Linear", "ConvTranspose2d", "Embedding")),
    *["nni.BNReLU2d", "nni.BNReLU3d", "FrozenBatchNorm2d", "convert_merge_bn", "replace_syncbn.py"],
    "weight_equalization.py",
    *["qnnqat.Conv2d", "qnnqat.Linear", "qnniqat.ConvReLU2d", "qnniqat.ConvBn2d", "qnniqat.ConvBnReLU2d"],
]
FILES = [
    *(f"{b}: {{name}}_clip_ranges.json" for b in ("Tensorrt", "SNPE", "PPLW8A16", "PPLCUDA", "Vitis")),
    *(f"{b}: {{name}}_deploy_model.onnx" for b in ("Tensorrt", "SNPE", "PPLW8A16", "PPLCUDA", "Vitis", "NNIE", "OPENVINO")),
    *(f"{b}: {{name}}.onnx" for b in ("Academic", "Academic_NLP", "Tensorrt_NLP", "QDQ", "ONNX_QNN", "Vitis")),
    "Tensorrt: onnx_quantized_model.onnx (deploy_to_qlinear)",
    "NNIE: {name}_gfpq_param_dict.json",
    "Tengine_u8: {name}_for_tengine.onnx",
    "Tengine_u8: {name}_for_tengine.scale",
    "STPU: {name}_for_stpu.onnx",
    "STPU: {name}_stpu_minmax.json",
    "input_names, output_names, dynamic_axes",
]
RECONSTRUCTION = [
    "ptq_reconstruction", "pattern", "scale_lr", "warm_up", "weight", "max_count", "b_range", "keep_gpu", "round_mode", "prob",
    "exclude_node_prefix",
]  # fmt: skip
SECTIONS = {
    "Observers": [f"{name}Observer" for name in OBSERVERS],
    "Fake quantizers": [f"{name}FakeQuantize" for name in QUANTIZERS],
    "Back-ends": [f"BackendType.{name}" for name in BACKENDS],
    "Keys of `prepare_custom_config_dict`, and the other arguments": KEYS,
    "Switches of state": SWITCHES,
    "Fused and QAT modules": MODULES,
    "Reports": [*(f"utils/profiling.py, {way}" for way in ("interaction", "standalone")), "mix_precision"],
    "Reconstruction": RECONSTRUCTION,
    "Deployed files": FILES,
}
# No row may name the algorithms of this target, so that each expression has something to change.
BASE = evolve(
    targets.tensorrt,
    weight=Algorithm(estimators.Ema(decay=0.5), functions.Stochastic()),
    activation=Algorithm(estimators.Ema(decay=0.5), functions.Stochastic()),
    legality=(),
)


def rows(section: str) -> list[tuple[str, str]]:
    body = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("| `")]
    found = [re.fullmatch(r"\| `([^`]+)` \| `([^`]+)` \| (.*?) ?\|", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return [(match[1], match[2]) for match in found if match]


def cases(section: str) -> Any:
    return pytest.mark.parametrize(("name", "expression"), rows(section), ids=lambda text: text[:60])


@cache
def names() -> dict[str, Any]:
    """What the page's own block defines."""
    found: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], found)  # type: ignore[index]
    found["files"] = cache(found["files"])
    return found


def value(expression: str) -> Any:
    return eval(expression, dict(names()))


def sites(target: Target) -> dict[str, tuple[Any, ...]]:
    """Which tensors of the page's model are quantized, and how."""
    made = qfunc.quantize(target)(names()["model"])
    found = [s.module.site for s in quantizer_nodes(made)]
    return {s.name: (s.slot, s.value, s.scheme, s.estimator, s.function) for s in found}


def edited(expression: str, base: Target = BASE) -> Target:
    made = value(expression)
    return made if isinstance(made, Target) else edit.pipe(base, made)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_name_has_one_row(section: str) -> None:
    assert sorted(name for name, _ in rows(section)) == sorted(SECTIONS[section])


def test_there_are_no_other_tables() -> None:
    assert sum(line.startswith("| `") for line in PAGE.splitlines()) == sum(map(len, SECTIONS.values()))


@cases("Observers")
def test_observers(name: str, expression: str) -> None:
    target = edited(expression)
    ours = {s[3] for s in sites(target).values()}
    assert ours - {s[3] for s in sites(BASE).values()}
    done = qfunc.calibrate(names()["batches"], progress=False)(qfunc.quantize(target)(names()["model"]))
    assert all(bool(s.module.qparams().scale.isfinite().all()) for s in quantizer_nodes(done))
    assert done(names()["batches"][0]).isfinite().all()


@cases("Fake quantizers")
def test_fake_quantizers(name: str, expression: str) -> None:
    target = edited(expression)
    assert {type(s[4]).__name__ for s in sites(target).values()} & set(re.findall(r"function=(\w+)", expression))
    model, batches = names()["model"], names()["batches"]
    done = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model))
    output = done.train()(batches[0])
    assert output.shape == (4, 5)
    assert (output - model(batches[0])).abs().max() > 0
    output.square().sum().backward()
    gradient = dict(done.named_parameters())["0.weight"].grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@cases("Back-ends")
def test_back_ends(name: str, expression: str) -> None:
    target = value(expression)
    assert isinstance(target, Target)
    model, batches = names()["model"], names()["batches"]
    done = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model))
    with torch.no_grad():
        wanted, found = model(batches[0]), done(batches[0])
    # Whatever the chip, eight or four bits keep most of the signal.
    assert 0 < float((found - wanted).square().sum() / wanted.square().sum()) < 0.2


def test_back_ends_are_different_targets() -> None:
    found = [value(expression) for _, expression in rows("Back-ends")]
    assert len(set(found)) == len(BACKENDS)


@cases("Keys of `prepare_custom_config_dict`, and the other arguments")
def test_keys(name: str, expression: str) -> None:
    made = value(expression)
    if isinstance(made, nn.Module):
        graphs = [m for m in made.modules() if isinstance(m, fx.GraphModule)]
        assert len(graphs) == 1
        assert quantizer_nodes(graphs[0])
        if name == "preserve_attr":
            assert made.num_labels == 5
        if name == "concrete_args":
            assert [n.name for n in graphs[0].graph.nodes if n.op == "placeholder"] == ["x"]
        if name == "leaf_module":
            assert [type(m).__name__ for m in graphs[0].modules()].count("ReLU") == 1
        return
    target = edit.pipe(BASE, made)
    assert target != BASE
    if "fuse" in name:
        assert target.fusions[0] not in BASE.fusions
    else:
        assert sites(target) != sites(BASE)


@cases("Switches of state")
def test_switches(name: str, expression: str) -> None:
    made, model, x = value(expression), names()["model"], names()["batches"][0]
    if name == "disable_all":
        assert torch.equal(made, model(x))
    elif name == "enable_quantization":
        assert isinstance(made, Tensor)
        assert not torch.equal(made, model(x))
    elif name.startswith("disable_all"):
        assert 0 < len(quantizer_nodes(made)) < len(quantizer_nodes(names()["calibrated"]))
    else:
        assert isinstance(made, fx.GraphModule)
        held = [s.module.site.constant for s in quantizer_nodes(made) if s.module.ready]
        assert any(held)
        assert all(held) == ("quantize(" in expression)


@cases("Reconstruction")
def test_reconstruction(name: str, expression: str) -> None:
    made = value(expression)
    if isinstance(made, fx.GraphModule):
        rounded = {s.module.site.name for s in quantizer_nodes(made) if isinstance(s.module.site.function, functions.AdaRound)}
        assert rounded == {"4.weight", "6.weight", *(["0.weight"] if name != "exclude_node_prefix" else [])}
    elif isinstance(made, Method):
        assert made != mqbench()
    else:
        assert sites(edit.pipe(BASE, made)) != sites(BASE)


@cases("Reports")
def test_reports(name: str, expression: str) -> None:
    found = value(expression)
    if name == "mix_precision":
        assert found.cost <= found.limit
        assert found.target.overrides
        return
    assert found.batches == 2
    assert all(0.5 < r.cosine <= 1 for r in found.rows)
    assert len(found.rows) >= len(quantizer_nodes(names()["calibrated"]))


def given(model: nn.Module) -> Tensor:
    """An input of a model of the table."""
    first = next(m for m in model.modules() if not isinstance(m, nn.Sequential))
    kind = type(first).__name__
    if kind == "Embedding":
        return torch.arange(6).reshape(2, 3)
    channels = first.num_features if "Norm" in kind else first.weight.shape[0 if "Transpose" in kind else 1]
    rank = 0 if kind == "Linear" else int(kind[-2])
    return torch.randn(2, int(channels), *(6,) * rank)


@cases("Fused and QAT modules")
def test_modules(name: str, expression: str) -> None:
    made = value(expression)
    assert isinstance(made, fx.GraphModule)
    x = given(value(expression[expression.index("nn.Sequential") : -1]))
    kinds = [kind_of(n) for n in made.graph.nodes]
    assert "fake_quantize" in kinds
    assert name.startswith("nni.BNReLU") or "batch_norm" not in kinds
    done = qfunc.calibrate([x], progress=False)(made)
    assert done(x).isfinite().all()


@cases("Deployed files")
def test_files(name: str, expression: str) -> None:
    content = value(expression)
    assert isinstance(content, bytes)
    assert len(content) > 20
    if expression.rstrip('"]').endswith(".onnx"):
        model = onnx.load_from_string(content)
        onnx.checker.check_model(model)
        assert len(model.graph.node) >= 3
