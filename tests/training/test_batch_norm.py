"""BatchNorms that train beside quantized weights: the float model where quantizers pass through, the chip in evaluation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

import qfunc
from qfunc import targets
from qfunc.numerics import Affine
from qfunc.quantizers import batch_norm
from qfunc.specs import Scheme, edit


@frozen
class PassThrough:
    """x itself."""

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Affine:
        return qparams

    def apply(self, params: Affine, x: Tensor, scheme: Scheme) -> Tensor:
        return x

    def export(self, params: Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return x, params


class Branches(nn.Module):
    """A conv, a grouped transposed conv, a linear, a residual sum, a BatchNorm of a bias and one without affine."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm1 = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.up, self.norm2 = nn.ConvTranspose2d(4, 6, 3, groups=2, padding=1), nn.BatchNorm2d(6, momentum=None)
        self.side, self.norm3 = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6, affine=False)
        self.linear, self.norm4 = nn.Linear(6, 5), nn.BatchNorm1d(5, eps=0.01)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv(x)).relu()
        x = F.relu(self.norm2(self.up(x)) + self.norm3(self.side(x)))
        return self.norm4(self.linear(x.mean((2, 3))))


def one(conv: nn.Module, norm: nn.Module) -> nn.Module:
    return nn.Sequential(conv, norm, nn.ReLU())


NETWORKS = {
    "branches": (Branches, (7, 3, 8, 9)),
    "in a row": (
        lambda: nn.Sequential(one(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))[:2], one(nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2))),
        (7, 3, 5, 6),
    ),
    "conv1d": (lambda: one(nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4)), (7, 3, 9)),
    "conv3d": (lambda: one(nn.Conv3d(2, 4, 2, groups=2), nn.BatchNorm3d(4)), (5, 2, 4, 3, 6)),
    "deconv1d": (lambda: one(nn.ConvTranspose1d(4, 6, 2, groups=2), nn.BatchNorm1d(6)), (5, 4, 7)),
    "depthwise": (lambda: one(nn.Conv2d(3, 6, 3, groups=3), nn.BatchNorm2d(6)), (5, 3, 6, 7)),
}


def network(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    made = NETWORKS[name][0]()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.uniform_(module.bias, -1, 1)
    return made.to(dtype)


def passing(name: str) -> Any:
    target = edit.activations(function=PassThrough())(edit.weights(function=PassThrough())(targets.tensorrt))
    model = network(name)
    shape = NETWORKS[name][1]
    quantized = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(model)
    return model.train(), qfunc.calibrate([torch.randn(shape, dtype=torch.float64)])(quantized).train()


@pytest.mark.parametrize("frozen_too", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_quantizers_that_pass_through_train_the_float_model(name: str, frozen_too: bool) -> None:
    """Outputs, gradients and running statistics over four steps, of which the last two may have frozen statistics."""
    model, quantized = passing(name)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, quantized)]
    for step in range(4):
        if frozen_too and step == 2:
            qfunc.freeze_batch_norm(quantized)
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                    module.eval()
        x = torch.randn(NETWORKS[name][1], dtype=torch.float64)
        outputs = [m(x) for m in (model, quantized)]
        for optimizer, output in zip(optimizers, outputs, strict=True):
            optimizer.zero_grad()
            output.square().sum().backward()
        have, want = dict(quantized.named_parameters()), dict(model.named_parameters())
        assert have.keys() == want.keys()
        # Twice a product and a quotient by f (1e-3 <= |f| <= 3) before sums of at most 2^10 terms, each of relative
        # error 2^-53, and normalised by deviations down to 1e-2: 1e-10 of the largest value is 10^3 times more.
        torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-10 * float(outputs[0].detach().abs().max()))
        for key, parameter in want.items():
            largest = float(parameter.grad.abs().max()) + 1
            torch.testing.assert_close(have[key].grad, parameter.grad, rtol=0, atol=1e-10 * largest, msg=key)
        for optimizer in optimizers:
            optimizer.step()
    for key, buffer in model.named_buffers():
        torch.testing.assert_close(quantized.get_buffer(key), buffer, rtol=1e-10, atol=1e-10, msg=key)
    x = torch.randn(NETWORKS[name][1], dtype=torch.float64)
    torch.testing.assert_close(quantized.eval()(x), model.eval()(x), rtol=1e-10, atol=1e-10)


