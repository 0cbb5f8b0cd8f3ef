"""The sites of a graph while they are placed: found by tensor, by reader and by tie without a search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

from attrs import evolve, frozen
from torch import fx

from qfunc.graph.record import Record
from qfunc.quantizers.site import Site, quantizer_path

Key = tuple[fx.Node, Any]


@frozen
class PlacedSite:
    """A site, the node with the value that it quantizes, and the nodes that read the quantized value."""

    site: Site
    tensor: fx.Node
    readers: tuple[fx.Node, ...]


class _Tie:
    # Sites that share qparams: their keys, and the name and the leader of the tie.
    def __init__(self, name: str, leader: str) -> None:
        self.name, self.leader, self.keys = name, leader, list[Key]()


class SiteTable:
    """Sites by tensor and value; `of_output` has the site of each group's output, by its tensor.

    Quantizers get none of the paths in `taken`.

    Readers and ties are added in constant time, because a tensor may have as many readers as the graph has ops.  The sites
    get them when the table is iterated.
    """

    def __init__(self, taken: Iterable[str] = (), record: Record | None = None) -> None:
        self.of_output: dict[fx.Node, PlacedSite] = {}
        self._record = record
        self._paths: set[str] = set()  # of quantizers
        self._prefixes: set[str] = set()  # of these paths, whole paths included
        self._by_key: dict[Key, PlacedSite] = {}
        self._readers: dict[Key, dict[fx.Node, None]] = {}
        self._keys: dict[fx.Node, list[Key]] = {}
        self._ties: dict[Key, _Tie] = {}
        for path in taken:
            self._take(path)

    def __iter__(self) -> Iterator[PlacedSite]:
        for key, placed in self._by_key.items():
            tie = self._ties.get(key)
            site = placed.site if tie is None else evolve(placed.site, tie=tie.name, leader=tie.leader)
            yield PlacedSite(site, placed.tensor, tuple(self._readers[key]))

    def get(self, key: Key) -> PlacedSite | None:
        """Return the site at a key without its tie, or None."""
        return self._by_key.get(key)

    def free_name(self, path: str, op: str, constant: bool) -> str:
        """Return the name of a new site: the path of its tensor, or that with the op if it or its quantizer's path is taken.

        A number tells further sites apart: after the op, or in the first part of a path that leads into another quantizer.
        """
        inner = (lambda name: name) if self._record is None else self._record.inner_path
        first, dot, rest = path.partition(".")
        inside = not self._paths.isdisjoint(_prefixes(quantizer_path(inner(path), constant))[:-1])
        more = (f"{first}_{i}{dot}{rest}@{op}" if inside else f"{path}@{op}_{i}" for i in count(1))
        names = chain((path, f"{path}@{op}"), more)
        return next(name for name in names if self._take(quantizer_path(inner(name), constant)))

    def _take(self, path: str) -> bool:
        # False if the path is taken, or if one quantizer would be inside of another.
        prefixes = _prefixes(path)
        if path in self._prefixes or not self._paths.isdisjoint(prefixes):
            return False
        self._paths.add(path)
        self._prefixes.update(prefixes)
        return True

    def add(self, key: Key, placed: PlacedSite) -> PlacedSite:
        """Store a new site and return it."""
        self._keys.setdefault(placed.tensor, []).append(key)
        self._by_key[key] = placed
        self._readers[key] = dict.fromkeys(placed.readers)
        return placed

    def add_readers(self, key: Key, readers: Sequence[fx.Node]) -> PlacedSite:
        """Add readers to the site at a key, and return the site as it was added."""
        self._readers[key].update(dict.fromkeys(readers))
        return self._by_key[key]

    def read_by(self, tensor: fx.Node | None, reader: fx.Node) -> PlacedSite | None:
        """Return the first site of a tensor whose value a node reads, or None."""
        return next((self._by_key[key] for key in self._at(tensor) if reader in self._readers[key]), None)

    def tie(self, members: Sequence[PlacedSite], name: str, leader: str) -> None:
        """Tie sites and the sites that they are tied to already, by the least name of these ties, or else by `name`.

        The range of all is a union if that of some must be.
        """
        if len(members) < 2:
            return
        keys = [key for m in members for key in self._at(m.tensor) if self._by_key[key] is m]
        ties = list({id(tie): tie for key in keys if (tie := self._ties.get(key)) is not None}.values())
        least = min((tie.name for tie in ties), default=name)
        largest = max(ties, key=lambda tie: len(tie.keys), default=_Tie(name, leader))
        union = leader == "union" or any(tie.leader == "union" for tie in ties)
        largest.name, largest.leader = least, "union" if union else leader
        for tie in ties:
            self._join(largest, () if tie is largest else tie.keys)
        self._join(largest, (key for key in keys if key not in self._ties))

    def _join(self, tie: _Tie, keys: Iterable[Key]) -> None:
        for key in keys:
            self._ties[key] = tie
            tie.keys.append(key)

    def _at(self, tensor: fx.Node | None) -> Collection[Key]:
        return () if tensor is None else self._keys.get(tensor, ())


def _prefixes(path: str) -> list[str]:
    # The paths of the modules around a module, outermost first, and its own.
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
