"""The progress of long work on standard error: a bar on a terminal, else a line every 30 seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

INTERVAL = 30.0
"""Seconds between two lines in a log."""


class Progress:
    """Counts the parts of a step that are done, and shows them.

    Args:
        step: The name of the step.
        total: The number of parts, or None.
        unit: The name of a part.
        shown: False shows nothing.
        clock: A function that returns seconds.
    """

    def __init__(
        self, step: str, total: int | None, unit: str, shown: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        terminal = shown and sys.stderr.isatty()
        self.bar = tqdm(total=total, desc=step, unit=unit, disable=not terminal)
        self.step, self.total, self.unit, self.clock = step, total, unit, clock
        self.logs, self.done, self.skipped, self.note = shown and not terminal, 0, 0, ""
        self.start = self.working = self.last = clock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def tell(self, text: str) -> None:
        """Write a line if the progress is shown."""
        if self.logs or not self.bar.disable:
            tqdm.write(text, file=sys.stderr)

    def describe(self, step: str, note: str = "") -> None:
        """Replace the name of the step, and a note behind the counts."""
        self.step, self.note = step, note
        self.bar.set_description(step, refresh=False)
        self.bar.set_postfix_str(note, refresh=False)

    def advance(self, parts: int = 1) -> None:
        """Count parts, and show them if it is time."""
        self.done += parts
        self.bar.update(parts)
        self._show()

    def skip(self, parts: int = 1) -> None:
        """Count parts that were done before; the rate and the time left are those of the others."""
        self.done += parts
        self.skipped = self.bar.n = self.bar.initial = self.bar.last_print_n = self.done
        self.bar.unpause()
        self.working = self.clock()
        self._show()

    def _show(self) -> None:
        if self.logs and (now := self.clock()) - self.last >= INTERVAL:
            self.last = now
            print(self._line(now), file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        of = "" if self.total is None else f" of {self.total}"
        parts = [f"{self.step}: {self.unit} {self.done}{of}", f"{now - self.start:.0f} s"]
        run, seconds = self.done - self.skipped, now - self.working
        if run and seconds:
            rate = run / seconds
            parts.append(f"{rate:.3g} {self.unit}/s" if rate >= 1 else f"{1 / rate:.3g} s/{self.unit}")
            if self.total:
                parts.append(f"about {max(self.total - self.done, 0) / rate:.0f} s left")
        return ", ".join([*parts, *filter(None, [self.note])])


def track(
    items: Iterable[Item], step: str, unit: str, shown: bool = True, total: int | None = None, skipped: int = 0
) -> Iterator[Item]:
    """Yield the items, and count each when the next one is asked for.

    Args:
        items: The items.
        step: The name of the step.
        unit: The name of an item.
        shown: False shows nothing.
        total: The number of items; None for their `len`, if they have one.
        skipped: The number of items at the start that were done before.
    """
    if total is None:
        try:
            total = len(items)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # a generator, or a DataLoader of a stream, whose len raises
            total = None
    with Progress(step, total, unit, shown) as progress:
        for item in items:
            yield item
            progress.skip() if progress.done < skipped else progress.advance()
