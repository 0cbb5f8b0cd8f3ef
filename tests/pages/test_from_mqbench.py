"""docs/from_mqbench.md: every name of MQBench has a row, and every row's expression makes what its section says."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest
import torch
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import estimators, functions, targets
from qfunc.errors import SpecError
from qfunc.functions.lsq import Learned
from qfunc.functions.lsq_plus import Offset
from qfunc.graph.sites import quantizer_nodes
from qfunc.numerics.affine import quantize
from qfunc.ops.node import kind_of
from qfunc.reconstruction import Method, mqbench
from qfunc.specs import Algorithm, Int, Scheme, Target, ZeroPoint, edit

PAGE = (Path(__file__).parents[2] / "docs/from_mqbench.md").read_text()
NAMES = json.loads((Path(__file__).parents[1] / "golden/mqbench_names.json").read_text())["names"]
"""What MQBench's code calls by name, by kind: golden/mqbench_names.py found it there."""

KEYS = "Keys of `prepare_custom_config_dict`, and the other arguments"
SECTIONS = {
    "observers": "Observers",
    "fake quantizers": "Fake quantizers",
    "back-ends": "Back-ends",
    "extra_fuse_dict": KEYS,
    "extra_quantizer_dict": KEYS,
    "extra_qparams": KEYS,
    "prepare_custom_config_dict": KEYS,
    "schemes": KEYS,
    "switches": "Switches of state",
    "modules": "Fused and QAT modules",
    "reconstruction": "Reconstruction",
    "files": "Deployed files",
    "keywords of convert_deploy": "Deployed files",
    "arguments of convert_deploy": "",
    "arguments of prepare_by_platform": "",
}
"""The section that has a row for each name of a kind; "" for the whole page."""
TABLES = [*dict.fromkeys(s for s in SECTIONS.values() if s), "Reports"]
# No row may name the algorithms of this target, so that each expression has something to change.
BASE = evolve(
    targets.tensorrt,
    weight=Algorithm(estimators.Ema(decay=0.5), functions.Stochastic()),
    activation=Algorithm(estimators.Ema(decay=0.5), functions.Stochastic()),
    legality=(),
)


