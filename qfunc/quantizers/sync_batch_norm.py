"""SyncBatchNorm for quantized training, with statistics over all processes also on the CPU, where torch has none."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.func import functional_call


class SyncBatchNormStatistics(nn.BatchNorm1d):
    """A replacement for an nn.SyncBatchNorm that shares its tensors, and calls it on devices other than the CPU.

    On the CPU, with x_i the n_i values of a channel in process i, and N = sum n_i, all sums by `all_reduce`:

        mean = sum x / N;  var = sum (x - mean)^2 / N;  y = (x - mean) / sqrt(var + eps) * gamma + beta

    and the gradient is that of the sum of the processes' losses, as data parallel training needs it.  Without a process
    group it behaves as nn.BatchNorm, for any rank, and `torch.optim.swa_utils.update_bn` treats it as one.  It is not an
    nn.SyncBatchNorm, because DistributedDataParallel refuses that on the CPU.

    >>> norm = SyncBatchNormStatistics(nn.SyncBatchNorm(2))
    >>> norm(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).round().tolist(), norm.running_mean.tolist()
    ([[-1.0, 0.0], [1.0, 0.0]], [0.20000000298023224, 0.20000000298023224])
    """

    def __init__(self, of: nn.SyncBatchNorm) -> None:
        super().__init__(of.num_features, of.eps, of.momentum, of.affine, device="meta")
        self.process_group = of.process_group
        self.fused = (of,)  # not a submodule, because it shares these tensors
        self._parameters.clear()
        self._buffers.clear()
        for name, parameter in of._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in of._buffers.items():
            self.register_buffer(name, buffer)
        self.training = of.training

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized [N, C, ...] of [N, C, ...]; in training, update the running statistics."""
        alone = not (self.training and dist.is_available() and dist.is_initialized())
        if not alone and input.device.type != "cpu":
            own = {n for n, _ in self.fused[0].named_buffers()}  # without buffers that others registered here
            tensors = dict(self.named_parameters()) | {n: b for n, b in self.named_buffers() if n in own}
            self.fused[0].momentum = self.momentum
            return functional_call(self.fused[0].train(), tensors, (input,))  # type: ignore[no-any-return]
        momentum = 0.0
        if self.training:
            batches: Any = self.num_batches_tracked
            batches.add_(1)
            momentum = 1 / batches.item() if self.momentum is None else self.momentum
        if alone:
            state = (self.running_mean, self.running_var, self.weight, self.bias)
            return F.batch_norm(input, *state, self.training, momentum, self.eps)
        return self._of_all(input, momentum)

    def _of_all(self, x: Tensor, momentum: float) -> Tensor:
        def summed(terms: Tensor) -> Tensor:
            result: Tensor = _Sum.apply(terms, self.process_group)  # type: ignore[no-untyped-call]
            return result

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
        for statistic, now in zip(statistics, (mean.detach(), unbiased), strict=True):
            statistic.mul_(1 - momentum).add_(now, alpha=momentum)
        return (value if self.bias is None else value + spread(self.bias)).to(x.dtype)


class _Sum(torch.autograd.Function):
    """The sum of the tensors of all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, terms: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _reduced(terms, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return _reduced(grad_outputs[0], ctx.group), None


def _reduced(terms: Tensor, group: Any) -> Tensor:
    total = terms.clone()
    dist.all_reduce(total, group=group)
    return total
