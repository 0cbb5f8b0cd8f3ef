"""reconstruct in two and four processes is reconstruct in one, on the batches of all in order of rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import qfunc
from qfunc.graph.sites import quantizer_nodes
from qfunc.reconstruction.sharing.gradients import Gradients
from qfunc.reconstruction.sharing.parts import Parts
from tests.processes import start_processes
from tests.reconstruction.ranks import (
    BREAKS, CASES, METHODS, RANKS, SHARES, SIZES, batches, linear, model, state, without_those_after, work,
)  # fmt: skip


class Found(NamedTuple):
    """What each rank found, the folder, and how the last case ended."""

    ranks: list[dict[str, Any]]
    folder: Path
    end: str


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One start of four processes for all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.raises(torch.multiprocessing.ProcessExitedException) as ended:
        start_processes(work, (str(folder),), RANKS)
    return Found([torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)], folder, str(ended.value))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def one_process(found: Found, key: str) -> dict[str, Tensor]:
    return next(each[f"one process: {key}"] for each in found.ranks if f"one process: {key}" in each)


@pytest.mark.thorough
@pytest.mark.parametrize(("net", "method", "ranks"), CASES)
def test_all_ranks_have_the_bits_of_one_process_with_their_parts(net: str, method: str, ranks: int, found: Found) -> None:
    """Rounding and learned scales, with dropped elements, importances, several inputs, and a rank of few images."""
    key = f"{net}, {method}, {ranks}"
    wanted = one_process(found, key)
    for each in found.ranks:
        assert same(each[key], wanted)
    # One process without parts adds the gradients in float32: the same mini-batches, masks and targets, and here the same
    # rounding, because no v ends within a rounding error of 0.
    plain = one_process(found, f"{net}, {method}, 0")
    decided = [k for k in plain if k.endswith(".v")]
    assert decided
    assert all(torch.equal(plain[k], wanted[k]) for k in decided)


def test_the_ranks_matter() -> None:
    """Else equality shows nothing: the images of two ranks alone give another rounding."""
    given = model("resnet")
    whole, half = (
        state(qfunc.reconstruct(METHODS["adaround"], own, progress=False)(given))
        for own in (batches("resnet"), batches("resnet")[:3])
    )
    assert not same(whole, half)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_those_of_the_joint_loss(ranks: int, found: Found) -> None:
    """The loss of all images at once, in float64, by its equation: the mean over images of sum_c (relu(W x + b) - t)_c^2.

    A pre-activation of K = 6 products and a bias, and a target, are sums in float32: each errs by (K + 2) u A, with u = 2^-24
    and A the sum of magnitudes, and the difference d = f - t by 2 (K + 3) u A.  The gradient, 2 / N sum_n d x over N images,
    is a sum of at most N products of three roundings, (N + 8) u |d x| at most.  No pre-activation is within its error of 0.
    """
    given, x = linear()
    hat = next(s.module for s in quantizer_nodes(given) if not s.module.site.constant).eval()(x).double()
    float_weight, bias = (given.get_parameter(f"0.{name}").detach().double() for name in ("weight", "bias"))
    target = torch.relu(x.double() @ float_weight.T + bias)
    first = [each[f"gradients, {ranks}"] for each in found.ranks]
    assert len(first[0]) == 2  # iterations
    for (weight,), (gradient,) in first[0]:
        w = weight.double()
        leaf = w.clone().requires_grad_()
        loss = (torch.relu(hat @ leaf.T + bias) - target).square().sum(1).mean()
        (wanted,) = torch.autograd.grad(loss, leaf)
        before = hat @ w.T + bias
        u, n, k = 2.0**-24, len(x), x.shape[1]
        sizes = torch.maximum(hat.abs() @ w.abs().T, x.double().abs() @ float_weight.abs().T) + bias.abs()
        assert bool((before.abs() > 2 * (k + 3) * u * sizes).all())
        d = (torch.relu(before) - target).abs()
        bound = 2 / n * (2 * (k + 3) * u * sizes + (n + 8) * u * d).T @ hat.abs()
        assert bool(((gradient - wanted).abs() <= bound).all())
        assert float(bound.max()) < 0.01 * float(wanted.abs().max())
    for other in first[1:]:
        for mine, theirs in zip(first[0], other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip((*mine[0], *mine[1]), (*theirs[0], *theirs[1]), strict=True))


def test_the_gradient_of_parts_is_that_of_the_mean_loss() -> None:
    """In float64: a few roundings of 2^-53, whatever the parts, also empty ones."""
    torch.manual_seed(0)
    x, weights = torch.randn(9, 4, dtype=torch.float64), [torch.randn(4, 3, dtype=torch.float64), torch.tensor(0.5).double()]
    weights = [w.requires_grad_() for w in weights]

    def loss(rows: Tensor) -> Tensor:
        return torch.tanh(x[rows] @ weights[0] * weights[1]).square().mean()

    def backward(drawn: Any) -> Tensor:
        value = loss(drawn.rows)
        value.backward()
        return value.detach()

    index = torch.tensor([8, 0, 4, 3, 1])
    wanted = [*torch.autograd.grad(loss(index), weights), loss(index).detach()]
    for sizes in ((9,), (2, 7), (1, 1, 3, 4), (5, 0, 2, 2)):
        value = Gradients(weights, Parts((sizes,)), 1, None).add(index, backward, lambda: None)
        for a, b in zip([*(w.grad for w in weights), value], wanted, strict=True):
            assert a is not None
            assert bool(((a - b).abs() <= 32 * 2.0**-53 * wanted[0].abs().max()).all())


@pytest.mark.thorough
def test_a_process_may_have_several_parts(found: Found) -> None:
    """Two processes of two parts each, one process of four, four processes of one."""
    for each in found.ranks:
        assert same(each["more parts"], one_process(found, "resnet, qdrop, 4"))


@pytest.mark.thorough
def test_the_first_rank_writes_and_all_resume(found: Found) -> None:
    for rank, each in enumerate(found.ranks):
        resumed = each["resumed"]
        assert same(resumed["whole"], one_process(found, "resnet, qdrop, 2"))
        assert same(resumed["again"], resumed["whole"])
        assert resumed["untouched"]
        assert (resumed["files"], resumed["there"]) == ((4, True) if rank % 2 == 0 else (0, False))


@pytest.mark.thorough
def test_what_a_killed_process_leaves_goes_on(found: Found) -> None:
    """Four processes, one of which ended in the third of four units: in one process with their parts, bit for bit."""
    assert found.end == "process 2 terminated with signal SIGKILL"
    folder = found.folder / "killed"
    files = sorted(folder.glob("unit-*"))
    assert [f.name for f in files] == ["unit-0000.safetensors", "unit-0001.safetensors"]
    kept = {f: f.stat().st_mtime_ns for f in files}
    torch.set_num_threads(1)
    given = model("resnet")
    run = qfunc.reconstruct(METHODS["qdrop"], batches("resnet"), progress=False, resume=folder, parts=SHARES[4])
    assert same(state(run(given)), one_process(found, "resnet, qdrop, 4"))
    assert {f: f.stat().st_mtime_ns for f in files} == kept
    # The units of other parts are others.
    copy = without_those_after(folder, 1)
    with pytest.raises(qfunc.errors.CalibrationError) as e:
        qfunc.reconstruct(METHODS["qdrop"], batches("resnet"), progress=False, resume=copy)(given)
    assert str(e.value) == (
        f"reconstruct, resume={str(copy)!r}: found units of another division into parts, wanted the units of this division "
        "into parts. Use another directory."
    )


@pytest.mark.thorough
def test_the_first_rank_decides_if_there_is_time(found: Found) -> None:
    for each in found.ranks:
        assert each["stopped"]["ops"] == ("stem",)
        assert same(each["stopped"]["state"], found.ranks[0]["stopped"]["state"])


@pytest.mark.thorough
def test_a_rank_keeps_its_own_images_and_only_the_first_tells_of_progress(found: Found) -> None:
    own = [sum(SIZES[:3]), sum(SIZES[3:])]
    for rank, each in enumerate(found.ranks):
        assert each["kept"]
        assert set(each["kept"]) == {own[rank % 2]}
        assert each["told"].startswith("reconstruct: 3 units of 1 iterations, about ") is (rank % 2 == 0)
        assert bool(each["told"]) is (rank % 2 == 0)


def told(rank: int, text: str) -> str:
    wanted = "wanted statistics of all ranks. Fix the failure on that rank; every rank must finish the pass."
    return f"reconstruct, rank {rank}: found a failure: {text!r}, {wanted}"


PLACES = [*((place, call, number % RANKS) for number, (place, call) in enumerate(BREAKS)), ("file", 1, 0), ("file", 3, 0)]


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "call", "failed"), PLACES)
def test_an_exception_anywhere_in_one_rank_ends_all(place: str, call: int, failed: int, found: Found) -> None:
    for rank, each in enumerate(found.ranks):
        text = f"broken {place}, call {call}"
        wanted = text if rank == failed else told(failed, f"ValueError: {text}")
        assert each["failures"][f"{place} {call}"] == wanted


@pytest.mark.thorough
def test_after_failures_the_group_works(found: Found) -> None:
    for each in found.ranks:
        assert same(each["after failures"], one_process(found, "pair, adaround, 2"))


FEW = "wanted at least 3. Pass images as for calibration; the papers use 1,024."
ALIKE = "wanted batches that differ only in the number of images. Give images, or padded sequences, of one size."
IMAGES = "reconstruct, input 'x': found torch.float32 of shape (3, 6, 7) an image and torch.float32 of shape"
SAME = "Call reconstruct with the same arguments in all processes, except for the batches."
BOTH = {
    "no images": "reconstruct, rank 1, batches: found 0 images, wanted at least one in each process. Give each process batches "
    "of its own.",
    "two images": f"reconstruct, batches: found 2 images, {FEW}",
    "wrong batch": f"{IMAGES} (2, 6, 7) an image, {ALIKE}",
    "other sizes": f"{IMAGES} (3, 6, 6) an image, {ALIKE}",
    "other methods": f"reconstruct, ranks 0 and 1: found another method, wanted the same method. {SAME}",
    "other models": f"reconstruct, ranks 0 and 1: found another model, wanted the same model. {SAME}",
}
ALONE: dict[str, tuple[int, str]] = {
    "no batches": (
        0, "reconstruct: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up.",
    ),
    "other parts": (
        1, "reconstruct, parts: found 4 batches, wanted 3, the sum of (2, 1). Give the number of batches of each part.",
    ),
    "directory": (
        0, "reconstruct, resume='occupied': found other files (other), wanted an empty directory, or one written with resume=. "
        "Use another directory.",
    ),
    "time": (
        0, "reconstruct, seconds: found 1e-09 s, wanted about # s for the first of 7 units. Allow more time, or take fewer "
        "iterations or smaller units.",
    ),
}  # fmt: skip
"""The rank that fails, and its message without the folder and the seconds that it takes."""


@pytest.mark.thorough
@pytest.mark.parametrize("case", BOTH)
def test_all_ranks_are_told_the_same(case: str, found: Found) -> None:
    for each in found.ranks:
        assert each["refusals"][case] == BOTH[case]


@pytest.mark.thorough
@pytest.mark.parametrize("case", ALONE)
def test_what_is_wrong_on_one_rank_is_told_to_all(case: str, found: Found) -> None:
    rank, message = ALONE[case]
    for pair in (found.ranks[:2], found.ranks[2:]):
        text = pair[rank]["refusals"][case]
        assert re.sub(r"'/[^']*/occupied'", "'occupied'", re.sub(r"about [0-9.e-]+ s", "about # s", text)) == message
        assert pair[1 - rank]["refusals"][case] == told(rank, text)
