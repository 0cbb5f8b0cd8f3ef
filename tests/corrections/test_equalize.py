"""equalize: the float function stays, both ranges of each channel become equal, per-tensor weights lose less."""

import copy

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, SpecError
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.specs import PerTensor, edit
from tests.corrections.channel_nets import Branches, Convs, Temporal, images, rounding, unequal

PAIRS = {Convs: 5, Branches: 2, Temporal: 2}


@pytest.mark.parametrize("net", PAIRS)
@pytest.mark.parametrize("exported", [False, True])
def test_the_float_function_stays_and_the_names_do(net, exported):
    model = unequal(net)
    x, state = images(model), copy.deepcopy(model.state_dict())
    equal = qfunc.equalize()(qfunc.capture((x,))(model) if exported else model).eval()
    assert len(qfunc.corrections.equalization_pairs(model).rows) == PAIRS[net]
    assert equal.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(model.state_dict()[k], v) for k, v in state.items())
    # The weights of each op are rounded at most twice, gamma and beta once: on no path more often than on all together.
    bound = rounding(model, x, 2 * sum(hasattr(m, "weight") for m in model.modules()))
    with torch.no_grad():
        found, wanted = copy.deepcopy(equal).double()(x.double()), copy.deepcopy(model).double()(x.double())
    assert bool(((found - wanted).abs() <= bound).all())
    again = qfunc.equalize()(equal)
    assert all(torch.equal(again.state_dict()[k], v) for k, v in equal.state_dict().items())


def ranges(model, first, second, at):
    """The largest |w| of channel `at` in the rows of one op, and in the columns of the next, read out one by one."""
    rows, columns = (model.get_parameter(f"{name}.weight").detach().double() for name in (first, second))
    ops = {n.name: n for n in model.graph.nodes}

    def window(weight, name):
        # (output channel, input channel) -> entries, as the documentation of torch.nn has them
        node = ops[name]
        groups = 1 if weight.ndim == 2 else node.args[6]
        if "transpose" in node.target.__name__:
            inputs, per = weight.shape[0] // groups, weight.shape[1]
            return {(g * per + o, g * inputs + i): weight[g * inputs + i, o]
                    for g in range(groups) for o in range(per) for i in range(inputs)}  # fmt: skip
        outputs, per = weight.shape[0] // groups, weight.shape[1]
        return {(g * outputs + o, g * per + i): weight[g * outputs + o, i]
                for g in range(groups) for o in range(outputs) for i in range(per)}  # fmt: skip

    head, tail = window(rows, first), window(columns, second)
    repeat = (max(i for _, i in tail) + 1) // (max(o for o, _ in head) + 1)
    largest = max(float(w.abs().max()) for (o, _), w in head.items() if o == at)
    return largest, max(float(w.abs().max()) for (_, i), w in tail.items() if i // repeat == at)


@pytest.mark.parametrize(
    ("first", "second", "channels"),
    [
        ("depthwise", "grouped", 8),
        ("grouped", "transposed", 12),
        ("transposed", "fc", 6),
    ],
)
def test_both_ranges_of_each_channel_are_equal(first, second, channels):
    model = unequal(Convs)
    equal = fold_batch_norms(qfunc.equalize()(model))
    for at in range(channels):
        one, other = ranges(equal, first, second, at)
        # s differs from 1 by at most 1e-3, and s^2 is their quotient; later pairs of the last sweep move them by as much.
        assert one == pytest.approx(other, rel=4e-3)


def test_no_constant_part_exceeds_the_largest_one():
    """A channel of which |beta| exceeds 3 |gamma| is equalized only as far as the largest such excess allows."""
    model = unequal(Convs)
    model.norm.weight.data.copy_(model.norm.bias.data.abs() * torch.tensor([0.01, 0.3, 1.0, 0.1, 2.0, 0.2, 0.05, 0.5]))
    equal = qfunc.equalize()(model)

    def constant(net):
        gamma, beta = (net.get_parameter(f"norm.{name}").detach().double().abs() for name in ("weight", "bias"))
        return (beta - 3 * gamma).clamp_min(0)

    largest, bounded = float(constant(model).max()), 0
    # two roundings to float32
    assert float(constant(equal).max()) <= largest * (1 + 2**-20)
    for at in range(8):
        one, other = ranges(fold_batch_norms(equal), "a", "depthwise", at)
        stopped = float(constant(equal)[at]) > 0.999 * largest
        assert one == pytest.approx(other, rel=4e-3) or (stopped and one < other)
        bounded += stopped and one < 0.99 * other
    assert bounded


def test_one_pair_is_scaled_by_the_equation():
    model = nn.Sequential(nn.Conv2d(2, 4, (1, 2), groups=2), nn.ReLU(), nn.Conv2d(4, 3, 1))
    model[0].weight.data[2] = 0  # a channel without weights keeps its scale
    equal = qfunc.equalize()(model)
    for i in range(4):
        r1, r2 = (float(w.detach().double().abs().max()) for w in (model[0].weight[i], model[2].weight[:, i]))
        s = 1.0 if r1 == 0 else (r1 * r2) ** 0.5 / r2
        for name, held, by in (("0.weight", model[0].weight, 1 / s), ("0.bias", model[0].bias, 1 / s)):
            # one rounding to float32
            assert torch.allclose(equal.get_parameter(name)[i].double(), held[i].double() * by, rtol=2**-23, atol=0), name
        assert torch.allclose(equal.get_parameter("2.weight")[:, i].double(), model[2].weight[:, i].double() * s, rtol=2**-23)


def test_batch_norms_train_on_as_before():
    model = unequal(Branches).train()
    x, equal = images(model), qfunc.equalize()(model).train()
    other = copy.deepcopy(model)
    found, wanted = equal(x).detach(), other(x).detach()
    # float32 sums in which channels of all sizes meet; the statistics are those of the same convolution, bit for bit
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5
    assert torch.equal(equal.norm.running_mean, other.norm.running_mean)
    assert torch.equal(equal.norm.running_var, other.norm.running_var)


def mobile():
    """Depthwise and pointwise convolutions whose folded weights differ by orders of magnitude, as those of MobileNets."""
    torch.manual_seed(1)
    layers, width = [nn.Conv2d(3, 12, 3, 2, bias=False), nn.BatchNorm2d(12), nn.ReLU()], 12
    for out in (16, 20):
        layers += [nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 7)).train()
    for m in model[:-1]:
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 1.0
    model(torch.randn(32, 3, 17, 17))  # statistics
    model.eval()
    for m in model:
        if isinstance(m, nn.BatchNorm2d):  # a channel with little variance has a large folded weight
            m.running_var.mul_(by := 10 ** torch.empty(len(m.running_var)).uniform_(-3.5, 0))
            m.weight.data.mul_(10 ** torch.empty(len(by)).uniform_(-1.5, 0))
    return model


