"""TOSA: the file read back by its own bytes and by TOSA's reader, every op and whole networks against the reference model."""

from __future__ import annotations

import importlib
import importlib.util
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError, VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import FloatKernel, Kernel, Op, OpKind, Rule
from qfunc.targets.tosa.target import ACTIVATION, BYTES
from tests.conformance.modules import Apply
from tests.lowering.tflite.test_litert import Residual, _calibrated, _moved, _refusal
from tests.lowering.xnnpack.test_executorch import Reader

INSTALLED = importlib.util.find_spec("tosa_reference_model") is not None
needs_tosa = pytest.mark.skipif(not INSTALLED, reason="tosa-tools is not installed")
TARGET = targets.tosa
CONST, RESCALE = 67, 66  # tosa.fbs, Op


class Ops(nn.Module):
    """One image through ops of every arithmetic, side by side: each tensor of codes is compared by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.group, self.deep = nn.Conv2d(6, 6, 3, 2, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(6, 12, 3, groups=6)
        self.row, self.columns, self.up = nn.Linear(9, 5), nn.Linear(120, 7), nn.ConvTranspose2d(6, 4, 3, 2, 1, 1)
        self.register_buffer("matrix", torch.randn(9, 4, generator=torch.Generator().manual_seed(5)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 6, 8, 9] -> one tensor an op."""
        y = self.conv(x)
        z = F.relu6(self.deep(x))
        return (
            F.relu(self.group(x)), y - F.avg_pool2d(x, 2, 2, ceil_mode=True)[..., :5], x + x[..., :1], x * torch.tanh(x), z,
            self.row(x), x @ self.matrix, x @ x.transpose(2, 3), self.columns(y.flatten(1)), x.mean((2, 3)), x.mean(1),
            F.adaptive_avg_pool2d(z, 1), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            torch.cat([torch.sigmoid(x), x], 1)[:, 1::2], F.max_pool2d(y, 3, 2, 1), F.interpolate(y, scale_factor=2),
            F.interpolate(x, size=(11, 6), mode="bilinear"),
            F.interpolate(x, size=(5, 12), mode="bilinear", align_corners=True),
            F.conv2d(F.pad(y, (1, 0, 2, 1)), torch.ones(1, 6, 2, 2)), torch.clamp(x, -0.7, 0.9),
            F.pad(y, (1, 2, 2, 1), mode="reflect"), y[:, :1].expand(-1, 7, -1, -1), self.up(x), F.max_pool2d(y, 2),
        )  # fmt: skip


class Curves(nn.Module):
    """Functions of one tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One tensor a function."""
        return (
            torch.sigmoid(x), torch.tanh(x), F.hardswish(x), F.leaky_relu(x, 0.3), F.gelu(x), F.gelu(x, approximate="tanh"),
            F.elu(x, 0.7), F.hardsigmoid(x), F.softplus(x), F.mish(x),
            F.silu(x), x ** (x.dim() - 1),
        )  # fmt: skip


@needs_tosa
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("ops", "shape"), [(Ops, (2, 6, 8, 9)), (Curves, (2, 40, 7))])
def test_every_op_is_what_the_reference_model_computes(ops, shape, seed):
    torch.manual_seed(7)
    model, batches = _calibrated(ops(), TARGET, *shape, seed=seed)
    _moved(model, seed)
    report = qfunc.verify(TARGET)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units


@needs_tosa
def test_a_network_is_what_the_reference_model_computes(capfd):
    model, batches = _calibrated(Residual(), TARGET, 2, 3, 15, 14)
    report = qfunc.verify(TARGET)(model, [*batches, batches[0][:1]])
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units
    assert capfd.readouterr() == ("", "")  # the reference model warns of its version at every run


class Moves(nn.Module):
    """Moves of real values before the first quantizer and behind the last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(5, 4, 1, stride=2), nn.Linear(36, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, 5, 7] -> [N, 8, 4] and [N, 6]."""
        y = self.conv(x.permute(0, 2, 1, 3))
        return y.flatten(2).transpose(1, 2), self.head(F.pad(x, (0, 0, 0, 1))[:, :, ::2, ::2].flatten(1))


@needs_tosa
def test_moves_of_real_values_are_moves_of_codes():
    torch.manual_seed(1)
    model, batches = _calibrated(Moves(), TARGET, 2, 3, 5, 7)
    report = qfunc.verify(TARGET)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report


def block() -> tuple[object, object, Reader, dict[str, object]]:
    """(model, artifact, the file's block, what stands beside it) of a small network."""
    net = nn.Sequential(nn.Conv2d(3, 5, (3, 2)), nn.Flatten(), nn.Linear(5 * 4 * 6, 4))
    model, _ = _calibrated(net, TARGET, 2, 3, 6, 7)
    artifact = qfunc.deploy(TARGET)(model)
    assert artifact.files == qfunc.deploy(TARGET)(model).files
    file = artifact.files["model.tosa"]
    assert file[4:8] == b"TOSA"
    graph = Reader(file)
    version = graph.table(0)
    assert [version.value(i, "<i") for i in range(3)] == [1, 0, 0]
    (region,) = graph.tables(1)
    return model, artifact, region.tables(1)[0], json.loads(artifact.files["model.values.json"])


