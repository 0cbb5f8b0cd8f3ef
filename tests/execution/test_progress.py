"""The progress of long work: a bar on a terminal, a line every 30 seconds in a log, nothing if it is short or not wanted."""

from __future__ import annotations

import sys

import pytest

from qfunc.execution.progress import Progress, track


class Clock:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_every_30_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("calibrate", 20, "batch", clock=clock) as progress:
        for _ in range(20):
            clock.now += 10
            progress.advance()
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        f"calibrate: batch {n} of 20, {10 * n} s, 10 s/batch, about {10 * (20 - n)} s left" for n in (3, 6, 9, 12, 15, 18)
    ]


def test_a_slow_part_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("calibrate", None, "batch", clock=clock) as progress:
        for seconds in (29.9, 95, 20, 9.9, 0.2):
            clock.now += seconds
            progress.advance()
    assert capsys.readouterr().err.splitlines() == [
        "calibrate: batch 2, 125 s, 62.5 s/batch",
        "calibrate: batch 5, 155 s, 31 s/batch",
    ]


def test_parts_that_were_done_before_have_no_share_in_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("calibrate", 1000, "batch", clock=clock) as progress:
        for parts in range(4):
            clock.now += 20
            progress.skip(100) if parts < 2 else progress.advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "calibrate: batch 200 of 1000, 40 s",
        "calibrate: batch 400 of 1000, 80 s, 5 batch/s, about 120 s left",
    ]


def test_a_bar_of_parts_that_were_done_before(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("calibrate", 10, "batch") as progress:
        progress.skip(6)
        bar = progress.bar.format_dict
        assert (bar["n"], bar["initial"], bar["total"]) == (6, 6, 10)
        assert bar["elapsed"] < 5  # from the last part that was skipped
    assert "60%" in capsys.readouterr().err


def test_a_line_has_the_note(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("reconstruct", 400, "iteration", clock=clock) as progress:
        progress.describe("reconstruct layer1.0", "loss 0.25")
        clock.now += 30
        progress.advance(100)
    assert capsys.readouterr().err == (
        "reconstruct layer1.0: iteration 100 of 400, 30 s, 3.33 iteration/s, about 90 s left, loss 0.25\n"
    )


def test_work_that_is_short_or_not_shown_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for shown, seconds in ((True, 29), (False, 300)):
        clock = Clock()
        with Progress("calibrate", 1, "batch", shown, clock=clock) as progress:
            clock.now += seconds
            progress.advance()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_no_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    clock = Clock()
    with Progress("calibrate", 2, "batch", clock=clock) as progress:
        for _ in range(2):
            clock.now += 60
            progress.advance()
    written = capsys.readouterr().err
    assert "100%" in written
    assert "\n" not in written.rstrip("\n")


def test_items_that_have_no_length() -> None:
    class Stream(list[int]):
        def __len__(self) -> int:
            raise TypeError("the length of a stream is not known")

    class Unimplemented(list[int]):
        def __len__(self) -> int:
            raise NotImplementedError

    assert list(track((i for i in range(3)), "calibrate", "batch")) == [0, 1, 2]
    assert list(track(Stream([4, 5]), "calibrate", "batch")) == [4, 5]
    assert list(track(Unimplemented([4, 5]), "calibrate", "batch")) == [4, 5]
