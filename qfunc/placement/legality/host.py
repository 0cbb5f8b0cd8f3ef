"""Divide the units of a model between a chip and its host."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import fx

from qfunc.graph.selectors import Context, matches
from qfunc.placement.fusion import FusedGroup
from qfunc.placement.legality.sizes import Sizes, refused_sizes
from qfunc.specs import Host, Refuse, RequireSizes


def on_host(
    host: Host,
    groups: Collection[FusedGroup],
    context: Context,
    sizes: Sizes,
    in_float: Callable[[FusedGroup], bool],
    nowhere: Collection[fx.Node],
) -> dict[fx.Node, str]:
    """Return the roots of the groups that the host runs, with the reasons.

    Args:
        host: The host.
        groups: The groups in the order of the model.
        context: The graph.
        sizes: The sizes of activations.
        in_float: Return True if a group computes in float.
        nowhere: Nodes that neither the chip nor the host runs: constants, and arithmetic on sizes.
    """
    found: dict[fx.Node, str] = {}
    first = ""
    for group in groups:
        if group.root in nowhere:
            continue
        reason = f"it comes after {first!r}" if first else _refusal(host, group, context, sizes)
        if not reason and in_float(group):
            reason = "it computes in float"
        if reason:
            first = first or context.fact(group.root).path
            found[group.root] = reason
    return found


def measures_sizes(host: Host) -> bool:
    """Return True if the chip refuses some ops because of sizes."""
    return any(isinstance(rule, RequireSizes) for rule in host.refuses)


def _refusal(host: Host, group: FusedGroup, context: Context, sizes: Sizes) -> str:
    # Return the reason why the chip refuses a group, or "".
    for node in group.nodes:
        for rule in host.refuses:
            if isinstance(rule, Refuse):
                if matches(rule.select, node, context):
                    return f"the chip refuses {context.kind(node)}: {rule.because}. {rule.do}"
                continue
            for found, wanted in refused_sizes(rule, node, context, sizes):
                return f"the chip refuses {found}, wanted {wanted}. {rule.do}"
    return ""
