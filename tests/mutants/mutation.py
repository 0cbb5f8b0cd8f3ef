"""One breakage of one line, and the tests that must notice it."""

from __future__ import annotations

from pathlib import Path

from attrs import field, frozen


def _as_tuple(tests: str | tuple[str, ...]) -> tuple[str, ...]:
    return (tests,) if isinstance(tests, str) else tests


@frozen
class Mutation:
    """`old` becomes `new` in `file`; at least one of `tests` (pytest's node ids) must then fail.

    >>> Mutation("tie", "qfunc/numerics/rounding.py", ">= 0.5", "> 0.5", "tests/numerics/test_rounding.py").tests
    ('tests/numerics/test_rounding.py',)
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = field(converter=_as_tuple)

    def broken(self, root: Path) -> str:
        """The text of the file with the breakage in it.

        Raises:
            ValueError: `old` does not stand in the file exactly once.
        """
        text = (root / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            do = "Follow the change of the code, here and in the breakage."
            raise ValueError(f"mutation {self.name!r}: found {self.old!r} {count} times in {self.file}, wanted once. {do}")
        return text.replace(self.old, self.new)
