"""again: pure functions whose values the backward computes again instead of keeping them.

What a convolution keeps of quantized tensors is a function of what autograd keeps anyway: of the tensors before they
were quantized, which the scales' gradient needs, and of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from qfunc.errors import CalibrationError
from qfunc.numerics._compiled import levels


def recomputable(work: Callable[..., Tensor], x: Tensor, *tensors: Tensor) -> Tensor:
    """Return work(x, *tensors), which a compiled backward, and an eager one of `recompute_quantized`, may compute again.

    >>> recomputable(torch.add, torch.ones(1), torch.ones(1))
    tensor([2.])
    """
    if not torch.is_grad_enabled():
        return work(x, *tensors)
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting() or levels(x, *tensors).shape[0]:  # torch.func knows nothing that is computed again
            return work(x, *tensors)
        computed: Tensor = checkpoint(work, x, *tensors, use_reentrant=False)
        return computed
    value, memory = work(x, *tensors), _MEMORY.get()
    if memory is not None:
        memory.remember(value, work, (x, *tensors))
    return value


@contextmanager
def recompute_quantized() -> Iterator[None]:
    """Within it, a forward keeps no quantized tensor for its backward, which quantizes again what it needs of them.

        with qfunc.recompute_quantized():
            loss = F.cross_entropy(student(x), y)
        loss.backward()

    A convolution keeps its input and its weight as quantized, x_hat = Q(x), and autograd keeps x and the parameters of Q
    besides.  Here x_hat is computed from those once more, to the same bits, noise included: gradients do not change.
    What is not kept anyway is not kept for this: an x that no op needs for its gradient leaves x_hat where it is.
    As with every `torch.autograd.graph.saved_tensors_hooks`, of several contexts the innermost counts.  What
    `torch.compile` compiles needs no such context, and does not mind one: a compiled backward always computes again.

    Raises:
        CalibrationError: in the backward, if in the meantime a tensor behind x_hat was changed in place.

    >>> import qfunc
    >>> from qfunc import targets
    >>> quantized = qfunc.quantize(targets.tensorrt)(torch.nn.Linear(3, 2))
    >>> student, x = qfunc.calibrate([torch.ones(2, 3)])(quantized).train(), torch.ones(2, 3, requires_grad=True)
    >>> with recompute_quantized():
    ...     loss = student(x).sum()
    >>> loss.backward()
    """
    if torch.compiler.is_compiling():
        yield
        return
    memory = _Memory()
    token = _MEMORY.set(memory)
    try:
        with saved_tensors_hooks(memory.pack, memory.unpack):
            yield
    finally:
        _MEMORY.reset(token)


class _Quantized:
    """How a value came to be."""

    def __init__(self, value: Tensor, work: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
        self.work, self.tensors = work, tuple(t.detach() for t in tensors)
        self.lasting = tensors[0].is_leaf and tensors[0].requires_grad  # a parameter
        self.versions = [t._version for t in tensors]
        self.version, self.dtype, self.size, self.stride = value._version, value.dtype, value.shape, value.stride()
        self.alive: Any = None  # tells of the value's end
        self.latest: Any = lambda: None

    def compute(self) -> Tensor:
        """Return the value, with its strides."""
        value: Tensor | None = self.latest()
        if value is not None:
            return value
        if [t._version for t in self.tensors] != self.versions:
            raise CalibrationError(
                where="recompute_quantized",
                found="a tensor that was changed in place between forward and backward",
                wanted="what was quantized, as it was, to quantize it again",
                do="Change it after the backward, or leave recompute_quantized out.",
            )
        with torch.no_grad():
            value = self.work(*self.tensors)
            if value.stride() != self.stride:
                value = torch.empty_strided(self.size, self.stride, dtype=value.dtype, device=value.device).copy_(value)
        self.latest = ref(value)
        return value


class _Memory:
    """What was quantized, by the address of what came of it; no entry outlives what it is about."""

    def __init__(self) -> None:
        self.quantized: dict[int, _Quantized] = {}
        self.kept: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def remember(self, value: Tensor, work: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
        """Notes how a value came to be, while it is alive."""
        address = _address(value)
        whole = address is not None and value.untyped_storage().nbytes() == value.numel() * value.element_size()
        if address is None or not whole or address == _address(tensors[0]):
            return
        made = self.quantized[address] = _Quantized(value, work, tensors)

        def forget(_: object) -> None:
            if self.quantized.get(address) is made:
                del self.quantized[address]

        made.alive = ref(value, forget)

    def pack(self, t: Tensor) -> Any:
        """Return the tensor, or how to compute it again."""
        address = _address(t)
        if address is None:
            return t
        made = self.quantized.get(address)
        if made is not None and (made.version, made.dtype) == (t._version, t.dtype):
            source = _address(made.tensors[0])
            if made.lasting or source in self.kept:
                return made, t.shape, t.stride(), t.storage_offset()
        self.kept[address] = t
        return t

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        """Return the tensor that was packed."""
        if isinstance(packed, Tensor):
            return packed
        made, *place = packed
        return made.compute().as_strided(*place)  # type: ignore[no-any-return]


_MEMORY: ContextVar[_Memory | None] = ContextVar("_MEMORY", default=None)


def _address(t: Tensor) -> int | None:
    # None where a tensor has no memory or version of its own: sparse, of torch.func, of inference mode.
    try:
        return t.untyped_storage().data_ptr() if t._version >= 0 and t.numel() else None
    except (RuntimeError, NotImplementedError):
        return None


__all__ = ["recomputable", "recompute_quantized"]
