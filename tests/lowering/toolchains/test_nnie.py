"""NNIE's table: read by the vendor's rules, z = round(16 log2 c) - 127, and executed by its published format."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from onnx import numpy_helper
from torch import Tensor, nn

from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering.program import Program
from qfunc.specs import Log
from qfunc.targets.nnie.lowering import clip
from qfunc.targets.runtimes import NnieLowering
from tests.lowering.onnx.reader import execute, tensors
from tests.lowering.onnx.test_qdq_nodes import Net, parts


def lowered(net: nn.Module, x: Tensor) -> tuple[Any, dict[str, bytes], dict[str, list[float]], Any]:
    """(the simulation, the files, the table, the sites)."""
    done, model, sites = parts(evolve(targets.nnie, legality=()), net, x)
    files = dict(NnieLowering().lower(Program(model, sites)))
    assert dict(NnieLowering().lower(Program(model, sites))) == files
    assert set(files) == {"model.onnx", "gfpq_param_dict.json"}
    onnx.checker.check_model(onnx.load_from_string(files["model.onnx"]))
    held = json.loads(files["gfpq_param_dict.json"])
    assert list(held) == ["nnie"]
    assert list(held["nnie"]) == ["gfpq_param_dict"]
    return done, files, held["nnie"]["gfpq_param_dict"], sites


def decoded(x: Any, c: float) -> Any:
    """NNIE's values of x for a clip value c, as HiSilicon's guide states them, in float64."""
    z = round(16 * math.log2(c)) - 127
    x = np.asarray(x, np.float64)
    with np.errstate(divide="ignore"):
        code = np.round(16 * np.log2(np.abs(x)))
    positive = 2.0 ** ((np.clip(code - z, 0, 127) + z) / 16)
    negative = -(2.0 ** ((np.clip(code - z, 1, 127) + z) / 16))
    low, high = -(2.0 ** ((z + 1 - 16) / 16)), 2.0 ** ((z - 16) / 16)
    return np.where(x >= high, positive, np.where(x <= low, negative, 0.0))


def test_every_entry_is_a_layer_with_the_clip_of_each_input() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 6)
    net = Net()
    _, files, table, _ = lowered(net, x)
    nodes = {n.name: n for n in onnx.load_from_string(files["model.onnx"]).graph.node}
    assert {nodes[name].op_type: len(clips) for name, clips in table.items()} == {"Conv": 1, "Add": 2, "MaxPool": 1, "Gemm": 1}
    assert len(table) == 5
    for c in (c for clips in table.values() for c in clips):
        # The vendor's table holds the values whose 16 log2 is an integer; doubles hold them to 2^-52.
        assert abs(16 * math.log2(c) - round(16 * math.log2(c))) < 1e-12
    largest = float(x.abs().max())
    (c,) = table[next(n.name for n in nodes.values() if "x" in n.input)]
    assert round(16 * math.log2(c)) == round(16 * math.log2(largest))


def test_the_vendor_finds_the_simulation_s_z_of_every_tensor() -> None:
    torch.manual_seed(1)
    _, files, _, sites = lowered(Net(), torch.randn(2, 3, 8, 6) * 37)
    for site in sites:
        z = round(16 * math.log2(site.scale[0]))
        assert round(16 * math.log2(clip(site))) - 127 == z
    stored = {i.name: numpy_helper.to_array(i) for i in onnx.load_from_string(files["model.onnx"]).graph.initializer}
    for site in (s for s in sites if s.role == "weight"):
        w = stored[site.name]
        # From the stored weights alone; float32 holds them to 2^-24.
        assert np.allclose(decoded(w, np.abs(w).max()), w, rtol=2**-23, atol=0)
        assert round(16 * math.log2(np.abs(w).max())) - 127 == round(16 * math.log2(site.scale[0]))


def test_the_table_executed_by_the_published_format_is_the_simulation() -> None:
    torch.manual_seed(2)
    done, files, table, _ = lowered(Net(), torch.randn(2, 3, 8, 6))
    x = torch.randn(4, 3, 8, 6)

    def read(node: onnx.NodeProto, index: int, value: Any) -> Any:
        clips = table.get(node.name, [])
        return decoded(value, clips[index]).astype(np.float32) if index < len(clips) else value

    got = execute(files["model.onnx"], x.numpy(), read=read)[0]
    wanted = done(x).detach().numpy()
    # Float sums in another order move a code now and then, by 2^(1/16): none does on these inputs.
    assert np.allclose(got, wanted, atol=1e-5)
    plain = execute(files["model.onnx"], x.numpy())[0]
    assert np.abs(plain - wanted).max() > 1e-3


class Ups(nn.Module):
    """Two Upsamples, a convolution with groups, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.grouped = nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 1, groups=4)
        self.first, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.grouped(torch.relu(self.up(self.first(self.up(x))))))


