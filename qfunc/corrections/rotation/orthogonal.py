"""Random Hadamard rotations of any size."""

from __future__ import annotations

import torch
from attrs import field, frozen
from torch import Tensor


@frozen(eq=False)
class Rotation:
    """x -> x Q along the last axis, with Q = D (O x H_k / 2^(k/2)) of size n = m 2^k, m odd.

    D has random signs on its diagonal, O is a random rotation of size m, and H_k is Sylvester's Hadamard matrix of size
    2^k.  Each entry of x Q is a sum over all entries of x, so that no channel stays much larger than the others.

    Args:
        size: n.
        seed: The seed of D and O.

    >>> turned = Rotation(4, seed=0).apply(torch.eye(4, dtype=torch.float64))
    >>> turned.abs().tolist()[0], torch.equal(turned @ turned.T, torch.eye(4, dtype=torch.float64))
    ([0.5, 0.5, 0.5, 0.5], True)
    """

    size: int
    seed: int
    signs: Tensor = field(init=False, repr=False)
    rest: Tensor = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        odd, generator = self.size, torch.Generator().manual_seed(self.seed)
        while odd % 2 == 0:
            odd //= 2
        signs = torch.randint(0, 2, (self.size,), generator=generator, dtype=torch.float64) * 2 - 1
        drawn = torch.randn(odd, odd, generator=generator, dtype=torch.float64)
        object.__setattr__(self, "signs", signs)
        object.__setattr__(self, "rest", torch.linalg.qr(drawn)[0] if odd > 1 else torch.ones(1, 1, dtype=torch.float64))

    def apply(self, x: Tensor) -> Tensor:
        """Return x Q for x [..., n] in float64; for columns, W -> Q^T W, give and take transposed tensors."""
        odd = len(self.rest)
        value = (x * self.signs.to(x)).reshape(-1, odd, self.size // odd)
        half = 1
        while half < self.size // odd:
            pairs = value.reshape(-1, odd, self.size // odd // (2 * half), 2, half)
            left, right = pairs.unbind(3)
            value = torch.stack((left + right, left - right), 3).reshape(value.shape)
            half *= 2
        value = value / float(self.size // odd) ** 0.5
        return torch.einsum("rms,mn->rns", value, self.rest.to(x)).reshape(x.shape) if odd > 1 else value.reshape(x.shape)


__all__ = ["Rotation"]
