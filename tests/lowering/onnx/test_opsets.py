"""The opset of an artifact: what the lowering says is written, checked by ONNX and run by ONNX Runtime."""

import onnx
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.lowering import QdqLowering
from qfunc.specs import PerTensor, edit
from qfunc.targets.runtimes import NnieLowering, OnnxRuntimeRunner, SnpeEncodings

LEGACY = targets.snpe, targets.tengine_u8, targets.onnx_qnn, targets.ppl_cuda, targets.ppl_w8a16, targets.nnie


class Every(nn.Module):
    """Ops whose ONNX form has changed since opset 13."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(2, 4, 3, padding=1), nn.Upsample(scale_factor=2)
        self.pool, self.fc = nn.AvgPool2d(2, ceil_mode=True), nn.Linear(6, 5)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        """Scores."""
        left, right = self.conv(x).relu().split((1, 3), dim=1)
        x = torch.cat([left, right, nn.functional.pad(left * right[:, :1], (1, 1, 1, 1))[:, :, 1:-1, 1:-1], left], 1)
        x = self.norm(torch.clamp(self.pool(self.up(x)), 0.0, 6.0))
        return torch.softmax(self.fc(x.mean((2, 3))), -1), x.transpose(2, 3).mean(1), x.sum((1, 2))


class Lower(nn.Module):
    def forward(self, x):
        """A triangle."""
        return torch.tril(x)


class Sample(nn.Module):
    def forward(self, x):
        """Values at the points that the input gives."""
        return nn.functional.grid_sample(x, x[:, :, :, :2].permute(0, 2, 3, 1), align_corners=False)


class Tupled(nn.Module):
    def forward(self, x):
        """A tuple, as `loads` expects."""
        return (x,)


class Plain(nn.Module):
    """What every chip runs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.Linear(80, 5)

    def forward(self, x):
        """Scores."""
        return self.fc(torch.flatten(self.pool(self.conv(x).relu()), 1))


def deployed(target, net, x):
    """The artifact, and the simulation's outputs."""
    torch.manual_seed(0)
    model = qfunc.calibrate([x])(qfunc.quantize(target)(net.eval()))
    return qfunc.deploy(target)(model).files["model.onnx"], model.eval()(x)


def loads(opset, target=targets.qdq, net=None):
    """Whether the artifact of an opset is ONNX, says so, and computes what the simulation does."""
    torch.manual_seed(3)
    x = torch.randn(2, 2, 7, 9)
    data, simulated = deployed(edit.pipe(target, edit.deploy(QdqLowering(opset=opset))), net or Every(), x)
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    got = OnnxRuntimeRunner(optimise=False).session(data).run([x])
    for a, b in zip(got, simulated, strict=True):
        # float32 sums in another order may move single codes: one step of the coarsest tensor, 6 / 127, is far above
        # what that leaves in a mean, and far below what a wrong op would.
        assert torch.allclose(torch.from_numpy(a), b, atol=0.05)
    return {o.domain: o.version for o in model.opset_import}, model.ir_version


# Source: ONNX, docs/Versioning.md: the IR version that came with each opset.
IR = {13: 7, 14: 7, 15: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}


@pytest.mark.parametrize("opset", IR)
def test_the_artifact_has_the_opset_that_the_lowering_names(opset):
    imports, ir_version = loads(opset)
    assert imports[""] == opset
    assert ir_version == IR[opset]


def test_without_a_word_it_is_21():
    data, _ = deployed(targets.tensorrt, Every(), torch.randn(2, 2, 7, 9))
    assert onnx.load_from_string(data).opset_import[0].version == 21


def test_functions_of_the_model_follow_its_opset():
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x):
            return (self.conv(x),)

    imports, ir_version = loads(13, targets.nnie, Small())
    assert imports[""] == 13
    assert ir_version == 8  # the first with functions
    data, _ = deployed(edit.pipe(targets.nnie, edit.deploy(QdqLowering(opset=13))), Small(), torch.randn(2, 2, 7, 9))
    versions = {o.version for f in onnx.load_from_string(data).functions for o in f.opset_import if o.domain == ""}
    assert versions == {13}


class Older(nn.Module):
    """Ops whose form or name differs in opsets before 13, and ops that these opsets lack."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(2, 4, 3, padding=1), nn.Upsample(scale_factor=2)
        self.acts = nn.Sequential(nn.Hardswish(), nn.Mish(), nn.GELU(), nn.GELU("tanh"), nn.ReLU6())
        self.norm, self.plain, self.fc = nn.LayerNorm(18), nn.LayerNorm((14, 18), bias=False), nn.Linear(18, 5)

    def forward(self, x):
        """Several outputs, so that no op hides another's error."""
        x = self.up(self.acts(self.conv(x)))
        left, right = x.split((1, 3), dim=1)
        gates = torch.softmax(x, 1), torch.log_softmax(x, 2), torch.softmax(x, -1)
        padded = nn.functional.pad(left.squeeze(1).unsqueeze(2) - 1, (2, 1, 0, 0), value=0.5)
        compared = torch.where(right >= 0.1, right, torch.where(right <= -0.1, -right, right * 3))
        return self.fc(self.norm(x)), self.plain(x), x.sum((1, 3)), sum(gates), padded, compared, x.clamp(min=0.2).max(3).values


