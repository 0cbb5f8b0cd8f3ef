"""While a stream runs, collections skip older objects; afterwards they are as they were."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from qfunc._collection import older_objects_skipped


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()  # as for all tests


class Ring:
    """Garbage that only the collector finds."""

    collected = 0

    def __init__(self) -> None:
        self.ring = self

    def __del__(self) -> None:
        Ring.collected += 1


def test_new_garbage_is_collected_and_old_garbage_before() -> None:
    Ring.collected = 0
    Ring()
    with older_objects_skipped():
        assert Ring.collected == 1
        frozen = gc.get_freeze_count()
        Ring()
        gc.collect()
        assert Ring.collected == 2
        assert 0 < gc.get_freeze_count() <= frozen  # other threads may release some of the frozen objects
    assert gc.get_freeze_count() == 0


def test_an_error_releases_what_was_frozen() -> None:
    with pytest.raises(KeyboardInterrupt), older_objects_skipped():
        raise KeyboardInterrupt
    assert gc.get_freeze_count() == 0


def test_what_the_caller_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with older_objects_skipped():
        assert 0 < gc.get_freeze_count() <= frozen
    assert 0 < gc.get_freeze_count() <= frozen