def test_upsamples_have_an_entry_more_and_groups_have_none() -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 4, 3, 5)
    done, files, table, _ = lowered(Ups(), x)
    proto = onnx.load_from_string(files["model.onnx"])
    ups = [n for n in proto.graph.node if n.op_type == "Upsample"]
    convs = [n.name for n in proto.graph.node if n.op_type == "Conv"]
    assert len(ups) == 2
    assert list(table) == [ups[0].name, f"{ups[0].name}_permute_0", convs[0], ups[1].name, f"{ups[1].name}_permute_1", convs[2]]
    assert table[f"{ups[1].name}_permute_1"] == table[ups[1].name] != table[ups[0].name]
    assert {len(v) for v in table.values()} == {1}

    def upsample(node: onnx.NodeProto, inputs: list[Any]) -> Any:
        assert [(a.name, a.s) for a in node.attribute] == [("mode", b"nearest")]
        assert inputs[1].tolist() == [1, 1, 2, 2]
        return inputs[0].repeat(2, axis=2).repeat(2, axis=3)

    def read(node: onnx.NodeProto, index: int, value: Any) -> Any:
        clips = table.get(node.name, [])
        return decoded(value, clips[index]).astype(np.float32) if index < len(clips) else value

    own = execute(files["model.onnx"], x.numpy(), read=read, ops={"Upsample": upsample})[0]
    assert np.allclose(own, done(x).detach().numpy(), atol=1e-5)
    assert np.array_equal(own, execute(files["model.onnx"], x.numpy(), read=read)[0])


class Two(nn.Module):
    """Resizing that NNIE has not."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, scale_factor=2, mode="bilinear")


def test_what_nnie_cannot_say_is_refused_by_name() -> None:
    x = torch.randn(2, 3, 4, 5)
    with pytest.raises(DeployError) as e:
        lowered(Two(), x)
    assert str(e.value) == (
        "op 'interpolate': found resizing by mode 'linear', wanted mode 'nearest', as NNIE's Upsample. "
        "Resize by mode='nearest'."
    )
    _, model, sites = parts(targets.tensorrt, nn.Conv2d(3, 2, 1), x)
    with pytest.raises(DeployError) as e:
        NnieLowering().lower(Program(model, sites))
    wanted = (
        "tensor 'input': found Int(8), wanted Log(), the only format of NNIE. "
        "Use the schemes of targets.nnie, or edit.deploy(QdqLowering())."
    )
    assert str(e.value) == wanted


def test_one_z_a_tensor() -> None:
    _, model, sites = parts(targets.tensorrt, nn.Conv2d(3, 2, 1), torch.randn(2, 3, 4, 5))
    twins = [evolve(s, format=Log()) for s in sites if s.role == "weight"]
    with pytest.raises(DeployError) as e:
        NnieLowering().lower(Program(model, twins))
    assert str(e.value) == ("tensor 'weight': found 2 scales, wanted one scale, as NNIE has it. Use granularity=PerTensor().")


def test_names_of_the_table_are_the_model_s() -> None:
    _, files, _, sites = lowered(Net(), torch.randn(2, 3, 8, 6))
    assert {t for s in sites for t in s.tensors} <= tensors(files["model.onnx"])
