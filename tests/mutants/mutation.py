"""One breakage of one line, and the tests that must notice it."""

from __future__ import annotations

from pathlib import Path

from attrs import field, frozen

from mutants.definition import candidates, file_of, spans


def _as_tuple(tests: str | tuple[str, ...]) -> tuple[str, ...]:
    return (tests,) if isinstance(tests, str) else tests


@frozen
class Mutation:
    """`old` becomes `new` in the definition at `address`; at least one of `tests` (pytest's node ids) must then fail.

    An address is a module, a colon and a qualified name, `qfunc.numerics.rounding:round_by`.  The name is that of a
    function, a class, a method or an assignment; without a name it is the whole file.  `case` is the id of the
    parameters of a test, where that does not stand behind the test.

    Addresses and tests are plain literals, so that a script can follow a move of files.

    >>> m = Mutation("tie", "qfunc.numerics.rounding:round_by", ">= 0.5", "> 0.5", "tests/test_a.py::test_b", case="c")
    >>> m.module, m.definition, m.room, m.nodes
    ('qfunc.numerics.rounding', 'round_by', 'numerics', ('tests/test_a.py::test_b[c]',))
    """

    name: str
    address: str
    old: str
    new: str
    tests: tuple[str, ...] = field(converter=_as_tuple)
    case: str = field(default="", kw_only=True)

    @property
    def module(self) -> str:
        """The dotted name in front of the colon."""
        return self.address.partition(":")[0]

    @property
    def definition(self) -> str:
        """The qualified name behind the colon."""
        return self.address.partition(":")[2]

    @property
    def room(self) -> str:
        """The package of the library that holds the module, `qfunc` for a module beside the packages."""
        _, *rest = self.module.split(".")
        return rest[0] if len(rest) > 1 else "qfunc"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The tests as pytest takes them."""
        return tuple(f"{test}[{self.case}]" if self.case else test for test in self.tests)

    def file(self, root: Path) -> Path:
        """Return the file of the module.

        Raises:
            ValueError: the module has no file.
        """
        if found := file_of(root, self.module):
            return found
        raise self._error(f"no file of {self.module}, wanted {' or '.join(candidates(self.module))}")

    def broken(self, root: Path) -> str:
        """Return the text of the file with the breakage in it.

        Raises:
            ValueError: the module or the definition is gone, or `old` does not stand in it exactly once.
        """
        place = self.file(root)
        text, where = place.read_text(), place.relative_to(root).as_posix()
        found = spans(text, self.definition)
        if not found:
            raise self._error(f"no definition of {self.definition!r} in {where}, wanted one")
        lines = text.split("\n")
        parts = ["\n".join(lines[first:last]) for first, last in found]
        if (count := sum(part.count(self.old) for part in parts)) != 1:
            inside = f"{self.definition} of {where}" if self.definition else where
            raise self._error(f"{self.old!r} {count} times in {inside}, wanted once")
        first, last = next(span for span, part in zip(found, parts, strict=True) if self.old in part)
        changed = "\n".join(lines[first:last]).replace(self.old, self.new)
        return "\n".join([*lines[:first], changed, *lines[last:]])

    def _error(self, found: str) -> ValueError:
        return ValueError(f"mutation {self.name!r}: found {found}. Follow the change of the code, here and in the breakage.")
