"""ONNX Runtime removes ops that compute nothing, and takes extremes of codes: the partition predicts both."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qfunc
from qfunc import specs, targets
from qfunc.errors import DeployError, EmulationError
from qfunc.specs import edit

TARGET = edit.weights(bits=7)(targets.onnxruntime)  # of 7 bits, so that any x86-64 computes the same


class _Between(nn.Module):
    def __init__(self, between, channels=8):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(channels, 4, 3, padding=1)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), scale=1.0)


def _extremes(y):
    y = torch.relu(y)
    return torch.cat([y.amax(1, keepdim=True), y.amin(1, keepdim=True)], 1)


BETWEEN = {
    "detached": (lambda y: y.detach(), 8),
    "detached relu": (lambda y: torch.relu(y).detach(), 8),
    "detached twice, moved": (lambda y: y.detach().transpose(2, 3).detach(), 8),
    "extremes": (_extremes, 2),
    "rolled": (lambda y: torch.roll(y, (1, 1), (2, 3)), 8),
    "rolled along one axis": (lambda y: torch.roll(y, 1, 1), 8),
    "rolled by none": (lambda y: torch.roll(y, 0, 1), 8),
    "maximum alone": (lambda y: torch.relu(y).max(1, keepdim=True)[0], 1),
    "minimum alone": (lambda y: torch.relu(y).min(dim=1, keepdim=True).values, 1),
}


def _agreement(model, batch):
    calibrated = qfunc.calibrate([batch], progress=False)(qfunc.quantize(TARGET)(model.eval()))
    return qfunc.verify(TARGET)(calibrated, [batch, 2 * batch]).agreement


@pytest.mark.parametrize("name", BETWEEN)
def test_runtime_executes_the_predicted_units(name):
    torch.manual_seed(0)
    assert _agreement(_Between(*BETWEEN[name]), torch.randn(2, 3, 8, 8)).startswith("bit-exact: 0 of")


WEIGHTS = (
    edit.weights(signed=False), edit.weights(signed=False, granularity=specs.PerTensor()), edit.weights(signed=False, bits=7),
    edit.weights(signed=False, symmetric=False), edit.weights(signed=False, bits=4), edit.weights(symmetric=False),
)  # fmt: skip


@pytest.mark.parametrize("changed", WEIGHTS, ids=repr)
def test_unsigned_weights_are_integers(changed):
    torch.manual_seed(0)
    target, batch = changed(TARGET), torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(128, 4)).eval()
    for module in model[::2] if changed != WEIGHTS[-1] else ():  # unsigned codes without a zero point have no negative values
        if hasattr(module, "weight"):
            module.weight.data.abs_()
    calibrated = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(model))
    assert qfunc.verify(target)(calibrated, [batch, 2 * batch]).agreement.startswith("bit-exact: 0 of")


@pytest.mark.parametrize("pool", [nn.AvgPool2d((2, 3)), nn.MaxPool2d(2, 1), nn.AdaptiveMaxPool2d(2)], ids=repr)
def test_a_pool_of_no_batch_of_images_is_refused(pool):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.pool = nn.Conv2d(3, 1, 3, padding=1), pool

        def forward(self, x):
            return self.pool(self.first(x).squeeze(1))

    batch = torch.randn(2, 3, 8, 8)
    calibrated = qfunc.calibrate([batch], progress=False)(qfunc.quantize(TARGET)(Net().eval()))
    with pytest.raises(DeployError) as e:
        qfunc.deploy(TARGET)(calibrated)
    wanted = "found a tensor of rank 3, wanted a batch of images, of rank 4. Use x.unsqueeze(1) before it."
    assert str(e.value) == f"op 'pool': {wanted}"
    if isinstance(pool, nn.AvgPool2d):
        with pytest.raises(EmulationError) as emulated:
            qfunc.emulate(TARGET)(calibrated)(batch)
        assert str(emulated.value) == f"emulate, a pool by (2, 3): {wanted}"


class _Small(nn.Module):
    def __init__(self, curve, size):
        super().__init__()
        self.curve, self.size = curve, size

    def forward(self, x):
        return self.curve(x * self.size)


@pytest.mark.parametrize("curve", [torch.log1p, torch.expm1], ids=lambda f: f.__name__)
@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-3, 0.25])
def test_curves_are_exact_near_zero(curve, size):
    torch.manual_seed(0)
    assert _agreement(_Small(curve, size), torch.rand(2, 3, 8, 8) - 0.5).startswith("bit-exact")


def test_attention_without_a_scale():
    torch.manual_seed(0)
    assert _agreement(_Attention(), torch.randn(2, 4, 8)).startswith("bit-exact: 0 of")


def test_detached_values_get_no_gradient():
    torch.manual_seed(0)
    model, batch = _Between(*BETWEEN["detached"]), torch.randn(2, 3, 8, 8)
    trained = qfunc.calibrate([batch], progress=False)(qfunc.quantize(TARGET)(model)).train()
    trained(batch).sum().backward()
    gradients = {name: p.grad for name, p in trained.named_parameters()}
    assert gradients["first.weight"] is None
    assert gradients["last.weight"] is not None