def test_update_bn_takes_the_statistics_of_the_float_model() -> None:
    """Means of the batches, whatever was there before; momenta stay."""
    model, quantized = passing("branches")
    batches = [torch.randn(NETWORKS["branches"][1], dtype=torch.float64) for _ in range(3)]
    momenta = [m.momentum for m in quantized.modules() if hasattr(m, "momentum")]
    for each in (model, quantized):
        each(batches[0])
        update_bn(batches, each)
    for key, buffer in model.named_buffers():
        torch.testing.assert_close(quantized.get_buffer(key), buffer, rtol=1e-10, atol=1e-10, msg=key)  # as above
    assert [m.momentum for m in quantized.modules() if hasattr(m, "momentum")] == momenta


@pytest.mark.parametrize("averaged_before", [False, True])
def test_update_bn_leaves_frozen_norms_as_they_are(averaged_before: bool) -> None:
    """Also in an averaged copy that was made before they were frozen, which gets their buffers and no call."""
    _, quantized = passing("branches")
    averaged = AveragedModel(quantized)
    qfunc.freeze_batch_norm(quantized)
    for _ in range(2):
        averaged.update_parameters(quantized)
    model = averaged.module if averaged_before else copy.deepcopy(quantized)
    before = {key: buffer.clone() for key, buffer in model.state_dict().items()}
    update_bn([torch.randn(NETWORKS["branches"][1], dtype=torch.float64)], model)
    assert [key for key, buffer in before.items() if not torch.equal(model.state_dict()[key], buffer)] == []


@pytest.mark.parametrize("name", ["branches", "depthwise"])
@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt", "vitis"])
def test_what_was_trained_is_what_is_deployed(name: str, target: str) -> None:
    """After steps of training: the evaluated simulation is that of the folded model, emulated and written."""
    where, shape = getattr(targets, target), NETWORKS[name][1]
    made = qfunc.quantize(where, batch_norm=qfunc.TrainBatchNorm())(network(name, torch.float32))
    quantized = qfunc.calibrate([torch.randn(shape)])(made).train()
    optimizer = torch.optim.SGD(quantized.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        quantized(torch.randn(shape)).square().mean().backward()
        optimizer.step()
    quantized.eval()
    x = torch.randn(shape)
    folded = qfunc.fold_batch_norm()(quantized)
    assert torch.equal(folded(x), quantized(x))
    assert not any("norm" in key for key in folded.state_dict() if "quantizers" not in key)
    assert qfunc.deploy(where)(quantized).files == qfunc.deploy(where)(folded).files


@pytest.mark.parametrize("affine", [True, False])
def test_training_adds_what_rounding_the_bias_changes(affine: bool) -> None:
    """norm(y) + Q(b f + s) - (b f + s), in float64 by its formula."""
    g = torch.Generator().manual_seed(5)
    norm = nn.BatchNorm2d(3, affine=affine, dtype=torch.float64)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, generator=g)
    y = torch.randn(4, 3, 5, 6, generator=g, dtype=torch.float64)
    folded, quantized = torch.randn(2, 3, generator=g, dtype=torch.float64)
    spread = (y.var((0, 2, 3), unbiased=False, keepdim=True) + norm.eps).sqrt()
    want = (y - y.mean((0, 2, 3), keepdim=True)) / spread
    if affine:
        want = want * norm.weight.reshape(3, 1, 1) + norm.bias.reshape(3, 1, 1)
    want = want + (quantized - folded).reshape(3, 1, 1)
    # A dozen operations in float64 on numbers of at most 10.
    assert torch.allclose(batch_norm.normalized(y, norm, folded, quantized), want, rtol=0, atol=12 * 10 * 2.0**-52)
