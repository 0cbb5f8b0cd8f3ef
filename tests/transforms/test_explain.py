"""explain: a table, and data; every site with its rule, every float op with its reason."""

from __future__ import annotations

from pathlib import Path
from xml.dom import minidom

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.onnxruntime.target import onnxruntime
from tests.transforms.checks import calibrated, quantized
from tests.transforms.nets import network

TARGET = onnxruntime


def test_every_site_is_listed_with_its_rule() -> None:
    _, _, made = quantized("residual")
    said = qfunc.explain(made)
    sites = [(s.tensor, s.slot, s.op, s.rule) for s in said.sites]
    assert sites[:3] == [("x", "input", "conv1", 0), ("conv1.weight", "weight", "conv1", 0), ("conv1.bias", "bias", "conv1", 0)]
    assert ("fc", "output", "fc", 0) in sites
    assert said.rules[0] == (0, "conv, linear, matmul")
    assert {s.rule for s in said.sites} == {i for i, _ in said.rules}


def test_the_table() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.27, 0, 0], [0, 2.54, 0]]))
        net.bias.zero_()
    made = qfunc.quantize(TARGET)(net)
    rows = [line.split() for line in str(qfunc.explain(made)).splitlines()]
    assert rows[0] == ["onnxruntime:", "4", "quantized", "tensors"]
    assert rows[1][:5] == ["tensor", "slot", "of", "op", "rule"]  # a module of torch's own has no line of the user's
    input_row, weight_row = rows[3], rows[4]
    assert input_row[:2] == ["input", "input"]
    assert "linear 0: conv, linear, matmul" in " ".join(input_row)
    assert "not calibrated not calibrated" in " ".join(input_row)
    assert "0.01 to 0.02" in " ".join(weight_row)
    done = qfunc.calibrate([torch.tensor([[0.0, 1.0, 2.55]])])(made)
    text = str(qfunc.explain(done))
    assert "not calibrated" not in text
    assert "0.01 " in next(line for line in text.splitlines() if line.strip().startswith("input"))
    assert not any(line != line.rstrip() for line in text.splitlines())


