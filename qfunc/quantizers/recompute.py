"""Recompute quantized tensors in the backward pass instead of saving them.

The quantized tensors that a convolution saves are functions of tensors that autograd saves anyway: the tensors before
quantization, which the gradient of the scales needs, and parameters.
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


def recomputable(work: Callable[..., Tensor], x: Tensor, *tensors: Tensor) -> Tensor:
    """Return work(x, *tensors); a compiled backward, or an eager one in `recompute_quantized`, may recompute it.

    >>> recomputable(torch.add, torch.ones(1), torch.ones(1))
    tensor([2.])
    """
    if not torch.is_grad_enabled():
        return work(x, *tensors)
    if torch.compiler.is_compiling():
        from qfunc.numerics._compiled import in_derivative  # loads Dynamo

        if torch.compiler.is_exporting() or in_derivative():  # which does not support checkpoints
            return work(x, *tensors)
        computed: Tensor = checkpoint(work, x, *tensors, use_reentrant=False)
        return computed
    value, memory = work(x, *tensors), _MEMORY.get()
    if memory is not None:
        memory.add(value, work, (x, *tensors))
    return value


@contextmanager
def recompute_quantized() -> Iterator[None]:
    """Save no quantized tensors in forwards inside this context; recompute them in the backward.

        with qfunc.recompute_quantized():
            loss = F.cross_entropy(student(x), y)
        loss.backward()

    A convolution saves its quantized input and weight, x_hat = Q(x), and autograd also saves x and the parameters of Q.
    This context recomputes x_hat from those, bit for bit, noise included, so gradients do not change.  It saves no
    additional tensors: if no op needs x for its gradient, x_hat is saved as usual.  As with all
    `torch.autograd.graph.saved_tensors_hooks`, only the innermost context applies.  Models compiled by `torch.compile`
    do not need the context and ignore it: a compiled backward always recomputes.

    Raises:
        CalibrationError: in the backward, if an input of x_hat was changed in place after the forward.

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
    """The function and the inputs of a quantized value."""

    def __init__(self, value: Tensor, work: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
        self.work, self.tensors = work, tuple(t.detach() for t in tensors)
        self.is_parameter = tensors[0].is_leaf and tensors[0].requires_grad  # a parameter
        self.versions = [t._version for t in tensors]
        self.version, self.dtype, self.size, self.stride = value._version, value.dtype, value.shape, value.stride()
        self.original: Any = None  # a weak reference to the value; its callback runs when the value is freed
        self.recomputed: Any = lambda: None  # a weak reference to the last result of compute()

    def compute(self) -> Tensor:
        """Return the value, with its strides."""
        value: Tensor | None = self.recomputed()
        if value is not None:
            return value
        if [t._version for t in self.tensors] != self.versions:
            raise CalibrationError(
                where="recompute_quantized",
                found="a tensor that was changed in place between forward and backward",
                wanted="an unchanged tensor, from which the quantized one is recomputed",
                do="Change it after the backward, or remove recompute_quantized.",
            )
        with torch.no_grad():
            value = self.work(*self.tensors)
            if value.stride() != self.stride:
                value = torch.empty_strided(self.size, self.stride, dtype=value.dtype, device=value.device).copy_(value)
        self.recomputed = ref(value)
        return value


class _Memory:
    """The recipes of quantized values by the values' addresses; an entry is dropped when its value is freed."""

    def __init__(self) -> None:
        self.quantized: dict[int, _Quantized] = {}
        self.saved: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def add(self, value: Tensor, work: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
        """Record the function and inputs of a value while the value is alive."""
        address = _address(value)
        fills_storage = address is not None and value.untyped_storage().nbytes() == value.numel() * value.element_size()
        if address is None or not fills_storage or address == _address(tensors[0]):
            return
        entry = self.quantized[address] = _Quantized(value, work, tensors)

        def remove(_: object) -> None:
            if self.quantized.get(address) is entry:
                del self.quantized[address]

        entry.original = ref(value, remove)

    def pack(self, t: Tensor) -> Any:
        """Return the tensor, or the recipe to recompute it."""
        address = _address(t)
        if address is None:
            return t
        entry = self.quantized.get(address)
        if entry is not None and (entry.version, entry.dtype) == (t._version, t.dtype):
            source = _address(entry.tensors[0])
            if entry.is_parameter or source in self.saved:
                return entry, t.shape, t.stride(), t.storage_offset()
        self.saved[address] = t
        return t

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        """Return the packed tensor, recomputed if necessary."""
        if isinstance(packed, Tensor):
            return packed
        entry, *view = packed
        return entry.compute().as_strided(*view)  # type: ignore[no-any-return]


_MEMORY: ContextVar[_Memory | None] = ContextVar("_MEMORY", default=None)


def _address(t: Tensor) -> int | None:
    # None if a tensor has no storage or version: sparse tensors, torch.func's wrappers, inference mode.
    try:
        return t.untyped_storage().data_ptr() if t._version >= 0 and t.numel() else None
    except (RuntimeError, NotImplementedError):
        return None
