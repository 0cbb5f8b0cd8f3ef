"""A unit of a partition: nodes that a runtime executes as one op."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.placement.fusion import FusedGroup
from qfunc.specs import Kernel

INNER_PREFIX = "inner"
"""The name of a unit's codes inside an op that is written as several."""


@frozen(eq=False)
class Unit:
    """One unit: its nodes in the float network, the kernel that runs it, and the reason if no integer kernel does.

    `integer` is True if the kernel reads or writes codes.  Other kernels compute in float32, bit for bit as the runtime.
    `host` is the reason why the host of the chip runs the unit, or "".
    """

    group: FusedGroup
    path: str
    tensor: str
    kind: str
    kernel: Kernel | None
    reason: str = ""
    codes: bool = True
    host: str = ""
    integer: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "integer", self.kernel is not None and self.codes)


def summary(units: tuple[Unit, ...]) -> list[dict[str, Any]]:
    """Return the units as plain data, for reports."""
    return [
        {"path": u.path, "tensor": u.tensor, "kind": u.kind, "integer": u.integer, "reason": u.reason}
        | ({"host": u.host} if u.host else {})
        for u in units
    ]
