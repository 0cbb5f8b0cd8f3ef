"""ExecuTorch by XNNPACK: the file read back by its own bytes, and every op and whole networks against the runtime."""

from __future__ import annotations

import importlib.util
import struct

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError, VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.targets.runtimes import ExecuTorchRunner
from tests.lowering.tflite.test_litert import Ops, Residual, _calibrated, _moved, _refusal
from tests.on_integers import on_integers

INSTALLED = importlib.util.find_spec("executorch") is not None
needs_executorch = pytest.mark.skipif(not INSTALLED, reason="executorch is not installed")
TARGET = on_integers(targets.executorch_xnnpack)


class Steps(nn.Module):
    """Ops whose form here is not that of LiteRT."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 6, 8, 9] -> one tensor an op."""
        y = F.hardswish(x)
        return (
            F.avg_pool2d(x, (5, 4), (2, 1), (2, 1)), F.avg_pool2d(y, 2, 2, ceil_mode=True), F.avg_pool2d(x, (2, 3)),
            F.avg_pool2d(y, 3, 2, 1, count_include_pad=False), F.adaptive_avg_pool2d(x, (4, 3)), F.avg_pool2d(y, (8, 9)),
            x @ y.transpose(2, 3), F.softmax(y, -1), torch.cat([x, y, x, y, x, y, x], 2)[:, :, 3:40],
            F.interpolate(y, scale_factor=(3.0, 1.0)), y[:, :1].expand(-1, 7, -1, -1),
            F.max_pool2d(y, (3, 2), 2, (1, 0)), y[:, 1::4, ::2, 2:8:3], y[..., ::2],
        )  # fmt: skip


@needs_executorch
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("ops", [Ops, Steps])
def test_every_op_is_what_xnnpack_computes(ops, seed):
    torch.manual_seed(7)
    model, batches = _calibrated(ops(), TARGET, 2, 6, 8, 9, seed=seed)
    _moved(model, seed)
    report = qfunc.verify(TARGET, ExecuTorchRunner())(model, batches)
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units


@needs_executorch
def test_a_network_is_what_xnnpack_computes():
    model, batches = _calibrated(Residual(), TARGET, 2, 3, 15, 14)
    report = qfunc.verify(TARGET, ExecuTorchRunner())(model, [*batches, batches[0][:1]])
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units


