"""correct_bias: the mean of every channel is kept, nothing else changes."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit


class Net(nn.Module):
    """A dense, a depthwise and a grouped convolution, a linear layer; no padding, so that means are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.depthwise = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
        self.grouped, self.fc = nn.Conv2d(8, 6, 1, groups=2), nn.Linear(6, 5)

    def forward(self, x):
        """Scores."""
        x = self.grouped(torch.relu(self.depthwise(torch.relu(self.dense(x)))))
        return self.fc(torch.relu(x).mean((2, 3)))


def calibrated(seed=0, bits=3):
    """Coarse weights, so that the shift is large."""
    torch.manual_seed(seed)
    model, batches = Net(), [torch.randn(4, 3, 9, 11) for _ in range(3)]
    target = edit.weights(bits=bits)(targets.onnxruntime)
    return model, batches, qfunc.calibrate(batches)(qfunc.quantize(target)(model))


@pytest.mark.parametrize("name", ["dense", "depthwise", "grouped"])
def test_the_mean_of_each_channel_is_that_of_the_float_convolution(name):
    model, batches, before = calibrated()
    after = qfunc.correct_bias(batches)(before)
    inputs = {"dense": batches}
    inputs["depthwise"] = [torch.relu(model.dense(x)) for x in batches]
    inputs["grouped"] = [torch.relu(model.depthwise(x)) for x in inputs["depthwise"]]
    x = torch.cat(inputs[name])
    weight = next(s.module for s in quantizer_nodes(after) if s.module.site.name == f"{name}.weight")
    layer, bias = getattr(model, name), after.get_parameter(f"{name}.bias")
    with torch.no_grad():
        # The mean over whole images is the mean over windows only where every pixel is in as many windows: 1x1, or
        # constant images.  So images are replaced by their channel means, which is the method's own statistic.
        image = x.mean((0, 2, 3), keepdim=True).expand(1, -1, 9, 11)
        kept = nn.functional.conv2d(image, layer.weight, layer.bias, groups=layer.groups)
        found = nn.functional.conv2d(image, weight(layer.weight), bias, groups=layer.groups)
        old = nn.functional.conv2d(image, weight(layer.weight), layer.bias, groups=layer.groups)
    # float32 sums of at most 27 products: 27 roundings of 6e-8 of values below 10
    assert (found - kept).abs().max() < 27 * 6e-8 * 10
    assert (old - kept).abs().max() > 1e-3


def test_the_given_model_and_the_qparams_stay_as_they_were():
    _, batches, before = calibrated()
    state = {k: v.clone() for k, v in before.state_dict().items()}
    after = qfunc.correct_bias(batches)(before)
    assert all(torch.equal(before.state_dict()[k], v) for k, v in state.items())
    changed = {k for k, v in after.state_dict().items() if not torch.equal(v, state[k])}
    assert changed == {"dense.bias", "depthwise.bias", "grouped.bias", "fc.bias"}


def test_what_was_corrected_is_deployed():
    _, batches, before = calibrated(bits=4)
    after = qfunc.correct_bias(batches)(before)
    target = edit.weights(bits=4)(targets.onnxruntime)
    assert qfunc.verify(target)(after, batches).agreement.startswith("bit-exact")


