"""What tied tensors have in common besides their qparams: the algorithm that finds and trains them."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from qfunc.quantizers.site import Site
from qfunc.specs import Scheme


def with_shared_algorithms(sites: Sequence[Site]) -> list[Site]:
    """Sites in the order of the graph, those of a tie with the estimator and function of its leader.

    Tied tensors hold the same parameters, and two functions have none in common.
    """
    leaders = [leader_of(site, sites) for site in sites]
    pairs = zip(sites, leaders, strict=True)
    return [s if s is leader else evolve(s, estimator=leader.estimator, function=leader.function) for s, leader in pairs]


def leader_of(site: Site, sites: Sequence[Site]) -> Site:
    """The site whose estimator and function a site takes: of a tie led by its "input" the first, else the last, its output.

    Itself where it is tied to none, where the hardware dictates its scale, and where the leader has another scheme.
    """
    if site.tie is None:
        return site
    members = [s for s in sites if s.tie == site.tie]
    leader = members[0 if site.leader == "input" else -1]
    return leader if isinstance(site.value, Scheme) and site.value == leader.value else site


__all__ = ["with_shared_algorithms", "leader_of"]