class Reader:
    """A flatbuffer read by the rules of its format alone: offsets, tables of fields, vectors."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self.data = data
        self.at = self.number("<I", 0) if at is None else at
        self.slots = self.at - self.number("<i", self.at)

    def number(self, kind: str, at: int):
        return struct.unpack_from(kind, self.data, at)[0]

    def place(self, slot: int) -> int:
        """Where a field lies, or 0."""
        size = self.number("<H", self.slots)
        offset = self.number("<H", self.slots + 4 + 2 * slot) if 4 + 2 * slot < size else 0
        return self.at + offset if offset else 0

    def value(self, slot: int, kind: str = "<I"):
        return self.number(kind, self.place(slot)) if self.place(slot) else 0

    def table(self, slot: int) -> Reader:
        return Reader(self.data, self.place(slot) + self.number("<I", self.place(slot)))

    def vector(self, slot: int, kind: str) -> np.ndarray:
        at = self.place(slot) + self.number("<I", self.place(slot))
        return np.frombuffer(self.data, kind, self.number("<I", at), at + 4)

    def tables(self, slot: int) -> list[Reader]:
        at = self.place(slot) + self.number("<I", self.place(slot))
        places = [at + 4 + 4 * i for i in range(self.number("<I", at))]
        return [Reader(self.data, p + self.number("<I", p)) for p in places]


def test_the_file_holds_the_models_qparams_and_codes():
    model, _ = _calibrated(nn.Sequential(nn.Conv2d(3, 5, (3, 2)), nn.Flatten(), nn.Linear(5 * 4 * 6, 4)), TARGET, 2, 3, 6, 7)
    artifact = qfunc.deploy(TARGET)(model)
    assert artifact.files == qfunc.deploy(TARGET)(model).files
    file = artifact.files["model.pte"]
    assert file[4:8] == b"ET12"
    plan = Reader(file).tables(1)[0]  # schema/program.fbs: execution_plan
    tensors = [value.table(1) for value in plan.tables(2)]
    assert [t.vector(2, "<i4").tolist() for t in tensors] == [[1, 3, 6, 7], [1, 4]]
    held = Reader(file).tables(3)[0].vector(0, "u1").tobytes()  # backend_delegate_data
    magic, size, start, length, constants, total = struct.unpack("<4x4sHIIIQ", held[:30])
    assert (magic, size, len(held)) == (b"XH00", 30, constants + total)
    graph = Reader(held[start : start + length])
    assert [node.value(0, "<B") for node in graph.tables(1)] == [18, 5, 7, 20, 2, 18]
    places = [(p.value(0, "<Q"), p.value(1, "<Q")) for p in graph.tables(8)]
    named = {site["name"]: site for site in artifact.report["tensors"]}
    found: dict[tuple[float, ...], Reader] = {}
    for value in graph.tables(2):
        if value.value(0, "<B") == 2:  # XNNQuantizedTensorValue, by channel or by tensor
            shared = value.table(1).table(2)
            each = value.table(1).value(1, "<B") == 1
            scale = shared.vector(0, "<f4").tolist() if each else [shared.value(0, "<f")]
            found[tuple(scale)] = value.table(1)

    def codes(site: str, kind: str) -> Tensor:
        value = found[tuple(named[site]["scale"])]
        offset, size = places[value.table(0).value(3)]
        flat = np.frombuffer(held, kind, size // np.dtype(kind).itemsize, constants + offset)
        return torch.from_numpy(flat.reshape(value.table(0).vector(2, "<u4")).astype(np.int64))

    zeros = {site: found[tuple(named[site]["scale"])].table(2).value(1, "<i") for site in ("input", "0", "2")}
    assert zeros == {site: named[site]["zero_point"][0] for site in zeros}
    assert any(zeros.values())
    exact = {seat.path: seat.module for seat in quantizer_nodes(model)}
    wanted, _ = exact["quantizers.0.weight"].export(model.get_parameter("0.weight"))
    assert torch.equal(codes("0.weight", "i1").permute(0, 3, 1, 2), wanted.long())
    wanted, _ = exact["quantizers.2.weight"].export(model.get_parameter("2.weight"))
    assert torch.equal(codes("2.weight", "i1").reshape(4, 4, 6, 5).permute(0, 3, 1, 2).flatten(1), wanted.long())
    assert codes("0.bias", "<i4").shape == (5,)


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(3, 2, 1, ceil_mode=True)), (1, 3, 6, 6),
         "op '1': found windows of (3, 3) entries beyond a padding by (1, 1) that is counted, wanted windows inside of the "
         "padding. Use count_include_pad=False or ceil_mode=False."),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused(make, shape, message):
    assert _refusal(make(), TARGET, *shape) == message


ALONE = "To simulate it without a file, use attrs.evolve(target, lowering=None)."
NO_NODE = "ExecuTorch 1.5, backends/xnnpack/serialization/schema.fbs: no such node, or not in that form. "


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Conv3d(2, 3, 2),
         "op 'conv3d': found the kind 'conv' with spatial=3, wanted an op that it runs: XNNPACK, xnnpack.h: convolutions and "
         "pools take tensors of four axes, channels last. Slide along one or two axes."),
        (nn.Upsample((7, 9), mode="bicubic"),
         "op 'interpolate': found the kind 'resize' with mode='bicubic', wanted an op that XnnpackLowering() writes: "
         f"{NO_NODE}Use mode='nearest' or mode='bilinear'. {ALONE}"),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_xnnpack_does_not_run_is_refused_at_once(model, message):
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(TARGET)(model)
    assert str(caught.value) == f"target 'executorch_xnnpack', {message}"


class Norm(nn.Module):
    """A norm and curves that XNNPACK computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """[N, L, 6] -> [N, L, 5]."""
        return self.last(F.hardsigmoid(self.norm(F.silu(self.first(x)))))


@needs_executorch
def test_what_has_no_codes_is_computed_in_float():
    model, batches = _calibrated(Norm(), TARGET, 3, 7, 6)
    report = qfunc.verify(TARGET, ExecuTorchRunner())(model, batches)
    # Norms, logistic functions and sums of float32 differ in their last bits: one code of the layer behind may flip.
    assert report.mismatches <= 2, report
    assert {name for name, _ in report.float_units} == {"norm", "hardsigmoid"}


@needs_executorch
def test_a_file_that_executorch_does_not_load_is_told():
    file = qfunc.deploy(TARGET)(_calibrated(nn.Linear(6, 4), TARGET, 2, 6)[0]).files["model.pte"]
    with pytest.raises(VerifyError, match="wanted a graph that XNNPACK accepts"):
        ExecuTorchRunner().session(file.replace(b"XnnpackBackend", b"AnotherBackend"))


@pytest.mark.skipif(INSTALLED, reason="executorch is installed")
def test_the_extra_is_named_where_it_is_missing():
    model, batches = _calibrated(nn.Linear(6, 4), TARGET, 2, 6)
    with pytest.raises(VerifyError, match=r"executorch is not installed.*Install qfunc-torch\[executorch\]"):
        qfunc.verify(TARGET)(model, batches)