def texts(reader: Reader, slot: int) -> list[str]:
    """A vector of strings."""
    at = reader.place(slot) + reader.number("<I", reader.place(slot))
    places = [at + 4 + 4 * i for i in range(reader.number("<I", at))]
    return [text(reader, p) for p in places]


def text(reader: Reader, place: int) -> str:
    """The string that lies where a place points to."""
    at = place + reader.number("<I", place)
    return reader.data[at + 4 : at + 4 + reader.number("<I", at)].decode()


def test_the_file_holds_the_models_qparams_and_codes():
    model, artifact, held, values = block()
    named = {site["name"]: site for site in artifact.report["tensors"]}
    tensors = {text(t, t.place(0)): t for t in held.tables(2)}
    kinds = {3: "i1", 5: "<i4"}

    def data(name: str) -> Tensor:
        found = tensors[name]
        flat = np.frombuffer(found.vector(3, "u1").tobytes(), kinds[found.value(2)])
        return torch.from_numpy(flat.reshape(found.vector(1, "<i4")).astype(np.int64))

    steps = [(op.value(0), texts(op, 3), texts(op, 4)) for op in held.tables(1) if op.value(0) not in (CONST, 75)]
    assert [op for op, *_ in steps] == [61, 3, 66, 57, 57, 3, 66, 57]  # TRANSPOSE CONV2D RESCALE RESHAPE x 2 CONV2D ...
    for (_, given, _), (_, scaled, _), x, w, y in (
        (steps[1], steps[2], "input", "0.weight", "0"), (steps[5], steps[6], "0", "2.weight", "2")
    ):  # fmt: skip
        assert data(given[3]).tolist() == [named[x]["zero_point"][0]]
        assert data(given[4]).tolist() == [0]
        assert data(scaled[4]).tolist() == [named[y]["zero_point"][0]]
        wanted = np.array(named[w]["scale"]) * named[x]["scale"][0] / named[y]["scale"][0]
        m, e = data(scaled[1]).numpy(), data(scaled[2]).numpy()
        assert ((m >= 2**30) & (m < 2**31)).all()
        assert (np.abs(m * 2.0**-e - wanted) <= 2.0**-e / 2).all()  # the nearest of 31 bits
    ends = [(e["scale"], e["zero_point"]) for e in (*values["inputs"], *values["outputs"])]
    assert ends == [(named[n]["scale"][0], named[n]["zero_point"][0]) for n in ("input", "2")]
    exact = {seat.path: seat.module for seat in quantizer_nodes(model)}
    wanted, _ = exact["quantizers.0.weight"].export(model.get_parameter("0.weight"))
    assert torch.equal(data(steps[1][1][1]).permute(0, 3, 1, 2), wanted.long())
    wanted, _ = exact["quantizers.2.weight"].export(model.get_parameter("2.weight"))
    assert torch.equal(data(steps[5][1][1]).reshape(4, 4, 6, 5).permute(0, 3, 1, 2).flatten(1), wanted.long())
    wanted, _ = exact["quantizers.0.bias"].export(model.get_parameter("0.bias"))
    assert torch.equal(data(steps[1][1][2]), wanted.long())
    assert [texts(held, 3), texts(held, 4)] == [[values["inputs"][0]["tensor"]], [values["outputs"][0]["tensor"]]]


@needs_tosa
def test_the_reader_of_tosa_finds_the_same():
    _, artifact, held, _ = block()
    graph = importlib.import_module("tosa.TosaGraph").TosaGraph.GetRootAs(artifact.files["model.tosa"])
    theirs = graph.Regions(0).Blocks(0)
    found = {t.Name().decode(): (t.Type(), t.ShapeAsNumpy().tolist(), bytes(t.DataAsNumpy() if t.DataLength() else b""))
             for t in (theirs.Tensors(i) for i in range(theirs.TensorsLength()))}  # fmt: skip
    mine = {
        text(t, t.place(0)): (
            t.value(2),
            t.vector(1, "<i4").tolist(),
            t.vector(3, "u1").tobytes() if t.place(3) else b"",
        )
        for t in held.tables(2)
    }
    assert found == mine
    ops = [theirs.Operators(i) for i in range(theirs.OperatorsLength())]
    assert [(o.Op(), o.AttributeType()) for o in ops] == [(o.value(0), o.value(1, "<B")) for o in held.tables(1)]


class TwoScales(nn.Module):
    """An input whose part is quantized before the whole, with other scales."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, 9, 8] -> [N, 9, 8]."""
        a, b = x.chunk(2, -1)
        return x * 0.3 + torch.cat((-3 * b, a), -1)


