"""Cache a value while the tensors from which it is computed do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class CachedValue:
    """The last value, with the versions of its input tensors.

    The cache is not used while compiling, and is emptied when gradients are enabled.  Inputs without a version or
    storage (in inference mode or in torch.func) are never cached.  Copies start empty.

    >>> cache, x = CachedValue(), torch.ones(2)
    >>> with torch.no_grad():
    ...     cache.get([x], lambda: x * 2) is cache.get([x], lambda: x * 2)
    ...     y = cache.get([x.add_(1)], lambda: x * 2)
    True
    >>> y
    tensor([4., 4.])
    """

    def __init__(self) -> None:
        self.versions: list[tuple[Tensor, int, int]] = []
        self.value: Tensor | None = None

    def get(self, tensors: Sequence[Tensor], compute: Callable[[], Tensor]) -> Tensor:
        """Return compute(), or its cached result for the same versions of the same tensors."""
        if torch.compiler.is_compiling():
            return compute()
        if torch.is_grad_enabled():
            self.clear()  # a step may follow, and fused optimizers do not bump versions
            return compute()
        try:
            versions = [(t, t.data_ptr(), t._version) for t in tensors]
        except RuntimeError:  # no version, or no storage
            return compute()
        same = len(versions) == len(self.versions) and all(
            a[0] is b[0] and a[1:] == b[1:] for a, b in zip(versions, self.versions, strict=True)
        )
        value = self.value if same else None
        if value is None:
            value = self.value = compute()
            self.versions = versions
        return value

    def clear(self) -> None:
        """Drop the value."""
        self.versions, self.value = [], None

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedValue:
        return CachedValue()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedValue, ()
