"""qfunc's placement beside MQBench's: what differs, and whether the table explains it."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

from attrs import frozen
from parity.golden import LOG, Held, mqbench, names
from parity.table import FLOAT, KINDS, Backend, Difference, Explained
from torch import fx, nn

import qfunc
from qfunc.frontend.capture import capture
from qfunc.graph.sites import quantizer_nodes
from qfunc.ops.node import kind_of
from qfunc.specs import Int, PerChannel, Scheme, Target
from tests.networks import NETWORKS

FUNCTIONS = {"add": "add", "concat": "cat"}  # torch.fx counts these in the order of the graph


@frozen
class Parity:
    """The comparison of one back-end: differences with the row that explains each, and rows that say something else."""

    name: str
    same: int
    explained: tuple[tuple[Difference, Explained], ...]
    unexplained: tuple[Difference, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        kinds = Counter(row.kind for _, row in self.explained)
        return f"{self.name:32} {self.same:5} " + " ".join(f"{kinds[k]:5}" for k in KINDS) + f" {len(self.unexplained):12}"


def compare(backend: Backend) -> Parity:
    """All networks, with every row held to its counts."""
    same, found = differences(backend.name, backend.target)
    rows = {d: [row for row in backend.explained if row.covers(d)] for d in found}
    wrong = []
    for row in backend.explained:
        counts = dict(Counter(d.network for d in found if row.covers(d)))
        wrong += [f"{row}: found {counts}"] if counts != row.counts else []
        wrong += [f"{row}: no kind or no reference"] if row.kind not in KINDS or not row.because else []
    wrong += [f"{d} is explained {len(of)} times" for d, of in rows.items() if len(of) > 1]
    explained = tuple((d, of[0]) for d, of in rows.items() if of)
    return Parity(
        f"{backend.name}, {backend.target.name}", same, explained, tuple(d for d, of in rows.items() if not of), tuple(wrong)
    )


@cache
def differences(name: str, target: Target) -> tuple[int, tuple[Difference, ...]]:
    """How many tensors a back-end of MQBench and our target hold alike, and those that they do not."""
    same, found = 0, []
    for network in NETWORKS:
        theirs, ours = mqbench(name, network, built(network)), quantized(target, network)
        for role, tensor in theirs | ours:
            held = theirs.get((role, tensor), FLOAT), ours.get((role, tensor), FLOAT)
            same += held[0] == held[1]
            found += [Difference(network, role, tensor, *held)] if held[0] != held[1] else []
    return same, tuple(found)


@cache
def built(network: str) -> nn.Module:
    """A network in evaluation mode; placement does not depend on its weights."""
    return NETWORKS[network]().eval()


@cache
def captured(network: str) -> fx.GraphModule:
    """The same as a graph."""
    return capture()(built(network))


def quantized(target: Target, network: str) -> Held:
    """What qfunc quantizes, by the names of torch.fx's trace."""
    made = qfunc.quantize(target)(captured(network))
    traced, seen = {}, Counter()
    for node in made.graph.nodes:
        if (name := FUNCTIONS.get(kind_of(node))) is not None:
            traced[node.name] = f"{name}_{seen[name]}" if seen[name] else name
            seen[name] += 1
    name, found = names(built(network), set()), defaultdict(list)
    for seat in quantizer_nodes(made):
        site = seat.module.site
        if site.slot == "weight":
            found["weight", site.name.removesuffix(".weight")].append(codes(site.scheme))
        elif site.slot != "bias":
            found["activation", name(traced.get(seat.tensor, seat.tensor))].append(codes(site.scheme))
    return {role: " ".join(sorted(texts)) for role, texts in found.items()}


def codes(scheme: Scheme) -> str:
    """The codes of a scheme as the golden file writes them."""
    axis = f" axis {scheme.scale.shared.axis}" if isinstance(scheme.scale.shared, PerChannel) else ""
    if not isinstance(scheme.format, Int):
        return LOG + axis
    return f"{scheme.format.qmin}..{scheme.format.qmax}{axis}"


def table(results: list[Parity]) -> str:
    """One line a back-end: tensors held alike, and differences of each kind."""
    head = f"{'back-end, target':32} {'same':>5} " + " ".join(f"{k:>5}" for k in KINDS) + f" {'unexplained':>12}"
    return "\n".join([head, *map(str, results)])


def grouped(differences: tuple[Difference, ...]) -> str:
    """Differences of one sort on one line, with their counts and names: what a row of the table would say."""
    groups = defaultdict(list)
    for d in differences:
        groups[d.role, d.mqbench, d.qfunc].append(d)
    lines = []
    for (role, theirs, ours), found in groups.items():
        lines.append(f"{role}: MQBench {theirs}, qfunc {ours}: {dict(Counter(d.network for d in found))}")
        lines += [f"  {n}: {' '.join(d.tensor for d in found if d.network == n)}" for n in NETWORKS]
    return "\n".join(lines)