@needs_tosa
def test_codes_of_the_same_values_at_two_scales_are_told_apart():
    model, batches = _calibrated(TwoScales(), TARGET, 2, 9, 8)
    report = qfunc.verify(TARGET)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: nn.LogSoftmax(-1), (2, 5),
         "target 'tosa', op 'log_softmax': found the kind 'log_softmax', wanted an op that it runs: TOSA 1.0, profile PRO-INT, "
         "has no such operator on integers, or not with these attributes. Remove it from the end of the model: the largest "
         "logit is the same."),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.LocalResponseNorm(2)), (2, 3, 5, 4),
         "target 'tosa', op '1': found the kind 'local_response_norm', wanted an op that it runs: TOSA 1.0, profile PRO-INT, "
         "has no such operator on integers, or not with these attributes. Compute it outside the deployed model, or "
         "deploy Q/DQ ONNX by edit.deploy(QdqLowering())."),
        (lambda: Apply(lambda x: x + x.long().float()), (2, 3, 5),
         "target 'tosa', op 'long'; op 'float': found the kind 'cast', wanted an op that it runs: TOSA 1.0, "
         "profile PRO-INT, has no such operator on integers, or not with these attributes. Compute it outside the deployed "
         "model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."),
        (lambda: nn.Softplus(2.0), (2, 3, 5),
         "target 'tosa', op 'softplus': found the kind 'softplus' with beta=2.0, threshold=20.0, wanted an op that it runs: "
         "TOSA 1.0, profile PRO-INT, has no such operator on integers, or not with these attributes. Use nn.Softplus()."),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_by_quantize(make, shape, message):
    with pytest.raises(SpecError) as caught:
        _calibrated(make(), TARGET, *shape)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: Apply(lambda x: x @ x[:, :1].transpose(2, 3)), (2, 3, 5, 4),
         "tensor 'matmul.codes': found factors of shapes (3, 5, 4) and (1, 4, 5), wanted equal batch axes. Expand the "
         "smaller factor to the batch axes of the other, or multiply by a constant matrix."),
        (lambda: Apply(lambda x: (x.flatten(1), torch.tanh(x))), (2, 3, 4),
         "tensor 'x': found real values, wanted codes on both sides: the profile PRO-INT has integers only. Quantize the "
         "inputs and the output of the op, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_by_deploy(make, shape, message):
    assert _refusal(make(), TARGET, *shape) == message


def test_sums_beyond_what_a_rescale_takes_are_refused():
    model, _ = _calibrated(nn.Linear(6, 4), TARGET, 2, 6)
    [*(s for s in quantizer_nodes(model) if not s.module.site.constant)][-1].module.scale.fill_(1e-9)
    with pytest.raises(DeployError, match=r"wanted sums of int32, below 2\^\(shift - 1\)\. Calibrate on inputs"):
        qfunc.deploy(TARGET)(model)


@needs_tosa
def test_outputs_whose_products_are_below_a_code_are_their_biases():
    """Their multiplier is 0, and RESCALE still checks the sums by the shift."""
    net = nn.Conv2d(2, 3, 1)
    with torch.no_grad():
        net.weight.mul_(torch.tensor([1.0, 1e-10, 1e-12])[:, None, None, None])
        net.bias.copy_(torch.tensor([1.0, 1.0, -1.0]) * 1e-3)
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(net))
    assert qfunc.verify(TARGET)(model, [x, 1e8 * x]).verdict.startswith("bit-exact: 0 of")


@pytest.mark.skipif(INSTALLED, reason="tosa-tools is installed")
def test_the_extra_is_named_where_it_is_missing():
    model, batches = _calibrated(nn.Linear(6, 4), TARGET, 2, 6)
    with pytest.raises(VerifyError, match=r"tosa-tools is not installed.*Install qfunc-torch\[tosa\]"):
        qfunc.verify(TARGET)(model, batches)


@fx.wrap
def mine(x):
    return F.leaky_relu(x)


@needs_tosa
def test_an_op_of_the_user_is_the_op_that_it_behaves_like():
    op = OpKind("mine", f"{__name__}.mine", behaves_like="leaky_relu")
    rule, kernel = Rule(Op("mine"), input=ACTIVATION, output=ACTIVATION), Kernel(Op("mine"), FloatKernel(), formats=BYTES)
    base = targets.tosa
    target = evolve(base, ops=(op,), rules=(*base.rules, rule), kernels=(kernel, *base.kernels))
    x = torch.randn(2, 3, 5, 5)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Apply(_mine, nn.Conv2d(3, 4, 3)).eval()))
    assert qfunc.verify(target)(calibrated, [x]).agreement.startswith("bit-exact: 0 of")


def _mine(x, layer):
    return mine(layer(x))


class Token(nn.Module):
    """A class token before the tokens of an image, and numbers that capture reads from the rank."""

    def __init__(self):
        super().__init__()
        self.conv, self.token, self.head = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 5)

    def forward(self, x):
        y = self.conv(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1)
        return self.head(y[:, 0] * y.dim())


@needs_tosa
@pytest.mark.parametrize("export", [False, True])
def test_a_constant_that_is_moved_and_joined_is_written_as_codes(export):
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    quantized = qfunc.quantize(targets.tosa, (x,) if export else None)(Token().eval())
    report = qfunc.verify(targets.tosa)(qfunc.calibrate([x], progress=False)(quantized), [x])
    assert report.agreement.startswith("bit-exact: 0 of"), report
