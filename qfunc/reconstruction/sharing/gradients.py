"""The gradient of a mini-batch whose images are in several parts, or in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qfunc.execution.distributed import gather_counts, tell_failure
from qfunc.reconstruction.layout import flatten_memory, unflatten_memory
from qfunc.reconstruction.sharing.parts import Drawn, Parts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Gradients:
    """The gradients of mini-batches, g = sum_p (n_p / n) g_p, over the parts p in order of rank.

    n_p of the n images of a mini-batch are in part p, and g_p is the gradient of their mean loss, in the tensors' dtype. The
    sum is in float64 and does not depend on which process computes which part.  Each process adds a share of the elements
    and sends it to all: two numbers an element, for any number of processes.

    As a context, it tells the other processes of an exception, which they raise in their place.

    Args:
        tensors: The leaves that train.
        parts: The images of all processes.
        iterations: The number of mini-batches.
        group: The result of `ranks`; None for this process alone.
    """

    def __init__(self, tensors: Sequence[Tensor], parts: Parts, iterations: int, group: ProcessGroup | None) -> None:
        self.tensors, self.parts, self.left, self.group = tensors, parts, iterations, group
        self.elements = sum(t.numel() for t in tensors) + 1  # and the loss
        self.ranks, self.most = len(parts.sizes), max(map(len, parts.sizes))
        self.share = -(-self.elements // self.ranks)
        self.exchanging = False

    def __enter__(self) -> Gradients:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and self.group is not None and not self.exchanging:
            if self.left:
                self._exchange(None)
            tell_failure(error, self.group)

    def add(self, index: Tensor, backward: Callable[[Drawn], Tensor], idle: Callable[[], None]) -> Tensor:
        """Set the gradients of the tensors for a mini-batch, and return its loss.

        Args:
            index: The images of the mini-batch, of all processes.
            backward: Computes the gradients of the tensors for some of its images, and returns their loss.
            idle: Called in place of `backward` if none of them is in this process.
        """
        drawn = self.parts.drawn(index)
        if self.parts.single:
            self._clear()
            loss = backward(drawn[0])
            self.left -= 1
            return loss
        rows = [self._row(backward, each) for each in drawn]
        if not any(len(each.places) for each in drawn):
            idle()
        weights = [[n / len(index) for n in counts] for counts in self.parts.counts(index)]
        total = _weighted([rows], weights) if self.group is None else self._exchange(rows, weights)
        total = total.to(self.tensors[0].device, self._dtype())
        self.left -= 1
        for tensor, flat in zip(self.tensors, torch.split(total[:-1], [t.numel() for t in self.tensors]), strict=True):
            tensor.grad = unflatten_memory(flat, tensor)
        return total[-1]

    def _row(self, backward: Callable[[Drawn], Tensor], drawn: Drawn) -> Tensor | None:
        # The gradients and the loss of a part; None if it has no image of the mini-batch.
        if not len(drawn.places):
            return None
        self._clear()
        loss = backward(drawn)
        grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in self.tensors]
        flat = [flatten_memory(grad, tensor) for grad, tensor in zip(grads, self.tensors, strict=True)]
        return torch.cat([*flat, loss.reshape(1)]).to(self._dtype())

    def _clear(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None

    def _dtype(self) -> torch.dtype:
        dtype = torch.float32
        for tensor in self.tensors:
            dtype = torch.promote_types(dtype, tensor.dtype)
        return dtype

    def _exchange(self, rows: Sequence[Tensor | None] | None, weights: Sequence[Sequence[float]] = ()) -> Tensor:
        # The sum of the rows of all processes; without rows, tell the others that this one fails.
        import torch.distributed as dist

        assert self.group is not None
        self.exchanging = True
        device = torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")
        sent = torch.zeros(self.ranks, self.most, self.share + 1, dtype=self._dtype(), device=device)
        sent[..., -1] = 1.0  # "failed"
        if rows is not None:
            sent[..., -1] = 0.0
            for part, row in enumerate(rows):
                for rank, share in enumerate(() if row is None else torch.split(row, self.share)):
                    sent[rank, part, : len(share)] = share
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        if bool((received[..., -1] == 1).any()):
            if rows is not None:
                gather_counts((), 1, (), self.group, "reconstruct")  # raises the failure
            self.exchanging = False
            return received
        mine = _weighted(received[..., :-1], weights).to(sent.dtype)
        shares = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(shares, mine, group=self.group)
        self.exchanging = False
        return torch.cat(shares)[: self.elements]


def _weighted(rows: Iterable[Iterable[Tensor | None]], weights: Iterable[Iterable[float]]) -> Tensor:
    # The sum of the rows of the parts of each process times their weights, in order, in float64, without those of no image.
    terms = (
        row.double().mul_(factor)
        for of_rank, factors in zip(rows, weights, strict=True)
        for row, factor in zip(of_rank, factors, strict=False)
        if row is not None and factor
    )
    return reduce(Tensor.add_, terms)
