"""The sites of a graph while they are placed: found by tensor, by reader and by tie without a search."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from attrs import evolve, frozen
from torch import fx

from qfunc.quantizers.site import Site

Key = tuple[fx.Node, Any]


@frozen
class PlacedSite:
    """A site, the node with the value that it quantizes, and the nodes that read the quantized value."""

    site: Site
    tensor: fx.Node
    readers: tuple[fx.Node, ...]


class SiteTable:
    """Sites by tensor and value; `of_output` has the site of each group's output, by its tensor."""

    def __init__(self) -> None:
        self.of_output: dict[fx.Node, PlacedSite] = {}
        self.names: set[str] = set()
        self._by_key: dict[Key, PlacedSite] = {}
        self._keys: dict[fx.Node, list[Key]] = {}
        self._tied: dict[str, list[Key]] = {}

    def __iter__(self) -> Iterator[PlacedSite]:
        return iter(self._by_key.values())

    def get(self, key: Key) -> PlacedSite | None:
        """Return the site at a key, or None."""
        return self._by_key.get(key)

    def add(self, key: Key, placed: PlacedSite) -> PlacedSite:
        """Store a new site and return it."""
        self._keys.setdefault(placed.tensor, []).append(key)
        self._by_key[key] = placed
        self.names.add(placed.site.name)
        return placed

    def add_readers(self, key: Key, readers: Sequence[fx.Node]) -> PlacedSite:
        """Add readers to the site at a key, and return the site."""
        old = self._by_key[key]
        self._by_key[key] = evolve(old, readers=(*old.readers, *(r for r in readers if r not in old.readers)))
        return self._by_key[key]

    def read_by(self, tensor: fx.Node | None, reader: fx.Node) -> PlacedSite | None:
        """Return the first site of a tensor whose value a node reads, or None."""
        return next((p for p in map(self._by_key.__getitem__, self._at(tensor)) if reader in p.readers), None)

    def tie(self, members: Sequence[PlacedSite], name: str, leader: str) -> None:
        """Tie sites and the sites that they are tied to already, by the least name of these ties, or else by `name`.

        The range of all is a union if that of some must be.
        """
        if len(members) < 2:
            return
        ties = {m.site.tie for m in members if m.site.tie} or {name}
        keys = [key for tie in ties for key in self._tied.pop(tie, ())]
        keys += [key for m in members if not m.site.tie for key in self._at(m.tensor) if self._by_key[key] == m]
        self._tied[min(ties)] = list(dict.fromkeys(keys))
        leader = "union" if "union" in {self._by_key[key].site.leader for key in keys} else leader
        for key in self._tied[min(ties)]:
            self._set_tie(key, min(ties), leader)

    def _at(self, tensor: fx.Node | None) -> Collection[Key]:
        return () if tensor is None else self._keys.get(tensor, ())

    def _set_tie(self, key: Key, tie: str, leader: str) -> None:
        placed = self._by_key[key]
        if (placed.site.tie, placed.site.leader) == (tie, leader):
            return
        self._by_key[key] = evolve(placed, site=evolve(placed.site, tie=tie, leader=leader))
        if self.of_output.get(placed.tensor) is placed:
            self.of_output[placed.tensor] = self._by_key[key]


__all__ = ["PlacedSite", "SiteTable"]