def data_free():
    """A network with a BatchNorm, its calibration with coarse weights, and the batches."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    batches = [torch.rand(8, 3, 9, 9) for _ in range(2)]
    target = edit.weights(bits=3)(targets.onnxruntime)
    return model, batches, qfunc.calibrate(batches)(qfunc.quantize(target)(model))


def biases(model):
    """The biases and the qparams of the model."""
    return {k: v for k, v in model.state_dict().items() if k.endswith("bias") or k.startswith("quantizers")}


@pytest.mark.parametrize("between", ["nothing", "a copy", "a pickle", "files", "the analytic one", "calibration"])
def test_a_second_correction_replaces_the_first(between, tmp_path):
    model, batches, before = data_free()
    correct = qfunc.correct_bias(batches, progress=False)
    once = correct(before)
    stored = tmp_path / "model"
    if between == "files":
        qfunc.save(stored, weights=qfunc.FloatWeights())(once)
    other = {
        "nothing": lambda: once,
        "a copy": lambda: copy.deepcopy(once),
        "a pickle": lambda: pickle.loads(pickle.dumps(once)),
        "files": lambda: qfunc.load(stored)(model),
        "the analytic one": lambda: qfunc.correct_bias_analytic(model)(before),
        "calibration": lambda: qfunc.calibrate(batches, progress=False)(once),
    }[between]()
    twice, wanted = biases(correct(other)), biases(once)
    assert all(torch.equal(v, wanted[k]) for k, v in twice.items() if between != "calibration" or k.endswith("bias"))


def test_the_analytic_correction_keeps_what_it_does_not_replace():
    """Data, then means of BatchNorms: the first conv has no BatchNorm before it, and keeps the correction by data."""
    model, batches, before = data_free()
    once, analytic = qfunc.correct_bias(batches, progress=False)(before), qfunc.correct_bias_analytic(model)
    both, alone = biases(analytic(once)), biases(analytic(before))
    assert torch.allclose(both["0.bias"], biases(once)["0.bias"], rtol=0, atol=2**-22)  # added and subtracted once more
    assert torch.equal(both["3.bias"], alone["3.bias"])


def test_training_after_a_correction_is_kept():
    """b + d was trained from b: the next correction subtracts its shift from b + d, in float32."""
    _, batches, before = data_free()
    correct = qfunc.correct_bias(batches, progress=False)
    once = correct(before)
    with torch.no_grad():
        once.get_parameter("3.bias").add_(0.25)
    twice, start = correct(once), biases(correct(before))["3.bias"]
    assert torch.allclose(twice.get_parameter("3.bias"), start + 0.25, rtol=0, atol=2**-22)


SHIFTED = [(bits, seed) for bits in (5, 3) for seed in range(3)]


@pytest.mark.parametrize(("bits", "seed"), SHIFTED)
def test_a_bias_with_its_own_scale_fits_its_codes(bits, seed):
    """vitis has biases of 8 bits with a power of two: the codes of a corrected bias are the nearest ones, computed here."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval().requires_grad_(False)
    for i in (0, 2):
        net[i].bias.mul_(0.01)
    batches = [torch.rand(8, 3, 12, 12) * 4 for _ in range(2)]
    target = edit.weights(bits=bits)(targets.vitis)
    before = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net))
    after = qfunc.correct_bias(batches, progress=False)(before)
    for quantizer in (q.module for q in quantizer_nodes(after) if q.module.site.slot == "bias"):
        bias, scale = after.get_parameter(quantizer.site.name).detach().double(), float(quantizer.qparams().scale)
        assert math.frexp(scale)[0] == 0.5
        # The least squared error may clip the largest value of 8 by a few codes, but not by half of its magnitude.
        assert float((quantizer(bias.float()).detach().double() - bias).abs().max()) <= max(
            scale, 0.1 * float(bias.abs().max())
        )
        best = min(error(bias, 2.0**-k) for k in range(13))
        assert error(bias, scale) <= best * (1 + 1e-9)


def error(bias, scale):
    """The squared error of int8 codes, rounded half away from zero."""
    codes = ((bias / scale).abs() + 0.5).floor().clamp(max=128) * bias.sign()
    return float((codes.clamp(-128, 127) * scale - bias).square().sum())


def test_biases_with_their_own_scale_are_estimated_again_by_calibrate():
    """Statistics that move in training move the folded bias b f + s, by far beyond its first codes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    batches = [torch.rand(8, 3, 12, 12) * 4 for _ in range(2)]
    quantized = qfunc.quantize(targets.vitis, batch_norm=qfunc.TrainBatchNorm())(net)
    trained = qfunc.calibrate(batches, progress=False)(quantized).train()
    with torch.no_grad():
        for x in batches * 10:
            trained(x)
    again = qfunc.calibrate(batches, progress=False)(trained)
    norm = again.get_submodule("1")
    bias = (norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    scale = float(again.get_submodule("quantizers.0.bias").qparams().scale)
    assert float(bias.abs().max()) <= 128.5 * scale < 2.1 * 128.5 * float(bias.abs().max())


def test_no_batches():
    _, _, before = calibrated()
    with pytest.raises(CalibrationError) as e:
        qfunc.correct_bias([])(before)
    assert str(e.value) == (
        "correct_bias: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    )


def test_batches_that_are_not_finite():
    _, batches, before = calibrated()
    batches[1][0, 0, 0, 0] = float("nan")
    with pytest.raises(CalibrationError) as e:
        qfunc.correct_bias(batches, progress=False)(before)
    assert str(e.value) == (
        "correct_bias, op 'dense': found NaN or infinite values in its input, wanted finite values. Remove the batch, or "
        "repair the weights."
    )
