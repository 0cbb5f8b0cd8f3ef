"""Four processes of one group that reconstruct side by side, all together and in two pairs; each stores what it found."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.execution.distributed import alone
from qfunc.execution.time_budget import Budget
from qfunc.reconstruction import Fisher, reconstructed
from qfunc.reconstruction import run_graph as part
from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.checkpoint import Checkpoint
from qfunc.reconstruction.optimize import Distance
from qfunc.reconstruction.rounding import RoundingState
from tests.reconstruction.small_nets import Attention, Chain, Inverted, Pair, Resnet, calibrated, images

RANKS = 4
SIZES = (3, 2, 4, 1, 5, 1, 2)
"""The images of each batch; a rank may have one image, and most mini-batches have none of it."""
SHARES = {2: (3, 4), 4: (2, 1, 1, 3)}
"""The batches of each rank, by the number of ranks."""
QUICK = {"iterations": 8, "batch": 6, "rounding_lr": 0.2}
METHODS: dict[str, Any] = {
    "adaround": qfunc.adaround(**QUICK),
    "brecq": qfunc.brecq(**QUICK, scale_lr=1e-3, loss=Fisher()),
    "qdrop": qfunc.qdrop(**QUICK, scale_lr=1e-3),
    "qdrop, 0.3": evolve(qfunc.qdrop(**QUICK, scale_lr=1e-3), drop=0.3),
}


class Outer(nn.Module):
    """A network of which a part is quantized, and called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Chain(1), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) + self.body(x.flip(3)))


NETS: dict[str, Callable[[], nn.Module]] = {"resnet": Resnet, "inverted": Inverted, "attention": Attention, "pair": Pair}
CASES = [
    ("resnet", "adaround", 2), ("resnet", "brecq", 4), ("resnet", "qdrop", 2), ("resnet", "qdrop", 4),
    ("inverted", "qdrop, 0.3", 4), ("attention", "qdrop", 2), ("pair", "adaround", 2), ("outer", "qdrop", 4),
]  # fmt: skip
"""A network, a method and a number of ranks."""


def batches(net: str) -> list[Any]:
    """The batches of all ranks."""
    count, generator = sum(SIZES), torch.Generator().manual_seed(4)
    if net == "attention":
        mask = torch.arange(5)[None] < torch.randint(2, 6, (count, 1), generator=generator)
        ids = torch.randint(7, (count, 5), generator=generator)
        return list(zip(ids.split(SIZES), mask.split(SIZES), strict=True))
    if net == "pair":
        a, b = torch.randn(count, 4, generator=generator), torch.randn(count, 3, generator=generator)
        return list(zip(a.split(SIZES), b.split(SIZES), strict=True))
    return list(images(count).split(SIZES))


def share(parts: list[Any], rank: int, ranks: int) -> list[Any]:
    """The batches of a rank."""
    start = sum(SHARES[ranks][:rank])
    return parts[start : start + SHARES[ranks][rank]]


def model(net: str) -> Any:
    """A model that this process calibrates alone."""
    with alone():
        if net == "outer":
            torch.manual_seed(0)
            return qfunc.calibrate(batches(net))(qfunc.quantize(targets.academic(3, 4), submodules="body")(Outer()))
        return calibrated(NETS[net](), batches(net))


def state(found: nn.Module) -> dict[str, Tensor]:
    """The state, copied."""
    return {k: v.detach().clone() for k, v in found.state_dict().items()}