PER_TENSOR = edit.weights(granularity=PerTensor())(targets.qdq)


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_opsets_from_11_on_are_written_checked_and_run(opset):
    imports, ir_version = loads(opset, PER_TENSOR, Older())
    assert imports == {"": opset}
    assert ir_version == {11: 6, 12: 7, 13: 7}[opset]
    assert loads(opset, PER_TENSOR)[0] == {"": opset}


def test_older_forms_compute_the_same_numbers():
    """ONNX Runtime on opsets 21 and 11: float32 sums in another order, without quantizers."""
    torch.manual_seed(0)
    net, x = Older().eval(), torch.randn(2, 2, 7, 9)
    weights = edit.pipe(targets.snpe, edit.skip(edit.op("softmax", "conv", "linear", "resize", "add", "mul", "sub")))
    results = []
    for opset in (21, 11):
        target = edit.deploy(SnpeEncodings(opset=opset))(weights)
        artifact = qfunc.deploy(target)(qfunc.calibrate([x])(qfunc.quantize(target)(net)))
        results.append(OnnxRuntimeRunner(optimise=False).session(artifact.files["model.onnx"]).run([x]))
    for new, old in zip(*results, strict=True):
        assert torch.allclose(torch.from_numpy(new), torch.from_numpy(old), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", [t.name for t in LEGACY])
def test_the_legacy_targets_write_the_opset_of_their_tools(target):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 7, 9)
    data, _ = deployed(getattr(targets, target), Plain(), x)
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    wanted = {"onnx_qnn": (13, 7)}.get(target, (11, 6))  # TVM's has a MaxPool of codes, which came with opset 12
    assert (next(o.version for o in model.opset_import if not o.domain), model.ir_version) == wanted
    assert len(OnnxRuntimeRunner(optimise=False).session(data).run([x])) == 1


def test_the_ir_version_is_that_of_the_lowering():
    x = torch.randn(2, 2, 7, 9)
    for lowering, wanted in ((SnpeEncodings(ir_version=4), 4), (SnpeEncodings(opset=21, ir_version=8), 8)):
        data, _ = deployed(edit.deploy(lowering)(targets.snpe), Plain(), x)
        assert onnx.load_from_string(data).ir_version == wanted
        OnnxRuntimeRunner(optimise=False).session(data).run([x])
    with pytest.raises(SpecError) as e:
        SnpeEncodings(ir_version=3)
    assert str(e.value) == "SnpeEncodings.ir_version: found 3, wanted an int in [4, 13] or None. Give such a number."
    with pytest.raises(DeployError) as refused:
        deployed(
            edit.deploy(NnieLowering(ir_version=7))(targets.nnie),
            nn.Sequential(nn.Conv2d(2, 2, 1), nn.Upsample(scale_factor=2)),
            x,
        )
    assert str(refused.value) == (
        "NnieLowering.ir_version: found 7 with functions, wanted IR version 8 or later. Write NnieLowering(ir_version=8), or "
        "leave it out."
    )


def test_ops_that_opset_11_lacks_are_refused_by_name():
    net, x = nn.Sequential(nn.Conv2d(2, 2, 1), nn.CELU()), torch.randn(2, 2, 7, 9)
    with pytest.raises(DeployError) as e:
        deployed(edit.pipe(PER_TENSOR, edit.deploy(QdqLowering(opset=11))), net, x)
    assert str(e.value) == (
        "op '1': found Celu in opset 11, wanted an operator of opset 11. Deploy by a later opset: "
        "edit.deploy(QdqLowering(opset=13))."
    )
    loads(12, PER_TENSOR, nn.Sequential(nn.Conv2d(2, 2, 1), nn.CELU(), Tupled()))


def test_scales_per_channel_are_refused_before_opset_13():
    with pytest.raises(SpecError) as e:
        qfunc.quantize(edit.deploy(QdqLowering(opset=12))(targets.qdq))(Plain())
    assert "QdqLowering(opset=13): QuantizeLinear has scales per channel from opset 13 on (ONNX operators)" in str(e.value)


@pytest.mark.parametrize(
    ("act", "op", "since"),
    [(Lower(), "Trilu", 14), (Sample(), "GridSample", 16), (nn.GroupNorm(2, 2), "GroupNormalization", 21)],
    ids=lambda v: str(v),
)  # fmt: skip
def test_an_op_later_than_the_opset_is_refused_by_name(act, op, since):
    net, x = nn.Sequential(nn.Conv2d(2, 2, 1), act), torch.randn(2, 2, 7, 9)
    with pytest.raises(DeployError) as e:
        deployed(edit.pipe(targets.qdq, edit.deploy(QdqLowering(opset=since - 1))), net, x)
    assert str(e.value).replace("1.tril", "1").replace("1.grid_sample", "1") == (
        f"op '1': found {op} in opset {since - 1}, wanted opset {since} or later. Deploy by "
        f"edit.deploy(QdqLowering(opset={since}))."
    )
    data, _ = deployed(edit.pipe(targets.qdq, edit.deploy(QdqLowering(opset=since))), net, x)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
