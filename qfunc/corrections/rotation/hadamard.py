"""Hadamard matrices: orthogonal, with all elements of one magnitude, so that they spread each value over all channels."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor


def hadamard(order: int) -> Tensor | None:
    """Return a matrix H of 1 and -1 with  H H^T = order 1, [order, order] in float64; None for an order that is not built here.

    Orders are 1, 2, and p + 1 or 2 (p + 1) for a prime p with p + 1 or p - 1 divisible by 4 (Paley), and products of an
    order with a power of two (Sylvester).

    Source: Paley, "On orthogonal matrices", J. Math. Phys. 12, 1933.

    >>> hadamard(2)
    tensor([[ 1.,  1.],
            [ 1., -1.]], dtype=torch.float64)
    >>> [order for order in range(1, 100) if hadamard(order) is not None][:12]
    [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    >>> matrix = hadamard(576)
    >>> bool((matrix @ matrix.T == 576 * torch.eye(576)).all())
    True
    """
    pair, base = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), _paley(order)
    if base is not None:
        return base
    half = hadamard(order // 2) if order % 2 == 0 else None
    return None if half is None else torch.kron(pair, half)


def rotation(size: int, seed: int) -> Tensor:
    """Return an orthogonal matrix [size, size] in float64: H diag(signs) / sqrt(order), in equal blocks on the diagonal.

    The order of the blocks is the largest divisor of the size that `hadamard` has; the signs are random.

    >>> rotation(6, 0).count_nonzero(1).tolist()
    [2, 2, 2, 2, 2, 2]
    """
    order, block = next((d, h) for d in range(size, 0, -1) if size % d == 0 and (h := hadamard(d)) is not None)
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1
    blocks: Tensor = torch.kron(torch.eye(size // order, dtype=torch.float64), block)
    turned: Tensor = blocks * signs / order**0.5
    return turned


def _paley(order: int) -> Tensor | None:
    # H = 1 + S for a skew S with S S^T = (order - 1) 1, or  C x [[1, 1], [1, -1]] + 1 x [[1, -1], [-1, -1]]  for a symmetric C.
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if order == 2:
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    if order % 4:
        return None
    if _is_prime(order - 1):  # it is 3 modulo 4
        return _conference(order - 1) + torch.eye(order, dtype=torch.float64)
    prime = order // 2 - 1
    if prime % 4 == 1 and _is_prime(prime):
        mixed, other = (torch.tensor(m, dtype=torch.float64) for m in ([[1, 1], [1, -1]], [[1, -1], [-1, -1]]))
        return torch.kron(_conference(prime), mixed) + torch.kron(torch.eye(prime + 1, dtype=torch.float64), other)
    return None


def _conference(prime: int) -> Tensor:
    # The matrix C [p + 1, p + 1] with C C^T = p 1 of the quadratic characters of differences; skew for p = 3 modulo 4.
    squares = {i * i % prime for i in range(1, prime)}
    characters = torch.tensor([0.0] + [1.0 if i in squares else -1.0 for i in range(1, prime)], dtype=torch.float64)
    index = torch.arange(prime)
    matrix = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    matrix[1:, 1:] = characters[(index.unsqueeze(1) - index) % prime]
    matrix[0, 1:] = 1.0
    matrix[1:, 0] = -1.0 if prime % 4 == 3 else 1.0
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % i for i in range(2, isqrt(number) + 1))
