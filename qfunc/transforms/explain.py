"""explain: what was quantized by which rule, what was not, and why."""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path

from attrs import field, fields, frozen
from torch import Tensor, fx, nn

from qfunc.graph.coding import in_integers
from qfunc.graph.fake_quantize import FakeQuantize
from qfunc.graph.fuse import Group, fuse
from qfunc.graph.network import float_network, require, seats
from qfunc.graph.parts import around, require_parts
from qfunc.graph.plan import speaks_of
from qfunc.graph.select import Context
from qfunc.graph.units import Partition
from qfunc.specs import Keep, PerTensor, Rule, Unknown
from qfunc.transforms.histogram import Counter, Histogram
from qfunc.transforms.page import Section, page, section, write_page
from qfunc.transforms.plots import histogram_plot
from qfunc.transforms.table import table


@frozen
class SiteRow:
    """One quantized tensor: what holds it, which rule of the target asked, where the user's code made it.

    `histogram` is that of a weight; activations need batches: `compare`.
    """

    tensor: str
    slot: str
    op: str
    format: str
    shared: str
    scale: str
    zero_point: str
    rule: int
    source: str
    histogram: Histogram | None = field(default=None, repr=False)


@frozen
class FloatRow:
    """One op that computes in float: what it is, why, where the user's code calls it."""

    op: str
    kind: str
    why: str
    source: str


