"""TensorRT: Q/DQ stand where NVIDIA's documentation puts them, and nowhere else."""

import io

import onnx
import torch
from torch import nn

import qfunc
from qfunc import targets


class Residual(nn.Module):
    """conv-bn-relu, conv-bn, a downsampled shortcut, add-relu, pools, concat, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.left, self.right = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 6, 1)
        self.last, self.fc = nn.Conv2d(10, 5, 1), nn.Linear(5, 7)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x):
        """Scores."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.pool(self.relu(self.bn2(self.conv2(x)) + x))
        x = self.relu(self.last(torch.cat([self.left(x), self.right(x)], 1)))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def calibrated():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 10)
    return qfunc.calibrate([x])(qfunc.quantize(targets.tensorrt)(Residual().eval()))


def test_activations_are_quantized_where_weighted_ops_and_residuals_read_them():
    sites = {s.tensor: s for s in qfunc.explain(calibrated()).sites if s.slot == "input"}
    # relu is read by conv2 and, as the residual, by the add: one quantizer; neither conv's own output has one.
    assert set(sites) == {"x", "relu", "relu_1", "left", "right", "cat", "relu_2", "adaptive_avg_pool2d"}
    assert not {"conv1", "conv2", "add", "last", "fc"} & set(sites)


def test_the_inputs_of_a_concat_share_a_scale():
    sites = {s.tensor: s for s in qfunc.explain(calibrated()).sites}
    assert sites["left"].scale == sites["right"].scale == sites["cat"].scale


def test_no_zero_points_no_quantized_biases_and_int8_everywhere():
    model = calibrated()
    proto = onnx.load(io.BytesIO(qfunc.deploy(targets.tensorrt)(model).files["model.onnx"]))
    held = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    zeros = [held[n.input[2]] for n in proto.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert all(z.dtype == "int8" and not z.any() for z in zeros)
    biases = [n.input[2] for n in proto.graph.node if n.op_type in ("Conv", "Gemm")]
    assert all(held[b].dtype == "float32" for b in biases)
    weights = [v for k, v in held.items() if k.endswith("weight.codes")]
    assert len(weights) == 6
    assert all(abs(w.astype(int)).max() == 127 for w in weights)
