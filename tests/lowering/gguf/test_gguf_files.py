"""The files of GgufLowering, read back by the package gguf and by their own bytes; what they cannot hold."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.functions import Fixed
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import edit
from qfunc.specs.formats import GGUF_Q4_1
from qfunc.targets.ggml.file import GgufTensor, gguf_file
from tests.lowering.gguf.test_ggml import calibrated

needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
X = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    """Two layers of blocks around one whose inputs 32 does not divide."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8, bias=False))


def deployed(kind: str) -> Any:
    """The files of the network."""
    target = targets.gguf(kind)
    return qfunc.deploy(target)(calibrated(network(), target, X)).files


@needs_gguf
@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1"])
def test_the_package_gguf_reads_the_weights(kind: str, tmp_path: Path) -> None:
    """Names, shapes, types, and values within half a step of the model's weights."""
    import gguf

    path = tmp_path / "model.gguf"
    path.write_bytes(deployed(kind)["model.gguf"])
    model = network()

    reader = gguf.GGUFReader(path)

    assert reader.fields["general.architecture"].contents() == "qfunc"
    assert [(t.name, t.tensor_type.name, t.shape.tolist()) for t in reader.tensors] == [
        ("0.weight", kind, [64, 20]), ("4.weight", kind, [32, 8])
    ]  # fmt: skip
    for tensor in reader.tensors:
        weight = model.get_parameter(tensor.name).detach().numpy()
        np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(weight, tensor.tensor_type))


def held(model: Any, name: str, network: nn.Module) -> np.ndarray[Any, Any]:
    """The values of a weight in the simulation."""
    quantizer = next(m for m in model.modules() if isinstance(m, FakeQuantize) and m.site.name == name)
    found: Tensor = quantizer(network.get_parameter(name))
    return found.detach().numpy()


class MulMat(OpRun):
    """x W^T in float64, with the weights of the file."""

    op_domain = "ggml"
    weights: dict[str, np.ndarray[Any, Any]] = {}

    def _run(self, x: Any, weight: str = "") -> tuple[Any]:
        return (np.asarray(x.astype(np.float64) @ self.weights[weight].T, np.float32),)


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1"])
def test_the_graph_computes_the_network_with_the_weights_of_the_file(kind: str) -> None:
    """ONNX's reference evaluator, with a product in float64: near the simulation, but for the codes of the inputs.

    Those move each input by at most 1/254 of its block's largest value.
    """
    target = targets.gguf(kind)
    model = calibrated(network(), target, X)
    graph = onnx.load_from_string(qfunc.deploy(target)(model).files["model.onnx"])
    MulMat.weights = {name: held(model, name, network()) for name in ("0.weight", "4.weight")}

    found: Any = ReferenceEvaluator(graph, new_ops=[MulMat]).run(None, {"input": X.numpy()})[0]

    assert [n.op_type for n in graph.graph.node] == ["MulMat", "Add", "Relu", "Gemm", "Relu", "MulMat"]
    assert np.abs(found - model(X).detach().numpy()).max() < 0.05
    assert {i.name for i in graph.graph.initializer} == {"0.bias", "2.weight", "2.bias"}


