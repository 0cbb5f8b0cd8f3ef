"""What begins at 0 or at the end of its range has a gradient: gamma = 0, weights of zeros, the largest weight of a channel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import recipes, targets
from qfunc.functions import Fixed
from qfunc.numerics.qparams import of_tensor
from qfunc.specs import Int, PerChannel, Scale, Scheme

RECIPES = {
    "none": lambda t: t,
    "lsq": recipes.lsq(),
    "lsq_plus": recipes.lsq_plus(),
    "dsq": recipes.dsq(),
    "pact": recipes.pact(),
}


class Branch(nn.Module):
    """A residual branch whose last BatchNorm begins with gamma = 0 (`zero_init_residual`)."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        return torch.relu(x + self.norm(self.conv(x)))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "target", [targets.onnxruntime, targets.litert, targets.openvino, targets.vitis, targets.tensorrt], ids=lambda t: t.name
)
def test_a_gamma_of_zero_has_a_gradient(target, recipe):
    """The derivative of a sum by gamma is not 0 in any channel; the branch's output may have been quantized to [0, 0]."""
    torch.manual_seed(0)
    x, model = torch.randn(4, 3, 6, 6), Branch().eval()
    made = qfunc.quantize(RECIPES[recipe](target), batch_norm=qfunc.TrainBatchNorm())(model)
    student = qfunc.calibrate([x])(made).train()
    (student(x) * torch.randn(4, 4, 4, 4)).sum().backward()
    assert student.get_parameter("norm.weight").grad.abs().min() > 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=9).filter(lambda v: max(map(abs, v)) > 1e-3),
    st.integers(2, 8),
    st.sampled_from(["half_range", "-qmin", "qmax"]),
    st.floats(1e-3, 1e3),
)
def test_every_value_of_the_estimated_range_has_a_gradient(values, bits, divisor, factor):
    """The gradient is 1 for |x| <= max|x|, by definition of the range; 0 from two steps beyond it."""
    scheme = Scheme(Int(bits), Scale(PerChannel(0), divisor=divisor))
    x = torch.tensor([values, [-v for v in values]])
    params = of_tensor(x, scheme)
    # A scale that follows a BatchNorm is divided and multiplied by its factor.
    params = params._replace(scale=params.scale / factor * torch.tensor(factor))
    beyond = x.abs().amax(1, keepdim=True) + 2 * params.scale
    wide = torch.cat([x, beyond, -beyond], 1).requires_grad_()
    Fixed().apply(params, wide, scheme).sum().backward()
    assert wide.grad[:, :-2].eq(1).all()
    assert not wide.grad[:, -2:].any()


def test_weights_of_zeros_are_named():
    """The whole warning; a weight that does not train, and one with a value, have none."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    for index in (2, 4):
        nn.init.zeros_(net[index].weight)
    text = (
        "quantize: found weights of zeros only ('2.weight', with scale 1 and 1 more), wanted values that show the scale that "
        "training needs. Train the float model first; or initialize them, by torch.nn.init.normal_(weight, std=0.1) for "
        "instance, and write qfunc.quantize(qfunc.recipes.lsq()(target))."
    )
    with pytest.warns(UserWarning, match="zeros only") as caught:
        qfunc.quantize(targets.onnxruntime)(net)
    assert [str(w.message) for w in caught] == [text]
    net[2].weight.requires_grad_(False)
    with torch.no_grad():
        net[4].weight[1, 2] = 1e-3
    qfunc.quantize(targets.onnxruntime)(net)  # another warning is an error


FLAGS = st.tuples(*[st.booleans()] * 4)


@settings(max_examples=40, deadline=None)
@given(FLAGS, st.booleans(), st.booleans())
def test_folding_keeps_what_trains(flags, has_bias, affine):
    """The weight trains if it did; the bias if the bias or beta did, and without either as the weight does."""
    net = nn.Sequential(nn.Conv2d(3, 4, 1, bias=has_bias), nn.BatchNorm2d(4, affine=affine)).eval()
    names = ("0.weight", "0.bias", "1.weight", "1.bias")
    given = {n: flag for n, flag in zip(names, flags, strict=True) if n in dict(net.named_parameters())}
    for name, flag in given.items():
        net.get_parameter(name).requires_grad_(flag)
    shifts = [given[n] for n in ("0.bias", "1.bias") if n in given] or [given["0.weight"]]
    made = qfunc.quantize(targets.onnxruntime)(net)
    assert made.get_parameter("0.weight").requires_grad == given["0.weight"]
    assert made.get_parameter("0.bias").requires_grad == any(shifts)


def test_a_norm_that_becomes_a_convolution_keeps_what_trains():
    for flags in ((True, False), (False, True)):
        norm = nn.BatchNorm2d(3)
        for parameter, flag in zip((norm.weight, norm.bias), flags, strict=True):
            parameter.requires_grad_(flag)
        made = qfunc.quantize(targets.onnxruntime)(nn.Sequential(nn.ReLU(), norm).eval())
        assert (made.get_parameter("1.weight").requires_grad, made.get_parameter("1.bias").requires_grad) == flags