def section_of(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(section: str) -> list[tuple[str, str]]:
    lines = [line for line in section_of(section).splitlines() if line.startswith("| `")]
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


def lacks(text: str, kind: str) -> list[str]:
    """The names of a kind that a text does not have as whole words."""
    return [n for n in NAMES[kind] if not re.search(rf"(?<!\w){re.escape(n.replace('{}', '{name}').lstrip('_'))}(?!\w)", text)]


@pytest.mark.parametrize("kind", SECTIONS)
def test_every_name_has_a_row(kind: str) -> None:
    assert NAMES.keys() == SECTIONS.keys()
    section = SECTIONS[kind]
    named = "\n".join(name.replace("w_qscheme", "w_qscheme a_qscheme") for name, _ in rows(section)) if section else PAGE
    text = f"{named}\n{section_of(section)}" if kind == "reconstruction" else named  # one key is only read by mistake
    assert lacks(text.replace("{name}_for", "for").replace("{name}_stpu", "stpu"), kind) == []


@pytest.mark.parametrize("section", TABLES)
def test_every_row_has_a_name_of_mqbench(section: str) -> None:
    found = [name for name, _ in rows(section)]
    assert len(set(found)) == len(found)
    if section in ("Reports", "Fused and QAT modules"):  # these also name files, and torch's modules
        return
    known = {n for names in NAMES.values() for n in names}
    assert [name for name in found if not known & set(re.findall(r"\w+", name))] == []


def test_a_name_that_is_not_on_the_page_is_found() -> None:
    without = "\n".join(name for name, _ in rows("Observers") if name != "MSEObserver")
    assert lacks(without, "observers") == ["MSEObserver"]


def test_there_are_no_other_tables() -> None:
    assert sum(line.startswith("| `") for line in PAGE.splitlines()) == sum(len(rows(s)) for s in TABLES)


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
    assert len(set(found)) == len(NAMES["back-ends"])


@pytest.mark.thorough
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
    if name == "output_path":
        assert sorted(p.name for p in content.iterdir()) == ["clip_ranges.json", "model.onnx", "model_float.onnx", "qfunc.json"]
        return
    assert isinstance(content, bytes)
    assert len(content) > 20
    if expression.rstrip('"]').endswith(".onnx"):
        model = onnx.load_from_string(content)
        onnx.checker.check_model(model)
        assert len(model.graph.node) >= 3


def test_learned_zero_points_train_as_mqbench_s() -> None:
    """MQBench: y = (clamp(R(x/s) + R(z)) - R(z)) s, straight-through, with gradients g to s and z.

    beta = -z s, so that by the chain rule  dy/dz = -s dy/dbeta  and  (dy/ds)_z = (dy/ds)_beta - z dy/dbeta.
    """
    scheme, generator = Scheme(Int(8, signed=False), zero_point=ZeroPoint()), torch.Generator().manual_seed(0)
    x = 3 * torch.randn(200, generator=generator, dtype=torch.float64)
    weight, s, z = torch.randn(200, generator=generator, dtype=torch.float64), 1 / 64, 100.0
    g, inside = (200 * 255) ** -0.5, ((x / s + z).round() > 0) & ((x / s + z).round() < 255)
    low = (x / s + z).round() <= 0
    code = ((x / s).round() + z).clamp(0, 255)
    by_scale = torch.where(inside, (x / s).round() - x / s, torch.where(low, -z, 255 - z)) * g
    by_zero = torch.where(inside, 0.0, -s) * g
    mine = x.clone().requires_grad_()
    scale, beta = (torch.tensor(v, requires_grad=True) for v in (s, -z * s))
    value = functions.LsqPlus().apply(Offset(scale, beta), mine, scheme)
    (value * weight).sum().backward()
    assert 20 < int((~inside).sum()) < 180
    assert torch.equal(value.detach(), (code - z) * s)
    assert mine.grad is not None
    assert scale.grad is not None
    assert beta.grad is not None
    assert torch.equal(mine.grad, weight * inside)
    wanted_s, wanted_z = float((by_scale * weight).sum()), float((by_zero * weight).sum())
    assert float(beta.grad) * -s == pytest.approx(wanted_z, rel=1e-6)
    assert float(scale.grad) - z * float(beta.grad) == pytest.approx(wanted_s, rel=1e-5)


def test_without_a_zero_point_only_the_scale_trains() -> None:
    scheme, x = Scheme(Int(4)), torch.randn(50, generator=torch.Generator().manual_seed(0))
    values, gradients = [], []
    for function, rest in ((functions.LsqPlus(), Offset), (functions.Lsq(), Learned)):
        scale = torch.tensor(0.1, requires_grad=True)
        values.append(function.apply(rest(scale, torch.tensor(0.0)), x, scheme))
        values[-1].square().sum().backward()
        gradients.append(scale.grad)
    assert torch.equal(*values)
    assert torch.equal(*gradients)
    assert functions.LsqPlus().learned(scheme) == ("scale",)


def test_the_functions_that_nnie_takes_are_those_that_the_page_lists() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `NNIEFakeQuantize`"))
    listed = set(re.findall(r"`(\w+)`", row.partition("codes take ")[2].partition(";")[0]))
    taken = set()
    for name in functions.__all__:
        given = (quantize, quantize) if name == "with_gradient" else ()
        if name == "WithGradient":
            continue
        try:
            function = getattr(functions, name)(*given)
            qfunc.quantize(edit.weights(function=function)(targets.nnie))(names()["model"])
            taken.add(name)
        except SpecError:
            pass
    assert taken == listed


def test_a_norm_of_your_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.partition("\n### A norm of your own\n")[2].partition("\n## ")[0]
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)
    page = ModuleType("page")  # a target holds functions of modules only
    monkeypatch.setitem(sys.modules, "page", page)
    found = vars(page)
    found.update({name: value for name, value in names().items() if not name.startswith("__")})
    exec(code, found)
    assert capsys.readouterr().out == printed
    with pytest.raises(SpecError, match="found parameters that train, which fold_gain folds for good"):
        found["quantize"](found["mine"], batch_norm=qfunc.TrainBatchNorm())(found["net"])