def test_a_file_by_its_bytes() -> None:
    """Header, values, a tensor's description and its data, each at a multiple of 32 bytes."""
    data = np.arange(68, dtype=np.uint8).reshape(2, 34)

    found = gguf_file({"a": "b", "n": 7}, [GgufTensor("w", 8, (2, 32), data)])

    head = b"GGUF" + b"".join(n.to_bytes(s, "little") for n, s in ((3, 4), (1, 8), (2, 8), (1, 8))) + b"a"
    head += b"".join(n.to_bytes(s, "little") for n, s in ((8, 4), (1, 8))) + b"b" + (1).to_bytes(8, "little") + b"n"
    head += b"".join(n.to_bytes(s, "little") for n, s in ((4, 4), (7, 4), (1, 8))) + b"w"
    head += b"".join(n.to_bytes(s, "little") for n, s in ((2, 4), (32, 8), (2, 8), (8, 4), (0, 8)))
    start = -(-len(head) // 32) * 32
    assert found == head.ljust(start, b"\0") + data.tobytes().ljust(96, b"\0")


def test_one_weight_of_two_layers_is_stored_once() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    second.weight = first.weight
    target = targets.gguf("Q8_0")
    files = qfunc.deploy(target)(calibrated(nn.Sequential(first, nn.ReLU(), second), target, X[:, :32])).files

    assert len(files["model.gguf"]) < 2 * 32 * 34
    assert [n.op_type for n in onnx.load_from_string(files["model.onnx"]).graph.node] == ["MulMat", "Relu", "MulMat"]


def test_a_name_that_ggml_does_not_read_is_refused() -> None:
    model = nn.Sequential(OrderedDict({"a" * 60: nn.Linear(32, 4)}))
    target = targets.gguf("Q8_0")
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(calibrated(model, target, X[:, :32]))
    assert str(caught.value) == (
        f"tensor '{'a' * 60}.weight': found a name of 67 bytes, wanted at most 63, as ggml reads. "
        "Nest the layer less deeply, or shorten the names of its modules."
    )


def test_a_scheme_that_the_file_does_not_have_is_refused() -> None:
    """An edit of the weights' bits, before anything is calibrated."""
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(edit.weights(bits=6)(targets.gguf("Q8_0")))(nn.Linear(32, 4))
    assert str(caught.value) == (
        "target 'gguf_q8_0', op 'linear', weight 'weight': found Int(6, low=-31) for GgufLowering(), wanted weights in Q8_0, "
        "as specs.formats.GGUF_Q8_0 describes them. Set it with edit.deploy(...), or edit the scheme."
    )


def test_the_kinds_are_eleven() -> None:
    """Mixes are for whole decoders."""
    with pytest.raises(SpecError) as caught:
        targets.gguf("Q4_K_M")
    assert str(caught.value) == (
        "gguf, kind: found 'Q4_K_M', wanted one of 'Q8_0', 'Q5_0', 'Q4_0', 'Q5_1', 'Q4_1', 'MXFP4', 'Q6_K', 'Q5_K', "
        "'Q4_K', 'Q3_K', 'Q2_K'. Choose one of them; a mix, such as Q4_K_M, is for a whole decoder: "
        "targets.gguf(kind, qfunc.targets.runtimes.decoder_config(model.config))."
    )


def test_layers_that_the_block_does_not_divide_stay_float() -> None:
    """64 inputs are no super-block of Q4_K: `explain` has a line, and `quantize` refuses a model without any other layer."""
    target, x = targets.gguf("Q4_K"), torch.randn(5, 256)
    model = calibrated(nn.Sequential(nn.Linear(256, 64), nn.Linear(64, 8)), target, x)
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(target)(nn.Linear(64, 8))

    lines = str(qfunc.explain(model)).splitlines()

    assert lines[-1].split(None, 2)[2] == ("rule 0 selects linear and in_features a multiple of 256; here in_features is 64")
    assert str(caught.value) == (
        "quantize: found a Linear in which the target quantizes nothing, wanted ops that it quantizes. Of op "
        "'linear': rule 0 selects linear and in_features a multiple of 256; here in_features is 64."
    )


def test_a_function_that_finds_no_minimums_is_refused() -> None:
    """An edit of the weights' function, before anything is calibrated."""
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(edit.weights(function=Fixed())(targets.gguf("Q4_1")))(nn.Linear(32, 4))
    assert str(caught.value) == (
        "target 'gguf_q4_1', op 'linear', weight 'weight': found Fixed(), wanted a function that finds the minimums and the "
        "integers of the scales of such a scheme. Use functions.GgmlBlocks(), or another scheme."
    )


def test_an_input_with_minimums_is_refused() -> None:
    """Only weights have them."""
    target = targets.gguf("Q4_1")
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(evolve(target, rules=(evolve(target.rules[0], input=GGUF_Q4_1),)))(nn.Linear(32, 4))
    assert str(caught.value) == (
        "target 'gguf_q4_1', op 'linear', input 'input': found minimums, wanted a scheme without minimums and integers of "
        "scales, which only weights have. Edit the rule."
    )


def test_the_bytes_hold_the_codes_of_the_simulation() -> None:
    """A row of Q4_0 is a float16 and 16 bytes, entry i and i + 16 in one; `test_gguf_blocks` compares the bytes with ggml's."""
    torch.manual_seed(0)
    layer, target = nn.Linear(32, 8, bias=False), targets.gguf("Q4_0")
    model = calibrated(layer, target, X[:, :32])

    content = qfunc.deploy(target)(model).files["model.gguf"]

    rows = np.frombuffer(content[-160:], np.uint8)[: 8 * 18].reshape(8, 18)
    scale, bytes_ = rows[:, :2].copy().view("<f2").astype(np.float32), rows[:, 2:]
    codes = np.concatenate([bytes_ & 15, bytes_ >> 4], -1).astype(np.float32) - 8
    np.testing.assert_array_equal(codes * scale, held(model, "weight", layer))
