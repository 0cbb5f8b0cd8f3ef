"""Noise from a seed and a step: the published generator, its statistics, and no hidden state."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import Tensor

from qfunc.numerics.noise import ROUNDS, philox, uniform

# Random123 1.14, tests/kat_vectors: rounds, counter, key, words.
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
ONES = (0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2
ZEROS = (0,) * 4, (0,) * 2
KNOWN = [
    (7, *ZEROS, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (7, *ONES, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (7, *PI, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
    (10, *ZEROS, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, *ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (10, *PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
COUNT = 1 << 18
SEEDS = [0, 1, -1, 0x123456789ABCDEF]


def number(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)


def drawn(seed: int, step: int, count: int = COUNT) -> Tensor:
    return uniform((count,), number(seed), number(step)).double()


def by_hand(seed: int, step: int, count: int) -> list[float]:
    # The paper's rounds in Python integers, element by element.
    numbers, m = [], -(-count // 4)
    for i in range(count):
        c = [i % m, 0, step & 0xFFFFFFFF, step >> 32 & 0xFFFFFFFF]
        k = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
        for _ in range(7):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        numbers.append((c[i // m] >> 8) / 2**24)
    return numbers


@pytest.mark.parametrize(("rounds", "counter", "key", "words"), KNOWN)
def test_the_generator_gives_its_published_vectors(
    rounds: int, counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    """Philox 4x32 of 7 and of 10 rounds."""
    c0, c1, c2, c3 = (number(c) for c in counter)
    found = philox((c0.reshape(1), c1, c2, c3), (number(key[0]), number(key[1])), rounds)

    assert [int(w) & 0xFFFFFFFF for w in found] == list(words)


@pytest.mark.parametrize("seed", [*SEEDS, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("step", [0, 1, 2**32 + 5, -1])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9])
def test_numbers_are_those_of_integers_by_hand(seed: int, step: int, count: int) -> None:
    """All 64 bits of seed and step count; every remainder of the length by four."""
    assert drawn(seed, step, count).tolist() == by_hand(seed, step, count)


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_lie_on_a_grid_below_one(seed: int) -> None:
    """Multiples of 2^-24 in [0, 1), which float32 holds exactly; the shape is only a shape."""
    u = uniform((64, 32, 128), number(seed), number(3))

    assert u.dtype == torch.float32
    assert u.min() >= 0
    assert u.max() <= 1 - 2.0**-24
    assert torch.equal(u * 2**24, torch.floor(u * 2**24))
    assert (u * 2**24 % 2).mean() > 0.4  # the last bit is in use
    assert torch.equal(u.flatten(), uniform((COUNT,), number(seed), number(3)))


def test_the_largest_word_is_below_one() -> None:
    """2^32 - 1 would round to 1.0 if it were not cut to 24 bits first."""
    assert float(torch.tensor(2**32 - 1).float() / 2**32) == 1.0
    assert ((2**32 - 1) >> 8) / 2**24 < 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("step", [0, 1, 2**40])
def test_mean_variance_and_bins_are_uniform(seed: int, step: int) -> None:
    """Each within 5 standard deviations of the exact value for n independent uniform numbers."""
    u = drawn(seed, step)
    # sd of the mean sqrt(1/12 / n); of the variance about 1/2 sqrt((1/80 - 1/144) / n).
    assert abs(u.mean() - 0.5) < 5 * sqrt(1 / 12 / COUNT)
    assert abs(((u - 0.5) ** 2).mean() - 1 / 12) < 5 * sqrt((1 / 80 - 1 / 144) / COUNT)
    # Chi-square of 256 bins has mean 255 and standard deviation sqrt(2 * 255); also for the low 8 of 24 bits.
    for bins in ((u * 256).long(), (u * 2**24).long() % 256):
        counts, expected = torch.bincount(bins, minlength=256).double(), COUNT / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 5 * sqrt(510)


def correlation(a: Tensor, b: Tensor) -> float:
    # n * the exact covariance of independent uniform numbers is normal, its scale 1/12 sqrt(n).
    return float(((a - 0.5) * (b - 0.5)).mean() * 12 * sqrt(a.numel()))


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_steps_and_seeds_are_uncorrelated(seed: int) -> None:
    """Correlations of n pairs have standard deviation 1/sqrt(n); all within 5 of them."""
    u = drawn(seed, 7)
    found = {f"lag {k}": correlation(u[k:], u[:-k]) for k in (1, 2, 3, 4, 64, COUNT // 4, COUNT // 2)}
    found |= {f"step {k}": correlation(u, drawn(seed, 7 + k)) for k in (1, 2, 1 << 32)}
    found |= {f"seed {k}": correlation(u, drawn(seed ^ k, 7)) for k in (1, 2, 1 << 32)}

    assert {k: v for k, v in found.items() if abs(v) >= 5} == {}


def test_pairs_fill_the_square() -> None:
    """Chi-square of 32 x 32 cells of (u_i at step t, u_i at step t+1): mean 1023, within 5 standard deviations."""
    a, b = (drawn(5, step) for step in (0, 1))
    counts = torch.bincount((a * 32).long() * 32 + (b * 32).long(), minlength=1024).double()

    assert abs(((counts - COUNT / 1024) ** 2).sum() / (COUNT / 1024) - 1023) < 5 * sqrt(2 * 1023)


def test_torchs_generator_is_neither_read_nor_moved() -> None:
    """The same numbers whatever the global state, which stays as it was; seed and step stay too."""
    seed, step = number(3), number(4)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = uniform((5, 7), seed, step)

    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(first, uniform((5, 7), seed, step))
    assert (int(seed), int(step)) == (3, 4)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)])
def test_shapes(shape: tuple[int, ...]) -> None:
    """Scalars and empty shapes too."""
    assert uniform(shape, number(1), number(2)).shape == shape


def test_compiles_whole() -> None:
    """One graph, equal bits; the step is not a constant of the graph."""
    compiled = torch.compile(uniform, fullgraph=True, backend="aot_eager")
    for step in (0, 1, 2**40):
        assert torch.equal(compiled((5, 7), number(-9), number(step)), uniform((5, 7), number(-9), number(step)))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_vmap_is_the_loop(axes: tuple[int | None, int | None]) -> None:
    """Over seeds, over steps, over both."""
    seeds, steps = torch.tensor([3, -4, 2**40]), torch.tensor([0, 9, 2**33])
    given = [t if axis == 0 else t[1] for t, axis in zip((seeds, steps), axes, strict=True)]
    found = torch.func.vmap(lambda a, b: uniform((2, 3), a, b), axes)(*given)
    pairs = [[t[i] if axis == 0 else t for t, axis in zip(given, axes, strict=True)] for i in range(3)]

    assert torch.equal(found, torch.stack([uniform((2, 3), a, b) for a, b in pairs]))


def test_seven_rounds_are_used() -> None:
    """The fewest of the paper that pass BigCrush."""
    assert ROUNDS == 7
