"""SyncBatchNorm beside a quantized weight: statistics of the batches of all processes, on the CPU too, where torch has none."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.func import functional_call


class SyncBatchNormStatistics(nn.BatchNorm1d):
    """An nn.SyncBatchNorm with the same tensors, which on other devices than the CPU computes.

    On the CPU, with x_i the n_i values of a channel in process i, and N = sum n_i, all sums by `all_reduce`:

        mean = sum x / N;  var = sum (x - mean)^2 / N;  y = (x - mean) / sqrt(var + eps) * gamma + beta

    and the gradient is that of the sum of the processes' losses, as data parallel training takes it.  Without a process
    group it is an nn.BatchNorm, for any rank, and `torch.optim.swa_utils.update_bn` takes it for one.  It is no
    nn.SyncBatchNorm, which DistributedDataParallel refuses on the CPU.

    >>> norm = SyncBatchNormStatistics(nn.SyncBatchNorm(2))
    >>> norm(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).round().tolist(), norm.running_mean.tolist()
    ([[-1.0, 0.0], [1.0, 0.0]], [0.20000000298023224, 0.20000000298023224])
    """

    def __init__(self, of: nn.SyncBatchNorm) -> None:
        super().__init__(of.num_features, of.eps, of.momentum, of.affine, device="meta")
        self.process_group = of.process_group
        self.fused = (of,)  # no submodule: its tensors are these
        self._parameters.clear()
        self._buffers.clear()
        for name, parameter in of._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in of._buffers.items():
            self.register_buffer(name, buffer)
        self.training = of.training

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, ...] -> [N, C, ...]; in training the running statistics are updated."""
        alone = not (self.training and dist.is_available() and dist.is_initialized())
        if not alone and input.device.type != "cpu":
            own = {n for n, _ in self.fused[0].named_buffers()}  # without those that others have put beside them
            tensors = dict(self.named_parameters()) | {n: b for n, b in self.named_buffers() if n in own}
            self.fused[0].momentum = self.momentum
            return functional_call(self.fused[0].train(), tensors, (input,))  # type: ignore[no-any-return]
        momentum = 0.0
        if self.training:
            seen: Any = self.num_batches_tracked
            seen.add_(1)
            momentum = 1 / seen.item() if self.momentum is None else self.momentum
        if alone:
            held = (self.running_mean, self.running_var, self.weight, self.bias)
            return F.batch_norm(input, *held, self.training, momentum, self.eps)
        return self._of_all(input, momentum)

    def _of_all(self, x: Tensor, momentum: float) -> Tensor:
        def summed(terms: Tensor) -> Tensor:
            found: Tensor = _Sum.apply(terms, self.process_group)  # type: ignore[no-untyped-call]
            return found

        def spread(each: Tensor) -> Tensor:
            return each.reshape(-1, *[1] * (x.ndim - 2))

        wide = x if x.dtype is torch.float64 else x.float()
        axes = [i for i in range(x.ndim) if i != 1]
        total = summed(torch.cat((wide.sum(axes), wide.new_full((1,), x.numel() / x.shape[1]))))
        count = total[-1].detach()
        mean = total[:-1] / count
        deviation = wide - spread(mean)
        variance = summed(deviation.square().sum(axes)) / count
        factor = torch.rsqrt(variance + self.eps)
        value = deviation * spread(factor if self.weight is None else factor * self.weight)
        unbiased = variance.detach() * count / (count - 1)
        statistics: Any = self.running_mean, self.running_var
        for held, now in zip(statistics, (mean.detach(), unbiased), strict=True):
            held.mul_(1 - momentum).add_(now, alpha=momentum)
        return (value if self.bias is None else value + spread(self.bias)).to(x.dtype)


class _Sum(torch.autograd.Function):
    """The sum of the tensors of all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _reduced(own, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return _reduced(grad_outputs[0], ctx.group), None


def _reduced(own: Tensor, group: Any) -> Tensor:
    total = own.clone()
    dist.all_reduce(total, group=group)
    return total


__all__ = ["SyncBatchNormStatistics"]