@frozen
class Explanation:
    """The sites, the rules that put them there (by their index in the target), the ops in float with the
    reason, and the fusions that almost were; `print` shows tables, `html` a page.
    """

    target: str
    sites: tuple[SiteRow, ...]
    rules: tuple[tuple[int, str], ...]
    floats: tuple[FloatRow, ...]
    misses: tuple[tuple[str, str, str], ...] = field(default=())

    def sections(self) -> tuple[Section, ...]:
        """The tables: quantized tensors, rules, what is in float, what was nearly fused."""
        names, float_names = [f.name for f in fields(SiteRow) if f.repr], [f.name for f in fields(FloatRow)]
        head = tuple("of op" if n == "op" else n.replace("_", " ") for n in names)
        rows = tuple([str(getattr(s, n)) for n in names] for s in self.sites)
        floats = tuple([str(getattr(f, n)) for n in float_names] for f in self.floats)
        return (
            Section(f"{self.target}: {len(self.sites)} quantized tensors", head, rows),
            Section("rules", ("rule", "selects"), tuple((str(i), text) for i, text in self.rules)),
            Section("in float", tuple(float_names), floats),
            Section("not fused", ("op", "with", "why"), self.misses),
        )

    def __str__(self) -> str:
        """Tables as text."""
        shown = [s for s in self.sections() if s.rows]
        return "\n\n".join(f"{s.title}\n{table(s.head, s.rows, 220)}" for s in shown)

    def html(self) -> str:
        """The tables as one page, and a histogram of each weight with its clipping range."""
        drawn = "".join(histogram_plot(s.tensor, s.histogram) for s in self.sites if s.histogram)
        intro = "Each tensor with the rule that asked. `compare` draws activations, and what quantization costs."
        return page(f"{self.target}: what was quantized", intro, (*self.sections(), section("Weights", drawn)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page.

        Raises:
            VerifyError: the path is a directory.
        """
        return write_page(path, self.html())


def explain(model: nn.Module) -> Explanation:
    """What `quantize` did to a model; of one with quantized submodules also what is around them.

    Returns:
        An `Explanation`: data, and a table when printed.
    Raises:
        CalibrationError: the model is not quantized.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> [(s.tensor, s.slot, s.rule) for s in explain(qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))).sites]
    [('input', 'input', 0), ('weight', 'weight', 0), ('bias', 'bias', 0), ('linear', 'output', 0)]
    """
    each = require_parts(model, "quantized", "explain")
    found = [_explained(part) for part in each.values()]
    if "" in each:
        return found[0]
    names = tuple(dict.fromkeys(one.target for one in found))
    rules = {(i, text if len(names) == 1 else f"{one.target}: {text}") for one in found for i, text in one.rules}
    outside = tuple(FloatRow(path or type(m).__name__, type(m).__name__, _OUTSIDE, "") for path, m in around(model) if _owns(m))
    return Explanation(
        ", ".join(names),
        tuple(row for one in found for row in one.sites),
        tuple(sorted(rules)),
        (*outside, *(row for one in found for row in one.floats)),
        tuple(row for one in found for row in one.misses),
    )


def _owns(module: nn.Module) -> bool:
    return any(p is not None for p in module._parameters.values())


def _explained(model: fx.GraphModule) -> Explanation:
    record = require(model, "quantized", "explain")
    target = record.target
    assert target is not None
    network = float_network(model)
    context = Context(network, target.ops)
    nodes = {n.name: n for n in network.graph.nodes}
    rows = []
    for seat in seats(model):
        site, module = seat.module.site, seat.module
        scale, zero = _shown(module)
        shared = site.scheme.scale.shared
        where = "per tensor" if isinstance(shared, PerTensor) else repr(shared)
        source = context.fact(nodes[seat.tensor]).source if seat.tensor in nodes else ""
        text, drawn = repr(site.scheme.format), _histogram(module, network, nodes.get(seat.tensor))
        rows.append(SiteRow(site.name, site.slot, site.op, text, where, scale, zero, site.rule, source, drawn))
    found = fuse(context, target.fusions)
    public = not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)
    if public and all(s.module.ready and in_integers(s) for s in seats(model)):
        units = Partition(model, target).float_units
        bare = {u.path: (nodes[u.group.root.name], u.reason) for u in units}
    else:
        quantized = {s.module.site.op for s in seats(model)}
        roots = [g.root for g in found.groups if context.kind(g.root) not in target.commuting]
        bare = {context.fact(n).path: (n, "") for n in roots if context.fact(n).path not in quantized}
    groups = {g.root: g for g in found.groups}
    floats = tuple(
        FloatRow(
            path, context.kind(node), _why(groups[node], context, target.rules) or reason or _GONE, context.fact(node).source
        )
        for path, (node, reason) in bare.items()
    )
    unfused = tuple((context.fact(m.node).path, context.fact(m.step).path, m.reason) for m in found.misses)
    used = sorted({r.rule for r in rows if r.rule >= 0})
    rules = tuple((i, repr(target.rules[i].select)) for i in used)
    return Explanation(target.name, tuple(rows), rules, floats, (*record.unfolded, *unfused))


_GONE = "its quantizers were bypassed"
_OUTSIDE = "it is outside of the submodules that were quantized"


def _why(group: Group, context: Context, rules: tuple[Rule, ...]) -> str:
    # Why placement left an op alone, or "" where it did not.
    for index, rule in enumerate(rules):
        asked = [v for v in (rule.input, rule.weight, rule.bias, rule.output) if v is not None]
        if asked and speaks_of(rule, group, context):
            return f"rule {index} keeps it in float: {rule.select!r}" if all(isinstance(v, Keep) for v in asked) else ""
    if context.kind(group.root) == "unknown":
        return "it is outside the vocabulary of ops; an OpKind in the target's ops gives it a kind"
    return "no rule of the target quantizes it"


def _shown(module: FakeQuantize) -> tuple[str, str]:
    if module.dynamic or not module.ready:
        word = "at run time" if module.dynamic else "not calibrated"
        return word, word
    found = module.qparams()
    return _span(found.scale), _span(found.zero_point)


def _histogram(module: FakeQuantize, network: fx.GraphModule, node: fx.Node | None) -> Histogram | None:
    if node is None or node.op != "get_attr" or module.site.slot != "weight" or module.dynamic or not module.ready:
        return None
    counter = Counter(module)
    counter.add(attrgetter(str(node.target))(network))
    return counter.histogram()


def _span(values: Tensor) -> str:
    if values.ndim == 0 or values.numel() == 1:
        return f"{float(values):.6g}"
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
