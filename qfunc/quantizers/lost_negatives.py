"""Negative values of tensors whose codes have none: unsigned ones without a zero point, which map them to 0."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.quantizers.site import Site
from qfunc.specs import Float, Int, Levels, Scheme


@frozen(eq=False)
class Negatives:
    """The least value of a tensor, the number of its negative values, and the number of all values."""

    least: float = 0.0
    count: int = 0
    elements: int = 0

    def seen(self, value: Tensor) -> Negatives:
        """Return the figures of two tensors together; no tensor is empty."""
        count, least = int((value < 0).sum()), float(value.detach().min())
        return Negatives(min(self.least, least), self.count + count, self.elements + value.numel())


def maps_negatives_to_zero(scheme: Scheme) -> bool:
    """Return True if no code of a scheme is a negative number.

    >>> from qfunc.specs import ZeroPoint
    >>> [maps_negatives_to_zero(s) for s in (Scheme(Int(8)), Scheme(Int(8, signed=False)))]
    [False, True]
    >>> maps_negatives_to_zero(Scheme(Int(8, signed=False), zero_point=ZeroPoint()))
    False
    """
    if scheme.zero_point is not None or scheme.minimum or scheme.scale.signed:
        return False
    match scheme.format:
        case Int(qmin=least):
            return least >= 0
        case Float(signed=signed):
            return not signed
        case Levels(values=values):
            return min(values) >= 0
    return False


def require_no_negatives(site: Site, value: Tensor) -> None:
    """Raise if a constant has negative values and its codes have none.

    Raises:
        SpecError: so it is; the message has the least value.
    """
    if not maps_negatives_to_zero(site.scheme) or not value.numel() or not bool((value < 0).any()):
        return
    found = Negatives().seen(value)
    do = "Use edit.weights(signed=True), or symmetric=False for a zero point." if site.slot == "weight" else "Edit its rule."
    raise SpecError(
        where=f"{site.slot} {site.name!r} of op {site.op!r}",
        found=f"{found.count} of {found.elements} values below 0, down to {found.least:.4g}, for which "
        f"{site.scheme.format} without a zero point has no codes",
        wanted="signed codes or a zero point",
        do=do,
    )


def lost_text(found: Sequence[tuple[Site, Negatives, Tensor]]) -> str:
    """Return the warning about activations with values of -1 LSB or less that become 0, or "" without one.

    Args:
        found: Sites, their negative values, and their scales.
    """
    lost = [(site, n) for site, n, scale in found if n.count and n.least <= -float(scale.max())]
    if not lost:
        return ""
    site, most = max(lost, key=lambda pair: pair[1].count / pair[1].elements)
    others = f", and such values of {len(lost) - 1} more sites" if len(lost) > 1 else ""
    share = 100 * most.count / most.elements
    return (
        f"calibrate, site {site.name!r}: found {share:.3g} % of its values below 0, down to {most.least:.4g}{others}, wanted "
        f"none, because {site.scheme.format} without a zero point maps them to 0. Use edit.activations(signed=True), or "
        "symmetric=False for a zero point."
    )
