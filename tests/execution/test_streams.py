"""Steps read any iterable of batches once, one at a time; docs/data.md says how many each keeps."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

ROOT = Path(__file__).resolve().parents[2]
BATCHES = 9


def net(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.LayerNorm(width), nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 4))
    return nn.Sequential(*layers).eval().requires_grad_(False)


def drawn(i: int, rows: int = 6, width: int = 8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(i).standard_normal((rows, width), np.float32) * np.float32(1 + i)


class Stream(IterableDataset[Tensor]):
    """Batches without a length; two workers make them in turns."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from (torch.from_numpy(drawn(i)) for i in range(start, BATCHES, step))


def calibrated(width: int = 8) -> Any:
    first = [torch.from_numpy(drawn(0, width=width))]
    return qfunc.calibrate(first, progress=False)(qfunc.quantize(ONNXRUNTIME)(net(width)))


def state(model: Any) -> str:
    """All values of a model."""
    return repr([(name, value.tolist()) for name, value in model.state_dict().items()])


def quantized(width: int) -> Any:
    return qfunc.quantize(ONNXRUNTIME)(net(width))


STEPS: dict[str, Callable[..., str]] = {
    "calibrate": lambda b, w=8: state(qfunc.calibrate(b, progress=False)(quantized(w))),
    "compare": lambda b, w=8: str(qfunc.compare(b, progress=False)(calibrated(w))),
    "sensitivity": lambda b, w=8: str(qfunc.sensitivity(b, progress=False)(calibrated(w))),
    "correct_bias": lambda b, w=8: state(qfunc.correct_bias(b, progress=False)(calibrated(w))),
    "smooth_quant": lambda b, w=8: state(qfunc.smooth_quant(b, progress=False)(net(w))),
    "awq": lambda b, w=8: state(qfunc.awq(edit.weights(bits=3)(ONNXRUNTIME), b, progress=False)(net(w))),
    "mixed_precision": lambda b, w=8: repr(
        qfunc.mixed_precision(b, (4,), qfunc.SizeBudget(mean_bits=7), progress=False)(calibrated(w)).losses
    ),
    "verify": lambda b, w=8: str(qfunc.verify(ONNXRUNTIME)(calibrated(w), b)),
    "gptq": lambda b, w=8: state(qfunc.gptq(b, progress=False)(calibrated(w))),
    "reconstruct": lambda b, w=8: state(
        qfunc.reconstruct(qfunc.adaround(iterations=40, rounding_lr=0.1), b, progress=False)(calibrated(w))
    ),
    "diagnose": lambda b: str(qfunc.diagnose(ONNXRUNTIME, b, progress=False)(net())),
    "sweep": lambda b: repr(
        [row.value for row in qfunc.sweep([ONNXRUNTIME], b, metric=lambda y, x: y[0].mean(1), progress=False)(net()).rows]
    ),
}
PAGE = (ROOT / "docs/data.md").read_text()
TABLE = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
ONCE = [step for step, passes, _ in TABLE if passes == "1"]
FLAT = [step for step, passes, kept in TABLE if passes == "1" and kept.startswith("two")]


def test_the_page_has_all_steps() -> None:
    assert [step for step, *_ in TABLE] == list(STEPS)
    with_batches = {name for name in qfunc.__all__ if "batches" in str(getattr(getattr(qfunc, name), "__annotations__", ""))}
    assert with_batches | {"verify"} == {*STEPS, "stream"}


@pytest.mark.thorough
@pytest.mark.parametrize("step", ONCE)
def test_a_stream_from_two_workers_is_a_list(step: str) -> None:
    wanted = STEPS[step](list(Stream()))
    assert STEPS[step](DataLoader(Stream(), batch_size=None, num_workers=2)) == wanted
    assert STEPS[step](iter(Stream())) == wanted
    assert STEPS[step](list(Stream())[:1]) != wanted  # the others count, too


class Counted:
    """Batches whose memory is counted; each pass begins anew."""

    def __init__(self, count: int) -> None:
        self.count, self.passes, self.alive, self.most = count, 0, 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        self.passes += 1
        for i in range(self.count):
            yield self._batch(i)

    def _batch(self, i: int) -> Tensor:
        values = drawn(i)
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(values, self._freed)
        return torch.from_numpy(values)  # any tensor on this memory keeps the array

    def _freed(self) -> None:
        self.alive -= 1


MOST = {"two batches": 2, "two batches and the first one": 3, "up to four batches": 4}


@pytest.mark.thorough
@pytest.mark.parametrize(("step", "passes", "kept"), TABLE)
def test_passes_and_batches_in_memory(step: str, passes: str, kept: str) -> None:
    for count in (6, 12):
        batches = Counted(count)
        STEPS[step](batches)
        assert batches.passes == 1 if passes == "1" else batches.passes > 1
        assert batches.most <= MOST[kept] if kept in MOST else batches.most >= count, batches.most


@pytest.mark.parametrize("step", [step for step, passes, _ in TABLE if passes == "many"])
def test_several_passes_over_an_iterator_are_refused(step: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        STEPS[step](iter([torch.from_numpy(drawn(0))]))
    wanted = "found an iterator, wanted batches that can be iterated again. Put them into a list, or pass a DataLoader."
    assert str(caught.value) == f"{step}, batches: {wanted}"


@pytest.mark.parametrize("step", [step for step in ONCE if step != "verify"])
def test_an_iterator_that_is_used_up(step: str) -> None:
    batches = iter(Stream())
    list(batches)
    with pytest.raises(CalibrationError, match="found no batches"):
        STEPS[step](batches)


def test_splits_are_refused() -> None:
    with pytest.raises(CalibrationError) as caught:
        qfunc.calibrate({"train": Stream(), "test": Stream()})  # type: ignore[arg-type]
    assert str(caught.value) == (
        "calibrate: found a dict, wanted an iterable of batches. Pass one of its values, such as that of 'train'."
    )


def test_numbers_are_refused() -> None:
    with pytest.raises(CalibrationError) as caught:
        qfunc.calibrate([{"input": [[0.5, 0.25], [1.0, 2.0]]}])(qfunc.quantize(targets.onnxruntime)(nn.Linear(2, 2)))
    assert str(caught.value) == (
        "site 'input': found a list of numbers, wanted a float tensor. "
        "Give batches of tensors: torch.tensor(numbers), or dataset.with_format('torch') of Hugging Face."
    )


ROWS, WIDTH = 2048, 512
"""A batch has 4 MiB."""


def peaks() -> dict[str, list[int]]:
    """The peak memory of each step beyond that before it, in bytes, by 8 and by 64 batches, in this process."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from memory import measured

    def batches(count: int) -> Iterable[Tensor]:
        return (torch.from_numpy(drawn(i, ROWS, WIDTH)) for i in range(count))

    found = dict[str, list[int]]()
    for step in FLAT:
        STEPS[step](batches(4), WIDTH)
        found[step] = [int(measured(lambda n=n, s=step: STEPS[s](batches(n), WIDTH))[1]["peak"]) for n in (8, 24)]
    return found


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_data() -> None:
    """96 MiB of batches instead of 32; a step that kept them would need 64 MiB more."""
    command = [sys.executable, "-m", "tests.execution.test_streams"]
    environment = {"PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    growth = {step: large - small for step, (small, large) in json.loads(done.stdout).items()}
    # A batch more than in the pass before: what is freed when depends on the collector of garbage.
    assert {step: bytes_ for step, bytes_ in growth.items() if bytes_ > 4 * ROWS * WIDTH} == {}


if __name__ == "__main__":
    print(json.dumps(peaks()))
