"""The opset of an artifact: what the lowering says is written, checked by ONNX and run by ONNX Runtime."""

import onnx
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering import OnnxRuntimeRunner, QdqLowering
from qfunc.specs import edit


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


@pytest.mark.parametrize(
    ("act", "op", "since"),
    [(nn.Hardswish(), "HardSwish", 14), (nn.LayerNorm(9), "LayerNormalization", 17), (nn.Mish(), "Mish", 18),
     (nn.GELU(), "Gelu", 20), (nn.GroupNorm(2, 2), "GroupNormalization", 21)],
    ids=lambda v: str(v),
)  # fmt: skip
def test_an_op_later_than_the_opset_is_refused_by_name(act, op, since):
    net, x = nn.Sequential(nn.Conv2d(2, 2, 1), act), torch.randn(2, 2, 7, 9)
    with pytest.raises(DeployError) as e:
        deployed(edit.pipe(targets.qdq, edit.deploy(QdqLowering(opset=since - 1))), net, x)
    assert str(e.value) == (
        f"op '1': found {op} in opset {since - 1}, wanted opset {since} or later. Deploy by "
        f"edit.deploy(QdqLowering(opset={since}))."
    )
    data, _ = deployed(edit.pipe(targets.qdq, edit.deploy(QdqLowering(opset=since))), net, x)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
