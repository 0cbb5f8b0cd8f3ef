"""An operand that a model computes from its parameters is the constant of a model that stores the result."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets

FORMS = {
    "affine": lambda p: (p * 2 + 1).view(1, -1, 1, 1),
    "root of a square": lambda p: p.square().sqrt().view(4, 1, 1),
    "logarithm": lambda p: p.abs().log1p().view(4, 1, 1),
    "number": lambda p: p[0].exp(),
    "clamped number": lambda p: p[1].clamp(max=0.5) + p[2].sigmoid(),
    "sum": lambda p: p.sum(),
    "softmax": lambda p: p.softmax(0).view(4, 1, 1),
    "unit length": lambda p: F.normalize(p, dim=0).view(4, 1, 1),
    "largest": lambda p: p.max(),
    "curve": lambda p: F.gelu(p).view(4, 1, 1),
    "grid": lambda p: torch.stack(torch.meshgrid(p, p, indexing="ij")).sum(0).view(4, 4, 1)[..., 0].mean(1).view(4, 1, 1),
}


class Computed(nn.Module):
    def __init__(self, form, sum_too=False):
        super().__init__()
        torch.manual_seed(1)
        self.form, self.sum_too, self.conv = form, sum_too, nn.Conv2d(3, 4, 3)
        self.gain = nn.Parameter(torch.tensor([0.7, -1.2, 0.4, 1.5]))

    def factor(self):
        return self.form(self.gain)

    def forward(self, x):
        if self.sum_too:  # a whole norm, which folds
            return self.conv(x) * self.factor() + self.factor()
        return F.relu(self.conv(x)) * self.factor()


class Stored(Computed):
    def __init__(self, form, sum_too=False):
        super().__init__(form, sum_too)
        self.register_buffer("value", form(self.gain).detach())

    def factor(self):
        return self.value


X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["tosa", "executorch_xnnpack", "ncnn", "openvino"])
def test_the_computed_operand_is_the_stored_one(name, form):
    target, sum_too = getattr(targets, name), form == "affine"
    models = [made(FORMS[form], sum_too).eval() for made in (Computed, Stored)]
    calibrated = [qfunc.calibrate([X], progress=False)(qfunc.quantize(target)(model)) for model in models]
    # A factor and a shift that fold into the convolution are computed in float64, and stored ones are rounded to float32.
    torch.testing.assert_close(*(each(X) for each in calibrated), rtol=2**-20, atol=2**-20)
    assert all(qfunc.deploy(target)(each).files for each in calibrated)


@pytest.mark.parametrize("form", ["affine", "clamped number", "softmax", "unit length"])
def test_the_parameter_of_the_operand_trains(form):
    x, model = X, qfunc.calibrate([X], progress=False)(qfunc.quantize(targets.tosa)(Computed(FORMS[form]).eval()))
    assert dict(model.named_parameters()).keys() == {"conv.weight", "conv.bias", "gain"}
    before, emulated = model.gain.detach().clone(), qfunc.emulate(targets.tosa)(model)(x)
    model(x).square().mean().backward()
    model.gain.data -= 0.3 * model.gain.grad / model.gain.grad.norm()
    assert not torch.equal(model.gain, before)
    after = qfunc.emulate(targets.tosa)(model)(x)
    assert torch.equal(after, model(x))
    assert not torch.equal(after, emulated)


@pytest.mark.parametrize("name", ["tosa", "executorch_xnnpack"])
def test_the_runtime_agrees(name):
    target = getattr(targets, name)
    model = qfunc.calibrate([X], progress=False)(qfunc.quantize(target)(Computed(FORMS["clamped number"], True).eval()))
    assert "bit-exact" in qfunc.verify(target)(model, [X]).verdict


def test_an_operand_of_buffers_does_not_train():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("table", torch.tensor([1.0, 2.0, 4.0]))

        def forward(self, x):
            return self.layer(x) * self.table.sqrt()

    x = torch.randn(4, 3)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.tosa)(Net()))
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["layer.weight", "layer.bias"]
