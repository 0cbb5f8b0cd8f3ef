"""Transformers that torch.export captured: calibrated on one sequence, run on others, in ONNX Runtime too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import onnx
import pytest
import torch
from networks.exported import Decoder, Encoder
from torch import Tensor, nn

import qfunc
from qfunc.errors import DeployError
from qfunc.graph.data_movement import commutes
from qfunc.graph.dtypes import position_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import slots
from qfunc.placement.partition import Partition
from qfunc.specs import edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
TARGET = ONNXRUNTIME
MODELS = {"encoder": Encoder, "decoder": Decoder}


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    """Each row after the first is shorter by one."""
    generator = torch.Generator().manual_seed(100 * batch + length)
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(batch):
        mask[row, max(2, length - row) :] = 0
    return {"input_ids": torch.randint(0, 13, (batch, length), generator=generator), "attention_mask": mask}


def program(model: nn.Module) -> torch.export.ExportedProgram:
    both = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    given = tokens(2, 7)
    return torch.export.export(model, (), given, dynamic_shapes=dict.fromkeys(given, both), strict=False)


@cache
def made(name: str) -> tuple[nn.Module, Any, Any]:
    """(model, simulation, artifact), calibrated with batches of one sequence."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    calibrated = qfunc.calibrate([tokens(1, t) for t in (6, 9, 12)], progress=False)(qfunc.quantize(TARGET)(program(model)))
    return model, calibrated, qfunc.deploy(TARGET)(calibrated)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double().flatten(), b.double().flatten(), 0))


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_other_batches_and_lengths_in_the_simulation_and_in_the_runtime(name: str) -> None:
    model, calibrated, artifact = made(name)
    session = OnnxRuntimeRunner(optimise=False).session(artifact.files["model.onnx"])
    for batch, length in ((1, 9), (3, 6), (8, 12), (2, 17)):
        given = tokens(batch, length)
        with torch.no_grad():
            real, simulated = model(**given), calibrated(**given)
        assert list(simulated) == list(real)
        for word, ran in zip(simulated, session.run(list(given.values())), strict=True):
            assert ran.shape == real[word].shape
            # Both compute the same formulas in float32; a code may flip where the order of a sum differs.
            assert cosine(torch.from_numpy(ran), simulated[word]) >= 0.9999
            assert cosine(simulated[word], real[word]) >= 0.99  # 8 bits on sums of 16 terms


@pytest.mark.parametrize("name", MODELS)
def test_every_product_is_quantized_and_no_position_or_mask_is(name: str) -> None:
    _, calibrated, _ = made(name)
    partition = Partition(QuantizedModel(calibrated), TARGET)
    positions = position_nodes(partition.network)
    products = [n for n in partition.network.graph.nodes if partition.context.kind(n) in ("linear", "matmul")]
    data = [n for n in products if n not in positions]
    assert len(data) == {"encoder": 9, "decoder": 10}[name]
    for node in data:
        assert all(partition.encoding(p, node) is not None for s, p in slots(node) if s in ("input", "weight")), node.name
    for node in positions:  # what only moves them may stand behind the quantizer of their reader
        if not commutes(node, partition.context, TARGET):
            assert not any(partition.encoding(p, node) for _, p in slots(node)), node.name


