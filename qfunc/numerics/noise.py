"""Counter-based random numbers: a pure function of seed and step, the same on every device, without a generator."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF  # 32 bits, in int64
ROUNDS = 7


def uniform(shape: Sequence[int], seed: Tensor, step: Tensor) -> Tensor:
    """Return uniform numbers in [0, 1), multiples of 2^-24: u = floor(word / 2^8) / 2^24 with the words of `philox`.

    Of n elements in m = ceil(n / 4) counters, element i is word i div m of counter (i mod m, 0, step low, step
    high) under the key (seed low, seed high).  Different steps give independent streams.

    Args:
        shape: Shape of the result.
        seed: The key, an int64 scalar; all its 64 bits are used.
        step: The number of the key's stream, an int64 scalar.
    Returns:
        float32 on the device of the seed; the bits depend on shape, seed and step only.
    Source: `philox`.

    >>> uniform((3,), torch.tensor(0), torch.tensor(0)).tolist()
    [0.3727983832359314, 0.05287545919418335, 0.30887025594711304]
    """
    count = prod(shape)
    index = torch.arange((count + 3) // 4, device=seed.device)
    counter = (index, torch.zeros_like(step), step & _WORD, (step >> 32) & _WORD)
    words = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    parts = [(word >> 8).bitwise_and_(0xFFFFFF).float() for word in words]
    return torch.cat(parts).mul_(2.0**-24)[:count].reshape(tuple(shape))


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor], rounds: int = ROUNDS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Philox 4x32: map a 128-bit counter to 128 random bits under a 64-bit key.

    Each round is (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)) with
    hi and lo the halves of a 64-bit product; then the key advances by the steps of a Weyl sequence.

    Args:
        counter: Four words in [0, 2^32) as int64; words 1 to 3 scalars, word 0 of shape [m].
        key: Two such scalars.
        rounds: 7, the fewest that pass all tests of TestU01's BigCrush, or 10, with the usual margin; at least 2.
    Returns:
        Four tensors [m]; their low 32 bits are the words.
    Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC11), section 4.3 and table 2.

    >>> zero = torch.tensor(0)
    >>> [hex(int(w) & 0xFFFFFFFF) for w in philox((torch.zeros(1).long(), zero, zero, zero), (zero, zero), 10)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for i in range(rounds):
        # int64 products wrap, and >> copies the sign; the mask keeps only the 32 correct bits.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, high1 = p0 >> 32, p1 >> 32
        if i < 2:  # some words are still scalars, too small to write into
            high0, high1 = (high0 ^ c3 ^ k1) & _WORD, (high1 ^ c1 ^ k0) & _WORD
        else:
            high0 = high0.bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(_WORD)
            high1 = high1.bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(_WORD)
        c0, c1, c2, c3 = high1, p1, high0, p0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3
