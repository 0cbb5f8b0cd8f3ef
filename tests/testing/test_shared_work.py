"""The fuzzer and check_each_kind in two processes find what one process finds; each seed and kind is done by one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qfunc import targets
from qfunc.errors import SpecError
from qfunc.testing import check_each_kind
from tests.onnxruntime_target import on_vnni
from tests.processes import start_processes
from tests.testing.shared_work import BAD, KINDS, RANKS, SEEDS, Campaign, Chip, fuzzed, kinds, work


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    start_processes(work, (str(folder),), RANKS)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["fuzzed", "two jobs"])
def test_two_processes_find_what_one_finds(case: str, both: list[dict[str, Any]]) -> None:
    """In order of seed, with the programs of the first seed of each signature."""
    one = fuzzed()
    for each in both:
        assert each[case]["lines"] == one["lines"]
    assert [json.loads(line)["seed"] for line in one["lines"]] == list(SEEDS)
    assert {json.loads(line)["seed"]: json.loads(line)["kind"] for line in one["lines"]} == {
        seed: BAD[seed].kind if seed in BAD else "exact" for seed in SEEDS
    }
    assert one["shrunk"] == [41, 42, 50]  # 44 fails as 41 does, and 47 as 42
    for key, all_ in (("ran", list(SEEDS)), ("shrunk", one["shrunk"])):
        shares = [each[case][key] for each in both]
        assert sorted(shares[0] + shares[1]) == all_
        assert all(shares)


@pytest.mark.thorough
def test_the_command_prints_on_the_first_rank_and_fails_on_all(both: list[dict[str, Any]]) -> None:
    with Campaign() as alone:
        status, out, _ = alone.command()
    assert status == 1
    assert [each["command"][0] for each in both] == [1, 1]
    assert sorted(both[0]["command"][1].split("\n# ")) == sorted(out.split("\n# "))  # one process prints as networks end
    assert both[1]["command"][1] == ""
    assert both[1]["command"][2] == ""


@pytest.mark.thorough
def test_the_first_rank_reads_and_writes_the_file(both: list[dict[str, Any]]) -> None:
    lines = both[0]["file"].splitlines()
    assert lines == both[0]["fuzzed"]["lines"]
    assert both[1]["file"] is both[1]["resumed file"] is None
    assert both[0]["resumed file"] == both[0]["file"]
    assert sorted(both[0]["ran again"] + both[1]["ran again"]) == list(SEEDS[5:])
    assert [each["resumed"][0] for each in both] == [1, 1]
    assert both[0]["resumed"][1].splitlines()[-1] == both[0]["command"][1].splitlines()[-1]


@pytest.mark.thorough
def test_a_process_that_fails_ends_all(both: list[dict[str, Any]]) -> None:
    assert both[1]["broken"] == ("error", "no processes left")
    assert both[0]["broken"][:2] == ("status", 2)
    assert both[0]["broken"][3].splitlines()[-1] == (
        "qfunc: fuzz: found a failure of rank 1: OSError: no processes left, wanted results of all processes. Repair that "
        "process, and start the command again; seeds in --file are not run again."
    )


@on_vnni
@pytest.mark.thorough
def test_each_kind_is_checked_by_one_process(both: list[dict[str, Any]]) -> None:
    alone = kinds()
    assert list(alone) == list(KINDS)
    assert all("NotImplementedError: wrong" in text for text in alone.values())
    chip = Chip()
    assert check_each_kind(targets.onnxruntime, run=chip, kinds=KINDS, examples=1) == {}
    for each in both:
        assert each["kinds"] == alone
        assert list(each["kinds"]) == list(alone)
        assert each["good"] == {}
    assert all(each["runs"] for each in both)
    assert sum(each["runs"] for each in both) == chip.runs
    with pytest.raises(SpecError) as e:
        check_each_kind(targets.onnxruntime, kinds=("nothing",))
    assert [each["unknown kind"] for each in both] == [str(e.value)] * 2
