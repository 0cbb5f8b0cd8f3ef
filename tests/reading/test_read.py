"""Float ONNX files as models: names, sizes, inputs and outputs; and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError, FileError

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def made(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], outputs: Sequence[str], stored: dict[str, Any] | None = None,
    opset: int = 17, types: dict[str, int] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """A model with inputs of these sizes."""
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(n, (types or {}).get(n, FLOAT), s) for n, s in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (stored or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def values(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def network() -> onnx.ModelProto:
    """conv, BatchNorm, relu, and a reshape by computed sizes before a linear layer."""
    nodes = [
        helper.make_node("Conv", ["input.1", "stem.weight"], ["a"], pads=[1, 1, 0, 0], auto_pad="NOTSET"),
        helper.make_node("BatchNormalization", ["a", *(f"bn.{n}" for n in NORM)], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Shape", ["d"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch_size"], axis=0),
        helper.make_node("Unsqueeze", ["batch_size", "axes"], ["batch_axis"]),
        helper.make_node("Concat", ["batch_axis", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["d", "target"], ["e"]),
        helper.make_node("Gemm", ["e", "fc.weight", "fc.bias"], ["scores"], transB=1),
    ]
    stored = {"stem.weight": values(4, 3, 2, 2), "fc.weight": values(5, 4), "fc.bias": values(5), "zero": np.int64(0),
              "axes": np.array([0]), "rest": np.array([-1])}  # fmt: skip
    stored |= {f"bn.{n}": np.abs(values(4)) + 0.1 for n in NORM}
    return made(nodes, {"input.1": ["batch", 3, "height", "width"]}, ["scores", "c"], stored)


NORM = ("weight", "bias", "running_mean", "running_var")


def by_runtime(model: onnx.ModelProto, *given: Tensor) -> list[Any]:
    """What ONNX Runtime computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {i.name: t.numpy() for i, t in zip(session.get_inputs(), given, strict=True)}))


def same(model: onnx.ModelProto, *given: Tensor, **options: Any) -> Any:
    """Compare with ONNX Runtime, within the rounding of float32 sums; return the model that was read."""
    found = qfunc.read(model, **options)
    results = found(*given)
    for a, b in zip([results] if isinstance(results, Tensor) else results, by_runtime(model, *given), strict=True):
        torch.testing.assert_close(a.detach(), torch.from_numpy(b), rtol=1e-4, atol=1e-5)
    return found


def test_names_sizes_and_outputs_are_those_of_the_file() -> None:
    model = same(network(), torch.randn(3, 3, 9, 8))
    tensors = {name: tuple(t.shape) for name, t in model.named_parameters()}
    assert tensors == {"stem.weight": (4, 3, 2, 2), "fc.weight": (5, 4), "fc.bias": (5,), "bn.weight": (4,), "bn.bias": (4,)}
    nodes = [n.name for n in model.graph.nodes if n.op.startswith("call")]
    assert {"a", "bn", "c", "scores"} <= set(nodes)
    batches = [torch.randn(n, 3, 9, 8) for n in (2, 3)]
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.onnxruntime)(model))
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    written = onnx.load_from_string(artifact.files["model.onnx"]).graph
    assert [i.name for i in written.input] == ["input_1"]
    assert [bool(d.dim_param) for d in written.input[0].type.tensor_type.shape.dim] == [True, False, True, True]
    assert qfunc.verify(targets.onnxruntime, latency=False)(calibrated, batches).verdict.startswith("bit-exact: 0 of")


def test_a_path_is_a_model(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    x = torch.randn(2, 3, 9, 8)
    models = (str(tmp_path / "net.onnx"), tmp_path / "net.onnx", qfunc.read(tmp_path / "net.onnx"))
    found = [qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(model))(x)[0] for model in models]
    assert all(torch.equal(y, found[0]) for y in found)