def test_a_network_with_a_scale_a_tensor_loses_less():
    model, target = mobile(), edit.weights(granularity=PerTensor())(targets.onnxruntime)
    batches = [torch.randn(8, 3, 17, 17) for _ in range(2)]

    def error(float_model, at):
        rows = qfunc.compare(batches, progress=False)(
            qfunc.calibrate(batches, progress=False)(qfunc.quantize(at)(float_model))
        ).rows
        return next(r.sqnr for r in rows if r.tensor == "17" and r.slot == "output")

    equal = qfunc.equalize()(model)
    shares = [[p.first for p in qfunc.corrections.equalization_pairs(m).rows] for m in (model, equal)]
    assert len(shares[0]) == 5
    assert sum(shares[1]) > 1.2 * sum(shares[0])
    collapsed, recovered = error(model, target), error(equal, target)
    assert recovered > collapsed + 2, (collapsed, recovered)


class Shared(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x):
        return self.a(torch.relu(self.a(x)))


REFUSED = {
    "ReLU6": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.Conv2d(4, 2, 1)),
        "'0', at '1': a clip at 6.0 does not scale with channels; replace_relu6() makes it a ReLU, "
        "equalize(deviations=3.0) keeps it; "
        "'2', at 'output': it is an output of the model",
    ),
    "shared": (
        Shared,
        "'a', at 'a': 'a.weight' is shared with another op; 'a_1', at 'a_1': 'a.weight' is shared with another op",
    ),
    "curve": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)),
        "'0', at '1': gelu does not commute with factors per channel; '2', at 'output': it is an output of the model",
    ),
    "nothing": (nn.ReLU, "no op with weights reads another"),
    "another axis": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Linear(5, 2)),
        "'0', at '1': its input channels are not these channels; '1', at 'output': it is an output of the model",
    ),
}


@pytest.mark.parametrize(("make", "why"), REFUSED.values(), ids=REFUSED)
def test_nothing_to_equalize(make, why):
    with pytest.raises(SpecError) as e:
        qfunc.equalize()(make())
    wanted = "wanted an op with weights, read only by ops with weights, directly or through ReLUs, pools and the like"
    assert str(e.value) == f"equalize: found no such pair ({why}), {wanted}. Remove qfunc.equalize."


def test_a_clip_becomes_a_relu_on_purpose():
    model = mobile()
    bounded = nn.Sequential(*[nn.ReLU6() if isinstance(m, nn.ReLU) else m for m in model]).eval()
    open_ = qfunc.corrections.replace_relu6()(bounded).eval()
    assert len(qfunc.corrections.equalization_pairs(open_).rows) == 5
    x = torch.randn(2, 3, 17, 17)
    assert torch.equal(open_(x), model(x))
    with pytest.raises(SpecError) as e:
        qfunc.corrections.replace_relu6()(nn.Sequential(nn.ReLU()))
    assert str(e.value) == (
        "replace_relu6: found no clip from 0, wanted at least one ReLU6 or clamp(0, c). Remove qfunc.replace_relu6."
    )


def test_a_quantized_model():
    quantized = qfunc.quantize(targets.onnxruntime)(unequal(Branches))
    with pytest.raises(CalibrationError) as e:
        qfunc.equalize()(quantized)
    assert str(e.value) == (
        "equalize: found a quantized model, wanted a float model. Run qfunc.equalize before qfunc.quantize."
    )
