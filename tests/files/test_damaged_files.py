"""A damaged file is read, or refused by an error of qfunc: never by another error."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path

import pytest

from qfunc.errors import QfuncError
from tests.files.formats import Format, formats

MUTATIONS = 120
NAMES = (
    "spec", "target.json", "load qfunc.json", "load tensors", "verify model", "verify tensors", "verify artifact",
    "proof", "proof tensors", "checkpoint index", "checkpoint unit", "report", "onnx", "float onnx", "tosa values", "tosa",
    "xnnpack values", "pte", "ncnn", "npz", "pt2",
)  # fmt: skip


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Format]:
    """The formats by name."""
    return {f.name: f for f in formats(tmp_path_factory.mktemp("damaged"))}


def outcomes(form: Format, count: int, seed: int = 0) -> Counter[str]:
    """Return how often damaged content was read ("read"), refused ("refused") or ended in another error, by its class."""
    found: Counter[str] = Counter()
    draw = random.Random(f"{form.name} {seed}")
    for _ in range(count):
        changed = form.damage(draw, form.content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantize warns of targets whose rules match nothing
            try:
                form.read(changed)
                found["read"] += 1
            except QfuncError as e:
                str(e).encode()  # it can be printed
                found["refused"] += 1
            except Exception as e:
                found[type(e).__name__] += 1
    return found


def test_the_formats_are_all_named(read: dict[str, Format]) -> None:
    assert tuple(read) == NAMES


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_damage_ends_in_one_error(name: str, read: dict[str, Format]) -> None:
    read[name].read(read[name].content)
    found = outcomes(read[name], MUTATIONS)
    assert found.keys() <= {"read", "refused"}, found
    assert found["refused"] > MUTATIONS // 20 or name in ("target.json", "verify tensors"), found


@pytest.mark.thorough
def test_nothing_is_written_outside(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    every = list(formats(folder))
    before = sorted(tmp_path.rglob("*"))
    for form in every:
        outcomes(form, 20, 1)
    assert sorted(tmp_path.rglob("*")) == before
