"""Names that are unique in one graph or file."""

from __future__ import annotations

from itertools import count


class UniqueNames(set[str]):
    """The names that are taken.  The time to add one does not depend on the number of names that begin alike.

    >>> names = UniqueNames({"conv"})
    >>> names.fresh("conv"), names.fresh("conv"), names.fresh("linear")
    ('conv_1', 'conv_2', 'linear')
    """

    def __init__(self, names: set[str] | frozenset[str] = frozenset()) -> None:
        super().__init__(names)
        self._suffixes: dict[str, int] = {}

    def fresh(self, name: str) -> str:
        """Return the name, or the name with the first numeric suffix that is not taken; it is taken from now on."""
        found = name
        if name in self:
            suffix = next(i for i in count(self._suffixes.get(name, 1)) if f"{name}_{i}" not in self)
            self._suffixes[name] = suffix + 1
            found = f"{name}_{suffix}"
        self.add(found)
        return found


__all__ = ["UniqueNames"]
