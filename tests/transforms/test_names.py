"""Names of artifacts: files, inputs, outputs and axes, read back by ONNX, ONNX Runtime and from the side files."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError

NAMES: dict[str, Any] = {
    "name": "net",
    "input_names": ("picture",),
    "output_names": ("features", "logits"),
    "dynamic_axes": {"picture": {0: "n"}},
}
BATCH = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)
WITH_ONNX = ("onnxruntime", "onnx_qnn", "openvino", "qdq", "qnn_htp", "snpe", "nnie", "tengine_u8", "vitis", "stpu", "ppl_cuda",
             "ppl_w8a16", "tensorrt")  # fmt: skip
TABLES = {"snpe": "encodings_0.6.1.json", "tengine_u8": "net.scale", "stpu": "stpu_minmax.json", "ppl_cuda": "clip_ranges.txt"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, image: Tensor) -> Any:
        y = torch.relu(self.conv(image))
        return y, self.head(y.mean((2, 3)))


@cache
def calibrated(name: str) -> Any:
    torch.manual_seed(0)
    model = qfunc.quantize(getattr(targets, name))(Net().eval())
    return qfunc.calibrate([BATCH], progress=False)(model)


def named(target: str, **changes: Any) -> Any:
    return qfunc.deploy(getattr(targets, target), **{**NAMES, **changes})(calibrated(target))


def shapes(values: Any) -> dict[str, list[Any]]:
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


@pytest.mark.parametrize("name", WITH_ONNX)
def test_names_reach_each_format_of_onnx(name: str) -> None:
    plain, files = qfunc.deploy(getattr(targets, name))(calibrated(name)).files, named(name).files
    assert [f.replace("net", "model", 1) if f.startswith("net") else f for f in files] == list(plain)
    for file in (f for f in files if f.endswith(".onnx")):
        model = onnx.load_from_string(files[file])
        onnx.checker.check_model(model, full_check=True)
        assert model.graph.name == "net"
        assert shapes(model.graph.input) == {"picture": ["n", 3, 8, 8]}
        assert shapes(model.graph.output) == {"features": ["n", 8, 8, 8], "logits": ["n", 4]}
        # The order of the nodes, their operators and constants are those of the artifact without names.
        before = onnx.load_from_string(plain[file.replace("net", "model", 1)])
        assert [n.op_type for n in model.graph.node] == [n.op_type for n in before.graph.node]
        assert [t.raw_data for t in model.graph.initializer] == [t.raw_data for t in before.graph.initializer]


@pytest.mark.parametrize("name", TABLES)
def test_side_files_have_the_names(name: str) -> None:
    table = named(name).files[TABLES[name]].decode()
    assert all(word in table for word in ("picture", "features", "logits"))
    assert "image" not in table


def test_onnx_runtime_computes_the_same_by_name() -> None:
    import onnxruntime as ort

    feeds, found = {"picture": BATCH.numpy()}, []
    for files, feed in (
        (named("qdq").files, feeds),
        (qfunc.deploy(targets.qdq)(calibrated("qdq")).files, {"image": BATCH.numpy()}),
    ):
        (content,) = (c for f, c in files.items() if f.endswith(".onnx"))
        found.append(ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feed))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["qdq", "openvino", "litert", "ncnn"])
def test_runners_run_an_artifact_with_a_name(name: str) -> None:
    package = {"qdq": "onnxruntime", "litert": "ai_edge_litert"}.get(name, name)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package.replace('_', '-')} is not installed")
    target = getattr(targets, name)
    plain, renamed = qfunc.deploy(target)(calibrated(name)), qfunc.deploy(target, name="v1.net")(calibrated(name))
    assert all(f.startswith("v1.net.") or not f.startswith("model") for f in renamed.files)
    first, second = (target.runtime.runner.run(a, [BATCH[:1]]) for a in (plain, renamed))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a folder": (
        "qdq", {"name": "a/b"}, "deploy, name: found 'a/b', wanted the name of a file. Choose a name without folders."
    ),
    "a text": (
        "qdq", {"input_names": "x"},
        "deploy, input_names: found 'x', wanted a tuple of names. Write input_names=('a', 'b').",
    ),
    "an ending": (
        "qdq", {"name": "net.onnx"}, "deploy, name: found 'net.onnx', wanted a name without '.onnx'. Write name='net'."
    ),
    "a dict": (
        "qdq", {"output_names": {"relu": "a", "head": "b"}},
        "deploy, output_names: found {'relu': 'a', 'head': 'b'}, wanted a tuple of names. Write output_names=('a', 'b').",
    ),
    "twice": (
        "qdq", {"output_names": ("picture", "b")},
        "deploy, output_names: found 'picture' twice, wanted one name a tensor. Choose another name.",
    ),
    "too few": (
        "qdq", {"output_names": ("a",)},
        "deploy, output_names: found ('a',), wanted 2 names. Name each of: relu, head.",
    ),
    "another tensor": (
        "qdq", {"input_names": ("conv",)},
        "deploy, the name of 'image': found 'conv', another tensor, wanted a new name. Choose another name.",
    ),
    "no such input": (
        "qdq", {"dynamic_axes": {"image": {0: "n"}}},
        "deploy, dynamic_axes: found 'image', wanted an input of the model. Use one of: picture. "
        "Outputs have the names of the axes that they get from inputs.",
    ),
    "axes of a list": (
        "qdq", {"dynamic_axes": {"picture": [0]}},
        "deploy, dynamic_axes: found {'picture': [0]}, wanted a dict of dicts. "
        "Write dynamic_axes={'picture': {0: 'picture_0'}}.",
    ),
    "no such axis": (
        "qdq", {"dynamic_axes": {"picture": {4: "n"}}},
        "deploy, dynamic_axes, 'picture': found 4: 'n', wanted an axis below 4, and its name. "
        "Write dynamic_axes={'picture': {0: 'n'}}.",
    ),
    "an axis from the last": (
        "qdq", {"dynamic_axes": {"picture": {-4: "n"}}},
        "deploy, dynamic_axes, 'picture': found -4: 'n', wanted an axis below 4, and its name. "
        "Write dynamic_axes={'picture': {0: 'n'}}.",
    ),
    "a fixed axis": (
        "qdq", {"dynamic_axes": {"picture": {2: "height"}}},
        "deploy, dynamic_axes, 'picture': found axis 2 of size 8, wanted an axis whose size varies. "
        "Calibrate on batches with several sizes of this axis, without example_inputs of deploy, or leave it out.",
    ),
    "no names in the format": (
        "executorch_xnnpack", {"input_names": (), "dynamic_axes": {}},
        "deploy, output_names: found names for XnnpackLowering(), wanted none, because model.pte + model.values.json has no "
        "such names. Leave out output_names: the order of the inputs and outputs is the model's.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_names_that_no_file_can_hold_are_refused(case: str) -> None:
    name, changes, message = REFUSED[case]
    with pytest.raises(DeployError) as e:
        named(name, **changes)
    assert str(e.value) == message


def test_axes_with_several_sizes_in_calibration_vary_and_have_names() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    done = qfunc.calibrate([torch.randn(2, 3, n, 8) for n in (8, 10)], progress=False)(qfunc.quantize(targets.qdq)(net))
    artifact = qfunc.deploy(targets.qdq, dynamic_axes={"input": {0: "n", 2: "height"}})(done)
    shape = onnx.load_from_string(artifact.files["model.onnx"]).graph.input[0].type.tensor_type.shape
    assert [d.dim_param or d.dim_value for d in shape.dim] == ["n", 3, "height", 8]
