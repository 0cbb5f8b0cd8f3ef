"""The names of arguments, keys and fields are those of the artifact's inputs and outputs, in each format and by each reader."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.execution.output_names import names_of_outputs
from tests.graph.test_output_classes import Found, Pair


class Detections(NamedTuple):
    boxes: Any
    scores: Any


class Head(nn.Module):
    """Two tensors in what `kind` makes of them. An op inside has the name of an output, `boxes`."""

    def __init__(self, kind: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.boxes, self.classes, self.kind = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1), kind

    def forward(self, image: Tensor, gain: Tensor) -> Any:
        x = torch.relu(self.boxes(image)) * gain
        return self.kind(x, self.classes(x))


KINDS: dict[str, tuple[Callable[[Tensor, Tensor], Any], tuple[str, ...]]] = {
    "a dict": (lambda a, b: {"scores": b, "boxes": a}, ("scores", "boxes")),
    "a named tuple": (Detections, ("boxes", "scores")),
    "in a tuple": (lambda a, b: ({"boxes": a, "aux": [b]},), ("0.boxes", "0.aux.0")),
    "one tensor twice": (lambda a, b: {"boxes": a, "same": a}, ("boxes", "same")),
    "an input's name": (lambda a, b: {"image": a, "class scores": b}, ("image.output", "class_scores")),
}
BATCH = (torch.linspace(-1, 1, 2 * 3 * 25).reshape(2, 3, 5, 5), torch.tensor([0.5, 0.75]).reshape(2, 1, 1, 1))


def deployed(name: str, kind: Callable[[Tensor, Tensor], Any], *, exported: bool, **names: Any) -> Any:
    torch.manual_seed(0)
    target = getattr(targets, name)
    quantized = qfunc.quantize(target, BATCH if exported else None)(Head(kind).eval())
    return qfunc.deploy(target, **names)(qfunc.calibrate([BATCH], progress=False)(quantized))


def of_onnx(files: Any) -> tuple[list[str], list[str]]:
    graph = onnx.load_from_string(files["model.onnx"]).graph
    onnx.checker.check_model(files["model.onnx"], full_check=True)
    return [i.name for i in graph.input], [o.name for o in graph.output]


def of_tflite(files: Any) -> tuple[list[str], list[str]]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_content=files["model.tflite"]).get_signature_runner()
    found = runner(**{n: BATCH[n == "gain"][:1].numpy() for n in runner.get_input_details()})
    places = {d["name"]: d["index"] for d in runner.get_output_details().values()}
    assert found.keys() == runner.get_output_details().keys()
    order = [d["index"] for d in Interpreter(model_content=files["model.tflite"]).get_output_details()]
    by_place = sorted(runner.get_output_details().items(), key=lambda item: order.index(places[item[1]["name"]]))
    return list(runner.get_input_details()), [name for name, _ in by_place]


def of_ncnn(files: Any) -> tuple[list[str], list[str]]:
    import ncnn

    net = ncnn.Net()
    with open_files(files, "model.ncnn.param", "model.ncnn.bin") as (param, content):
        assert (net.load_param(param), net.load_model(content)) == (0, 0)
    return list(net.input_names()), list(net.output_names())


def of_tosa(files: Any) -> tuple[list[str], list[str]]:
    from tosa import TosaGraph

    region = TosaGraph.TosaGraph.GetRootAsTosaGraph(files["model.tosa"], 0).Regions(0).Blocks(0)
    inputs = [region.Inputs(i).decode() for i in range(region.InputsLength())]
    return inputs, [region.Outputs(i).decode() for i in range(region.OutputsLength())]


def open_files(files: Any, *names: str) -> Any:
    import contextlib
    import tempfile
    from pathlib import Path

    @contextlib.contextmanager
    def opened() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                Path(folder, name).write_bytes(files[name])
            yield [str(Path(folder, name)) for name in names]

    return opened()


FORMATS: dict[str, tuple[str, str, Callable[[Any], tuple[list[str], list[str]]]]] = {
    "onnxruntime": ("onnxruntime", "", of_onnx),
    "openvino": ("onnxruntime", "", of_onnx),
    "tensorrt": ("onnxruntime", "", of_onnx),
    "snpe": ("onnxruntime", "", of_onnx),
    "litert": ("ai_edge_litert", "ai-edge-litert", of_tflite),
    "ncnn": ("ncnn", "ncnn", of_ncnn),
    "tosa": ("tosa", "tosa-tools", of_tosa),
}


@pytest.mark.thorough
@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_artifacts_have_the_names_of_the_forward(name: str, kind: str, exported: bool) -> None:
    package, called, read = FORMATS[name]
    # The tests have a folder `tosa` too.
    if targets.tosa.runtime.runner.missing() if name == "tosa" else importlib.util.find_spec(package) is None:
        pytest.skip(f"{called} is not installed")
    function, outputs = KINDS[kind]
    inputs, found = read(deployed(name, function, exported=exported).files)
    assert (sorted(inputs), found) == (["gain", "image"], list(outputs))


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "litert", "ncnn", "tosa", "executorch_xnnpack"])
def test_names_change_no_results(name: str) -> None:
    target = getattr(targets, name)
    if name != "onnxruntime" and target.runtime.runner.missing():
        package = {"litert": "ai-edge-litert", "tosa": "tosa-tools", "executorch_xnnpack": "executorch"}.get(name, name)
        pytest.skip(f"{package} is not installed")
    named, plain = (deployed(name, kind, exported=False) for kind in (KINDS["a named tuple"][0], lambda a, b: (a, b)))
    pairs = zip(*(target.runtime.runner.run(a, BATCH) for a in (named, plain)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["litert", "ncnn", "tosa"])
def test_given_names_are_in_files_without_an_onnx_model(name: str) -> None:
    package, called, _ = FORMATS[name]
    # The tests have a folder `tosa` too.
    if targets.tosa.runtime.runner.missing() if name == "tosa" else importlib.util.find_spec(package) is None:
        pytest.skip(f"{called} is not installed")
    names = {"input_names": ("picture", "factor"), "output_names": ("image", "b")}
    found: Any = deployed_with(name, names)
    assert sorted(found[0]) == ["factor", "picture"]
    assert found[1] == ["image", "b"]


def deployed_with(name: str, names: Any) -> Any:
    files = deployed(name, KINDS["a dict"][0], exported=False, **names).files
    if name != "litert":
        return FORMATS[name][2](files)
    from ai_edge_litert.interpreter import Interpreter

    (signature,) = Interpreter(model_content=files["model.tflite"]).get_signature_list().values()
    return signature["inputs"], sorted(signature["outputs"], reverse=True)


def test_dynamic_axes_of_a_file_that_fixes_them_are_refused() -> None:
    with pytest.raises(DeployError) as e:
        deployed("ncnn", KINDS["a dict"][0], exported=False, dynamic_axes={"image": {0: "n"}})
    assert str(e.value) == (
        "deploy, dynamic_axes: found names for NcnnLowering(), wanted none, because model.ncnn.param + model.ncnn.bin has no "
        "such names. Leave it out: the file fixes all sizes but the batch."
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (lambda a, b: Pair(first=b, second=a), ("first", "second")),
        (lambda a, b: Found(logits=a, hidden=(b,)), ("logits", "hidden.0")),
        (lambda a, b: (a, [b]), ("", "")),
        (lambda a, b: [{3: a}, {"k": b, "none": None}], ("", "1.k")),
        (lambda a, b: a, ("",)),
    ],
    ids=["dataclass", "model output", "positions", "mixed", "one"],
)
def test_names_of_output_classes(kind: Any, names: tuple[str, ...]) -> None:
    assert names_of_outputs(qfunc.capture()(Head(kind))) == names