class Group:
    """The group of this process with some others, and its number in it."""

    def __init__(self, rank: int, ranks: int, pairs: list[Any]) -> None:
        self.ranks, self.rank = ranks, rank % ranks
        self.group = pairs[rank // 2] if ranks < RANKS else None

    def reconstruct(self, method: Any, net: str, own: list[Any] | None = None, **how: Any) -> Callable[[Any], Any]:
        """The transform over the batches of this process, or over others."""
        mine = share(batches(net), self.rank, self.ranks) if own is None else own
        return qfunc.reconstruct(method, mine, **{"progress": False, "group": self.group, **how})


def error(action: Callable[[], Any]) -> str:
    """The text of an action's error."""
    try:
        action()
    except (QfuncError, ValueError) as e:
        return str(e)
    return ""


def resumed(group: Group, folder: Path) -> dict[str, Any]:
    """A reconstruction, and another one that finds the first two units; only rank 0 has the folder."""
    given, method, own = model("resnet"), METHODS["qdrop"], folder / f"{group.rank}"
    whole = state(group.reconstruct(method, "resnet", resume=own)(given))
    files = sorted(own.glob("unit-*")) if group.rank == 0 else []
    for file in files[2:]:
        file.unlink()
    kept = {f: f.stat().st_mtime_ns for f in files[:2]}
    again = state(group.reconstruct(method, "resnet", resume=own)(given))
    untouched = {f: f.stat().st_mtime_ns for f in files[:2]} == kept
    return {"whole": whole, "again": again, "files": len(files), "untouched": untouched, "there": own.exists()}


def stopped(group: Group) -> dict[str, Any]:
    """One unit in time, which the clock of rank 0 says."""
    allowed = iter([True, False])

    def allows(budget: Budget) -> bool:
        if group.rank:
            raise ValueError("the clock of another rank")
        return next(allowed)

    with mock.patch.object(Budget, "allows", allows):
        found = group.reconstruct(METHODS["adaround"], "resnet", seconds=1e9)(model("resnet"))
    return {"ops": reconstructed(found), "state": state(found)}


@contextmanager
def broken(place: str, number: int) -> Iterator[None]:
    """Raise at one of the calls of some functions."""
    calls = 0
    functions = {
        "loss": (Distance, "of"), "write": (Cache, "write"), "take": (Cache, "take"), "soften": (RoundingState, "soften"),
        "differentiate": (RoundingState, "differentiate"), "store": (part, "_store"), "file": (Checkpoint, "write"),
        "prepare": (RoundingState, "__init__"), "layout": (part, "layouts"),
    }  # fmt: skip
    owner, name = functions[place]
    old = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise ValueError(f"broken {place}, call {number}")
        return old(*args, **kwargs)

    with mock.patch.object(owner, name, call):
        yield


BREAKS = [
    ("loss", 1), ("loss", 2), ("loss", 3), ("loss", 4), ("write", 1), ("write", 3), ("take", 2), ("take", 4), ("soften", 1),
    ("soften", 2), ("differentiate", 1), ("differentiate", 2), ("store", 1), ("store", 2), ("store", 4), ("prepare", 1),
    ("prepare", 2), ("layout", 1),
]  # fmt: skip
"""Where one rank fails: in each phase, the last iteration of a unit and what follows the last exchange among them."""


def failures(group: Group) -> dict[str, str]:
    """The error of each rank if one of them raises somewhere."""
    given, method, found = model("pair"), qfunc.adaround(iterations=2, batch=18), {}
    for number, (place, call) in enumerate(BREAKS):
        with broken(place, call if group.rank == number % group.ranks else 0):
            found[f"{place} {call}"] = error(lambda: group.reconstruct(method, "pair")(given))
    for call in (1, 3):
        with broken("file", call if group.rank == 0 else 0):
            found[f"file {call}"] = error(lambda: group.reconstruct(method, "pair")(given))
    return found


def refusals(group: Group, folder: Path) -> dict[str, str]:
    """The errors of wrong uses."""
    rank, one, given = group.rank, qfunc.adaround(iterations=1), model("resnet")
    own = share(batches("resnet"), rank, group.ranks)
    occupied = folder / "occupied"
    occupied.mkdir(exist_ok=True)
    (occupied / "other").touch()
    uses: dict[str, Any] = {
        "no batches": lambda: group.reconstruct(one, "resnet", [] if rank == 0 else own)(given),
        "no images": lambda: group.reconstruct(one, "resnet", [own[0][:0]] if rank == 1 else own)(given),
        "two images": lambda: group.reconstruct(one, "resnet", [own[0][: rank < 2]])(given),
        "wrong batch": lambda: group.reconstruct(one, "resnet", [own[0][:, :2]] if rank == 1 else own)(given),
        "other sizes": lambda: group.reconstruct(one, "resnet", [own[0][..., rank:]])(given),
        "other methods": lambda: group.reconstruct(evolve(one, seed=rank), "resnet")(given),
        "other models": lambda: group.reconstruct(one, "resnet")(model("inverted") if rank else given),
        "other parts": lambda: group.reconstruct(one, "resnet", parts=(2, 1))(given),
        "directory": lambda: group.reconstruct(one, "resnet", resume=occupied)(given),
        "time": lambda: group.reconstruct(one, "resnet", seconds=1e-9)(given),
    }
    return {name: error(use) for name, use in uses.items()}


class Recorded:
    """The gradients of the mini-batches of the first unit, and the soft weights to which they belong."""

    def __init__(self) -> None:
        self.found: list[tuple[list[Tensor], list[Tensor]]] = []

    def __enter__(self) -> Recorded:
        old = RoundingState.differentiate

        def differentiate(rounding: RoundingState, *args: Any) -> None:
            grads = [w.grad.clone() for w in rounding.weights if w.grad is not None]
            self.found.append(([w.detach().clone() for w in rounding.weights], grads))
            old(rounding, *args)

        self.patch = mock.patch.object(RoundingState, "differentiate", differentiate)
        self.patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.patch.stop()


def linear() -> tuple[Any, Tensor]:
    """A calibrated layer, and the inputs of all ranks."""
    torch.manual_seed(1)
    x = torch.randn(sum(SIZES), 6)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    with alone():
        return qfunc.calibrate([x])(qfunc.quantize(targets.academic(3, 4))(net)), x


def gradients(group: Group) -> Any:
    """The weights and the gradients of a linear layer in two mini-batches of all inputs."""
    given, x = linear()
    with Recorded() as recorded:
        own = share(list(x.split(SIZES)), group.rank, group.ranks)
        group.reconstruct(qfunc.adaround(iterations=2, batch=len(x)), "", own)(given)
    return recorded.found


def told(group: Group) -> str:
    """What is printed."""
    written = io.StringIO()
    with redirect_stderr(written), mock.patch.object(sys, "stderr", written):
        group.reconstruct(qfunc.adaround(iterations=1), "pair", progress=True)(model("pair"))
    return written.getvalue()


def kept(group: Group) -> list[int]:
    """The number of images of each tensor that a rank keeps."""
    seen: list[int] = []
    old = Cache._new

    def new(cache: Cache, key: Key, rows: Tensor, layout: Any) -> Any:
        entry = old(cache, key, rows, layout)
        seen.append(len(entry.tensor))
        return entry

    with mock.patch.object(Cache, "_new", new):
        group.reconstruct(METHODS["qdrop"], "resnet")(model("resnet"))
    return seen


def cases(rank: int, folder: Path) -> dict[str, Any]:
    """What became of every case on this rank."""
    found: dict[str, Any] = {}
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    whole, pair = Group(rank, 4, pairs), Group(rank, 2, pairs)
    for group in (whole, pair):
        for net, name in [(net, name) for net, name, ranks in CASES if ranks == group.ranks]:
            found[f"{net}, {name}, {group.ranks}"] = state(group.reconstruct(METHODS[name], net)(model(net)))
        found[f"gradients, {group.ranks}"] = gradients(group)
    plain = [(net, name, 0) for net, name in dict.fromkeys((net, name) for net, name, _ in CASES)]
    for number, (net, name, ranks) in enumerate((*CASES, *plain)):
        if number % RANKS == rank:
            with alone():
                one = qfunc.reconstruct(METHODS[name], batches(net), progress=False, parts=SHARES.get(ranks))
                found[f"one process: {net}, {name}, {ranks}"] = state(one(model(net)))
    found["resumed"] = resumed(pair, folder / f"resumed-{rank // 2}")
    found["stopped"] = stopped(pair)
    found["failures"] = failures(whole)
    found["refusals"] = refusals(pair, folder / f"refused-{rank // 2}")
    found["after failures"] = state(pair.reconstruct(METHODS["adaround"], "pair")(model("pair")))
    found["told"], found["kept"] = told(pair), kept(pair)
    more = pair.reconstruct(METHODS["qdrop"], "resnet", parts=((2, 1), (1, 3))[pair.rank])
    found["more parts"] = state(more(model("resnet")))
    return found


def killed(rank: int, folder: Path) -> None:
    """End one of the processes while the third unit trains."""
    group, done = Group(rank, 4, []), 0
    old = part.optimise

    def optimise(*args: Any) -> Any:
        nonlocal done
        done += 1
        if rank == 2 and done == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return old(*args)

    given = model("resnet")
    with mock.patch.object(part, "optimise", optimise):
        group.reconstruct(METHODS["qdrop"], "resnet", resume=folder / "killed")(given)


def work(rank: int, where: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    folder, limit = Path(where), timedelta(seconds=180)
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=RANKS, timeout=limit)
    for made in ("resumed-0", "resumed-1", "refused-0", "refused-1"):
        (folder / made).mkdir(exist_ok=True)
    torch.save(cases(rank, folder), folder / f"{rank}.pt")
    dist.barrier()
    killed(rank, folder)


def without_those_after(folder: Path, units: int) -> Path:
    """A copy of the results of some units."""
    copy = folder.with_name(f"{folder.name}-{units}")
    shutil.copytree(folder, copy)
    for file in sorted(copy.glob("unit-*"))[units:]:
        file.unlink()
    return copy