def test_tensors_in_other_files(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 9, 8)
    onnx.save(network(), tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0, location="data.bin")
    torch.testing.assert_close(qfunc.read(tmp_path / "net.onnx")(x)[0], qfunc.read(network())(x)[0])
    with pytest.raises(FileError, match="found tensors in other files, wanted a path"):
        qfunc.read((tmp_path / "net.onnx").read_bytes())
    for location in ("../data.bin", "/etc/hostname", "nothing.bin", ""):
        moved = onnx.load(tmp_path / "net.onnx", load_external_data=False)
        for entry in moved.graph.initializer[0].external_data:
            entry.value = location if entry.key == "location" else entry.value
        (tmp_path / "moved.onnx").write_bytes(moved.SerializeToString())
        (tmp_path.parent / "data.bin").write_bytes(bytes(4096))
        with pytest.raises(FileError, match="wanted a file in the folder of the model"):
            qfunc.read(tmp_path / "moved.onnx")


def test_sizes_inputs_and_outputs_can_be_chosen() -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        helper.make_node("Equal", ["rate", "wanted"], ["is_fast"]),
        helper.make_node("If", ["is_fast"], ["y"], then_branch=_branch("a"), else_branch=_branch("b")),
        helper.make_node("Loop", ["", "", "y"], ["z"], body=helper.make_graph([], "body", [], [])),
    ]
    model = made(nodes, {"x": ["batch", "length"], "rate": []}, ["z"], {"wanted": np.int64(16000)}, types={"rate": INT})
    x = torch.randn(2, 6)
    for rate, part in ((16000, x[:, :3]), (8000, x[:, 3:])):
        read = qfunc.read(model, sizes={"length": 6}, fixed={"rate": rate}, outputs="y")
        assert torch.equal(read(x), part.relu())
    with pytest.raises(CaptureError, match="found a branch that depends on values or sizes"):
        qfunc.read(model, outputs=("y",))
    with pytest.raises(CaptureError, match=r"found a loop, wanted ops in a fixed order.* outputs=\(\.\.\.\)"):
        qfunc.read(model, fixed={"rate": 16000})
    with pytest.raises(CaptureError, match="sizes: found 'widht', wanted the name of a size that varies: 'batch', 'length'"):
        qfunc.read(model, sizes={"widht": 6})
    with pytest.raises(CaptureError, match="fixed: found 'ratio', wanted one of 'rate', 'x'"):
        qfunc.read(model, fixed={"ratio": 1})
    with pytest.raises(CaptureError, match="outputs: found 'w', wanted one of"):
        qfunc.read(model, outputs=("w",))


def _branch(source: str) -> onnx.GraphProto:
    output = helper.make_empty_tensor_value_info("inner")
    return helper.make_graph([helper.make_node("Relu", [source], ["inner"])], source, [], [output])


def test_a_size_that_the_file_fixes_is_required() -> None:
    model = qfunc.read(made([helper.make_node("Relu", ["x"], ["y"])], {"x": [1, "n"]}, ["y"]))
    assert model(torch.ones(1, 5)).shape == (1, 5)


