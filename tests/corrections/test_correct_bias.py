"""correct_bias: the mean of every channel is kept, nothing else changes."""

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
