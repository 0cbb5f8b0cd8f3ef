"""A value that is computed once while what it is computed from does not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class CachedValue:
    """The last value, and the tensors it was computed from, each as of then.

    It counts until a gradient is asked for, and not where anything is being compiled; tensors without a version or memory of
    their own (those of inference mode, or of torch.func) are computed from each time.  Copies start empty.

    >>> kept, x = CachedValue(), torch.ones(2)
    >>> with torch.no_grad():
    ...     kept.of([x], lambda: x * 2) is kept.of([x], lambda: x * 2)
    ...     y = kept.of([x.add_(1)], lambda: x * 2)
    True
    >>> y
    tensor([4., 4.])
    """

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, int, int]] = []
        self.value: Tensor | None = None

    def of(self, tensors: Sequence[Tensor], compute: Callable[[], Tensor]) -> Tensor:
        """Return compute(), or what it gave for the same tensors."""
        if torch.compiler.is_compiling():
            return compute()
        if torch.is_grad_enabled():
            self.forget()  # a step may follow, and fused optimizers raise no version
            return compute()
        try:
            now = [(t, t.data_ptr(), t._version) for t in tensors]
        except RuntimeError:  # no version, or no memory
            return compute()
        same = len(now) == len(self.seen) and all(a[0] is b[0] and a[1:] == b[1:] for a, b in zip(now, self.seen, strict=True))
        value = self.value if same else None
        if value is None:
            value = self.value = compute()
            self.seen = now
        return value

    def forget(self) -> None:
        """Lets the value go."""
        self.seen, self.value = [], None

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedValue:
        return CachedValue()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedValue, ()