def inputs_and_outputs(model: onnx.ModelProto) -> Iterator[tuple[str, list[Any]]]:
    for value in (*model.graph.input, *model.graph.output):
        yield value.name, [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def test_axes_that_vary_have_names_in_the_artifact() -> None:
    _, _, artifact = made("encoder")
    found = dict(inputs_and_outputs(onnx.load_from_string(artifact.files["model.onnx"])))
    assert found["input_ids"] == ["batch", "input_ids_1"] == found["attention_mask"]
    assert sorted(map(len, found.values())) == [2, 2, 2, 3]
    assert [d for d in found.values() if len(d) == 3] == [["batch", "input_ids_1", 16]]


class Rows(nn.Module):
    """A linear layer on all positions of all examples: as many rows as both axes together."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).flatten(0, 1)


def test_an_axis_that_is_neither_of_two_has_a_name_of_its_own() -> None:
    x, axes = torch.randn(2, 6, 8), {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    exported = torch.export.export(Rows().eval(), (x,), dynamic_shapes=(axes,), strict=False)
    artifact = qfunc.deploy(TARGET)(qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(exported)))
    (_, given), (name, returned) = inputs_and_outputs(onnx.load_from_string(artifact.files["model.onnx"]))
    assert (given, returned) == (["batch", "x_1", 8], [f"{name}_0", 4])


def test_a_tied_table_stays_one_and_its_head_is_quantized() -> None:
    model, calibrated, _ = made("decoder")
    tables = [p for p in calibrated.parameters() if p.shape == model.word.weight.shape]
    assert len(tables) == 1
    assert torch.equal(tables[0], model.word.weight)
    network = Partition(QuantizedModel(calibrated), TARGET).network
    read = {n.target: {u.name for u in n.users} for n in network.graph.nodes if n.op == "get_attr"}
    assert {"word", "head"} in read.values()
    assert [s.slot for s in qfunc.explain(calibrated).sites if s.tensor == "word.weight"] == ["weight"]


def test_bfloat16_is_simulated_and_not_deployed() -> None:
    torch.manual_seed(0)
    model = Decoder().bfloat16().eval()
    calibrated = qfunc.calibrate([tokens(1, 9)], progress=False)(qfunc.quantize(TARGET)(program(model)))
    with torch.no_grad():
        real, simulated = model(**tokens(3, 6))["logits"], calibrated(**tokens(3, 6))["logits"]
    assert simulated.dtype == torch.bfloat16
    assert cosine(simulated, real) >= 0.99
    with pytest.raises(DeployError, match="found bfloat16, wanted float32"):
        qfunc.deploy(TARGET)(calibrated)


class Masked(nn.Module):
    """Attention written out, with the mask of BERT: -10000 where a token is none."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        scores = scores + (1.0 - mask.to(x.dtype))[:, None, :] * -10000.0
        return scores.softmax(-1) @ self.v(x)


@pytest.mark.parametrize("road", ["fx", "export"])
def test_a_mask_that_is_added_is_in_no_scale(road: str) -> None:
    torch.manual_seed(1)
    model, x = Masked().eval(), torch.randn(4, 6, 8)
    mask = torch.arange(6)[None] < torch.tensor([6, 5, 3, 2])[:, None]
    quantized = qfunc.quantize(TARGET, (x, mask) if road == "export" else None)(model)
    calibrated = qfunc.calibrate([(x, mask)], progress=False)(quantized)
    explained = qfunc.explain(calibrated)
    if road == "export":  # which knows that the mask is of booleans
        assert max(float(s.scale) for s in explained.sites if "to" not in s.scale) < 0.1  # 10000 / 255 is 39
    assert [f.kind for f in explained.floats if f.op.startswith("add")] == ["mask"]
    with torch.no_grad():
        assert cosine(calibrated(x, mask), model(x, mask)) >= 0.999
    ran = OnnxRuntimeRunner(optimise=False).run(qfunc.deploy(TARGET)(calibrated), (x, mask))
    assert cosine(torch.from_numpy(ran[0]), calibrated(x, mask)) >= 0.9999


class Heads(nn.Module):
    """Attention with two heads, whose shapes are computed from the sizes of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, channels = x.shape
        q, k, v = (f(x).view(batch, length, 2, channels // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(mask.view(batch, 1, 1, length) == 0, -1e4)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, channels)


def test_one_example_is_enough_for_any_batch() -> None:
    torch.manual_seed(1)
    model, x, mask = Heads().eval(), torch.randn(1, 6, 8), torch.ones(1, 6)
    calibrated = qfunc.calibrate([(x, mask)], progress=False)(qfunc.quantize(TARGET, (x, mask))(model))
    session = OnnxRuntimeRunner(optimise=False).session(qfunc.deploy(TARGET)(calibrated).files["model.onnx"])
    for batch in (1, 3):
        given = x.expand(batch, 6, 8).contiguous(), mask.expand(batch, 6).contiguous()
        assert cosine(torch.from_numpy(session.run(given)[0]), calibrated(*given)) >= 0.9999


def test_an_own_edit_may_still_name_masks() -> None:
    target = edit.pipe(TARGET, edit.skip(edit.op("softmax")))
    model = qfunc.quantize(target)(Masked().eval())
    assert not [s for s in qfunc.explain(model).sites if s.op == "softmax" and s.slot == "input"]