class Layers(nn.Module):
    """Two layers, each on its line."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.a(x))
        return self.b(y + 1)


def test_each_row_begins_with_its_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = qfunc.explain(qfunc.quantize(targets.litert)(Layers()))
    text = Path(__file__).read_text().splitlines()
    words = {s.tensor: text[int(s.source.rpartition(":")[2]) - 1].strip() for s in said.sites}
    first, second = "y = torch.tanh(self.a(x))", "return self.b(y + 1)"
    assert [words[n] for n in ("x", "a.weight", "a.bias", "a", "b.weight", "b")] == [first] * 4 + [second] * 2
    assert all(s.source.startswith(f"{__file__}:") for s in said.sites)
    # A table shows paths relative to the current folder, and whole paths elsewhere.
    for folder, shown in ((Path(__file__).parent, Path(__file__).name), (tmp_path, __file__)):
        monkeypatch.chdir(folder)
        table = said.sections()[0]
        assert table.head[:5] == ("source", "tensor", "slot", "of op", "rule")
        assert all(row[0].rpartition(":")[0] == shown for row in table.rows)
        assert all(s.head[0] == "source" for s in said.sections() if s.rows and s.title in ("in float", "may overflow"))


def test_a_rule_has_the_ops_that_it_selects_as_its_name() -> None:
    target = edit.skip(edit.name("b"))(targets.litert)
    said = qfunc.explain(qfunc.quantize(target)(Layers()))
    names = {row[1]: row[4] for row in said.sections()[0].rows}
    assert names["a.weight"] == "1: conv, linear, conv_transpose"
    assert dict(said.rules)[1] == "conv, linear, conv_transpose"
    assert all(len(name) <= 32 for name in names.values())


def test_ops_in_float_are_listed_with_the_reason() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.b(F.gelu(self.a(x))))

    made = qfunc.quantize(TARGET)(Net())
    why = "no rule of the target quantizes it"
    assert [(f.op, f.kind, f.why) for f in qfunc.explain(made).floats] == [("gelu", "gelu", why), ("tanh", "tanh", why)]
    done = qfunc.calibrate([torch.randn(2, 4)])(made)
    assert qfunc.explain(done).floats == qfunc.explain(made).floats
    line = qfunc.explain(done).floats[0].source
    assert line.partition(":")[0] == __file__
    assert "F.gelu" in Path(__file__).read_text().splitlines()[int(line.rpartition(":")[2]) - 1]
    assert "in float" in str(qfunc.explain(done))


def test_an_op_of_other_sizes_than_a_rule_selects_says_so() -> None:
    """As llama.cpp keeps a layer in float if its blocks do not divide the inputs."""
    model, x = nn.Sequential(nn.Linear(40, 64), nn.Linear(64, 8)), torch.randn(2, 40)
    made = qfunc.quantize(targets.gguf("Q4_0"))(model)
    why = "rule 0 selects linear and in_features a multiple of 32; here in_features is 40"
    assert [(f.op, f.kind, f.why) for f in qfunc.explain(made).floats] == [("0", "linear", why)]
    assert qfunc.explain(qfunc.calibrate([x], progress=False)(made)).floats == qfunc.explain(made).floats


def test_a_skipped_op_shows_as_float() -> None:
    model, x = network("residual")
    made = qfunc.calibrate([x])(qfunc.quantize(edit.pipe(TARGET, edit.skip(edit.name("fc"))))(model))
    why = "rule 0 keeps it in float: named 'fc'"
    assert [(f.op, f.kind, f.why) for f in qfunc.explain(made).floats] == [("fc", "linear", why)]


def test_an_op_outside_the_vocabulary_says_how_to_name_it() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.special.erfcx(self.a(x))

    why = "it is outside the vocabulary of ops; an OpKind in the target's ops gives it a kind"
    found = qfunc.explain(qfunc.quantize(evolve(TARGET, lowering=None))(Net())).floats
    assert [(f.kind, f.why) for f in found] == [("unknown", why)]


def test_an_op_that_a_rule_speaks_of_has_the_runtimes_reason() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x, -1) + 1.0

    made = qfunc.calibrate([torch.randn(2, 4)])(qfunc.quantize(TARGET)(Net()))
    assert {f.op: f.why for f in qfunc.explain(made).floats}["add"] == "its input carries no qparams"


def test_the_page_holds_the_tables(tmp_path: Path) -> None:
    _, _, done = calibrated("residual")
    said = qfunc.explain(done)
    text = said.save(tmp_path / "new/page.html").read_text()
    assert text == said.html()
    assert text.count("<tr>") == 1 + len(said.sites) + 1 + len(said.rules) + (1 + len(said.floats)) * bool(said.floats)
    assert all(s.tensor in text for s in said.sites)


def test_the_page_draws_each_weight_over_its_clipping_range() -> None:
    net = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.27, 0, 0, -1.0], [0, 2.54, -2.5, 0]]))
    made = qfunc.quantize(TARGET)(net)
    said = qfunc.explain(made)  # weights need no calibration
    (drawn,) = [s.histogram for s in said.sites if s.histogram]
    assert (drawn.total, drawn.clipped, drawn.minimum, drawn.maximum) == (8, 0, -2.5, float(torch.tensor(2.54)))
    assert drawn.high == pytest.approx(2.54, rel=2**-20)  # of the wider row; float32 scales
    text = said.html()
    assert text.count("<svg") == 1
    assert "<b>weight</b> -2.5 to 2.54, 0 % clipped" in text
    minidom.parseString(text.replace("<!doctype html>", "").replace('<meta charset="utf-8">', ""))


def test_near_misses_say_why() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.conv(x)
            return F.relu(y), y

    said = qfunc.explain(qfunc.quantize(TARGET)(Net()))
    assert [(a, b) for a, b, _ in said.misses] == [("conv", "relu")]
    assert "is read 2 times, and a fused op may be read only once" in said.misses[0][2]
    assert "not fused" in str(said)


def test_a_target_without_public_arithmetic_is_explained() -> None:
    _, _, done = calibrated("branches", target=targets.tensorrt)
    said = qfunc.explain(done)
    assert said.target == "tensorrt"
    assert {s.slot for s in said.sites} == {"input", "weight"}


def test_the_users_line_is_shown() -> None:
    _, _, made = quantized("residual")
    source = next(s.source for s in qfunc.explain(made).sites if s.tensor == "fc")
    assert "nets.py" in source


def test_the_report_lists_what_a_rewrite_almost_matched() -> None:
    """A norm over another axis than that of its weight, a silu with another number; and nothing of the ops around."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            y = self.gain * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6))
            return y / (2 + torch.exp(-y)) + x

    found = qfunc.explain(qfunc.quantize(TARGET)(Net()))
    assert str(found).split("\n\n")[-1].splitlines() == [
        "not rewritten",
        " op        as         why",
        "─" * 95,
        " mul_1     rms_norm   a mean is over the axes [1], where [-1], those of the weight, are wanted",
        " truediv   silu       an operand of 'add_1' is 2, where 1 is wanted",
    ]
    assert "<h2>not rewritten</h2>" in found.html()