def test_functions_are_expanded() -> None:
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    model = made([helper.make_node("Twice", ["x"], ["y"], domain="own")], {"x": ["n", 3]}, ["y"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert torch.equal(qfunc.read(model)(torch.ones(2, 3)), 2 * torch.ones(2, 3))
    norm = made([helper.make_node("MeanVarianceNormalization", ["x"], ["y"])], {"x": ["n", 3, 4, 5]}, ["y"])
    same(norm, torch.randn(2, 3, 4, 5))


def test_weights_that_are_computed_are_tensors_of_their_own(tmp_path: Path) -> None:
    """A weight, its transpose and a part of it, as a model and saved."""
    nodes = [
        helper.make_node("Transpose", ["w"], ["w_t"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["w", "axis"], ["w_3"]),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w_t"], ["b"]),
        helper.make_node("MatMul", ["b", "w_3"], ["y"]),
    ]
    model = same(made(nodes, {"x": ["n", 4]}, ["y"], {"w": values(4, 5), "axis": np.array([0])}), torch.randn(3, 4))
    tensors = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
    assert set(tensors) == {"w", "w_t", "w_3"}
    assert len({t.untyped_storage().data_ptr() for t in tensors.values()}) == 3
    assert all(t.is_contiguous() for t in tensors.values())
    calibrated = qfunc.calibrate([torch.randn(3, 4)], progress=False)(qfunc.quantize(targets.qdq)(model))
    loaded = qfunc.load(qfunc.save(tmp_path)(calibrated))(model)
    x = torch.randn(2, 4)
    assert torch.equal(loaded(x), calibrated(x))


def test_files_that_are_no_onnx(tmp_path: Path) -> None:
    for name, content, message in (
        ("lfs.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "found a pointer of Git LFS"),
        ("empty.onnx", b"", "found no graph"), ("text.onnx", b"hello, this is text", "found no"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError, match=message):
            qfunc.read(tmp_path / name)
    with pytest.raises(FileError, match="found no such file"):
        qfunc.read(tmp_path / "nothing.onnx")
    with pytest.raises(FileError, match="found a folder"):
        qfunc.read(tmp_path)
    with pytest.raises(CaptureError, match="read: found an int, wanted a path, bytes or"):
        qfunc.read(3)


def test_ops_that_are_not_read() -> None:
    relu = helper.make_node("Relu", ["x"], ["a"])
    own = made([relu, helper.make_node("Frobnicate", ["a"], ["y"], domain="ai.acme", name="f")], {"x": [2, 3]}, ["y"])
    with pytest.raises(CaptureError, match=r"node 'f' \(Frobnicate\): found an op Frobnicate of the domain 'ai.acme'.*'a'"):
        qfunc.read(own)
    assert qfunc.read(own, outputs=("a",))(-torch.ones(2, 3)).sum() == 0
    old = made([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"], opset=6)
    with pytest.raises(CaptureError, match="found operators of version 6, wanted a version from 7 to"):
        qfunc.read(old)


def test_the_command_takes_an_onnx_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from qfunc.__main__ import main

    onnx.save(network(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", input_1=values(8, 3, 9, 8))
    words = [
        "quantize",
        tmp_path / "net.onnx",
        "--target",
        "onnxruntime",
        "--data",
        tmp_path / "data.npz",
        "-o",
        tmp_path / "out",
    ]
    assert main([*map(str, words), "--batch", "4", "--no-latency", "--save", str(tmp_path / "saved")]) == 0
    text = capsys.readouterr().out
    assert "bit-exact: 0 of" in text
    assert "dB to the" in text
    words = ["deploy", tmp_path / "net.onnx", tmp_path / "saved", "-o", tmp_path / "again"]
    assert main(list(map(str, words))) == 0
    assert (tmp_path / "again/model.onnx").read_bytes() == (tmp_path / "out/model.onnx").read_bytes()


def test_a_size_is_never_minus_one() -> None:
    """As PyTorch exports expand: Where(shape == -1, 1, shape), for a shape of computed sizes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", "zero", "one"], ["batch"]),
        helper.make_node("Concat", ["batch", "three"], ["shape"], axis=0),
        helper.make_node("Equal", ["shape", "minus"], ["keeps"]),
        helper.make_node("Where", ["keeps", "ones", "shape"], ["wanted"]),
        helper.make_node("Expand", ["row", "wanted"], ["wide"]),
        helper.make_node("Add", ["x", "wide"], ["y"]),
    ]
    stored = {"zero": np.array([0]), "one": np.array([1]), "three": np.array([3]), "minus": np.array([-1, -1]),
              "ones": np.array([1, 1]), "row": values(1, 3)}  # fmt: skip
    model = made(nodes, {"x": ["n", 3]}, ["y", "wide"], stored)
    for count in (1, 2, 4):
        same(model, torch.randn(count, 3))
