"""The table of differences from MQBench: what one row says, and which kinds there are."""

from __future__ import annotations

from fnmatch import fnmatchcase

from attrs import frozen

from qfunc.specs import Target

KINDS = {
    "a": "an op that MQBench misses for its spelling",
    "b": "a documented rule of the vendor",
    "c": "a defect of MQBench that is repaired",
}
FLOAT = "float"
"""What holds a tensor that has no quantizer."""


@frozen
class Difference:
    """One tensor that MQBench and qfunc hold differently: a text of codes, or "float"."""

    network: str
    role: str
    tensor: str
    mqbench: str
    qfunc: str


@frozen
class Explained:
    """Why some tensors differ: those of a role that match `tensors` (shell patterns, separated by blanks) and are
    held so by the two; `counts` says how many there are in each network.
    """

    kind: str
    role: str
    tensors: str
    mqbench: str
    qfunc: str
    counts: dict[str, int]
    because: str

    def covers(self, found: Difference) -> bool:
        """Whether this row speaks of the difference."""
        held = (found.role, found.mqbench, found.qfunc) == (self.role, self.mqbench, self.qfunc)
        return held and found.network in self.counts and any(fnmatchcase(found.tensor, p) for p in self.tensors.split())


@frozen
class Backend:
    """A back-end of MQBench, our target for it, configured alike, and every difference between the two."""

    name: str
    target: Target
    explained: tuple[Explained, ...] = ()
