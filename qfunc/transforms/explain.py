"""explain: what was quantized by which rule, what was not, and why."""

from __future__ import annotations

from attrs import field, fields, frozen
from torch import Tensor, fx

from qfunc.graph.coding import in_integers
from qfunc.graph.fuse import fuse
from qfunc.graph.network import float_network, require, seats
from qfunc.graph.select import Context
from qfunc.graph.site import FakeQuantize
from qfunc.graph.units import Partition
from qfunc.specs import PerTensor, Unknown
from qfunc.transforms.table import table


@frozen
class SiteRow:
    """One quantized tensor: what holds it, which rule of the target asked, where the user's code made it."""

    tensor: str
    slot: str
    op: str
    format: str
    shared: str
    scale: str
    zero_point: str
    rule: int
    source: str


@frozen
class Explanation:
    """The sites, the rules that put them there (by their index in the target), the ops in float with the
    reason, and the fusions that almost were; `print` shows tables.
    """

    target: str
    sites: tuple[SiteRow, ...]
    rules: tuple[tuple[int, str], ...]
    floats: tuple[tuple[str, str, str], ...]
    misses: tuple[tuple[str, str, str], ...] = field(default=())

    def __str__(self) -> str:
        """Tables as text."""
        names = [f.name for f in fields(SiteRow)]
        head = ["of op" if n == "op" else n.replace("_", " ") for n in names]
        rows = [[str(getattr(s, n)) for n in names] for s in self.sites]
        parts = [f"{self.target}: {len(self.sites)} quantized tensors", table(head, rows, 220)]
        if self.rules:
            parts += ["", "rules", table(("rule", "selects"), [(str(i), text) for i, text in self.rules], 220)]
        if self.floats:
            parts += ["", "in float", table(("op", "kind", "why"), self.floats, 220)]
        if self.misses:
            parts += ["", "not fused", table(("op", "with", "why"), self.misses, 220)]
        return "\n".join(parts)


def explain(model: fx.GraphModule) -> Explanation:
    """What `quantize` did to a model.

    Returns:
        An `Explanation`: data, and a table when printed.
    Raises:
        CalibrationError: the model is not quantized.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> [(s.tensor, s.slot, s.rule) for s in explain(qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))).sites]
    [('input', 'input', 0), ('weight', 'weight', 0), ('bias', 'bias', 0), ('linear', 'output', 0)]
    """
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
        rows.append(SiteRow(site.name, site.slot, site.op, repr(site.scheme.format), where, scale, zero, site.rule, source))
    found = fuse(context, target.fusions)
    public = not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)
    floats: tuple[tuple[str, str, str], ...]
    if public and all(s.module.ready and in_integers(s) for s in seats(model)):
        floats = tuple((u.path, u.kind, u.reason) for u in Partition(model, target).float_units)
    else:
        quantized = {s.module.site.op for s in seats(model)}
        roots = [g.root for g in found.groups if context.kind(g.root) not in target.commuting]
        paths = [(context.fact(n).path, context.kind(n)) for n in roots]
        floats = tuple((path, kind, "no rule of the target quantizes it") for path, kind in paths if path not in quantized)
    misses = tuple((context.fact(m.node).path, context.fact(m.step).path, m.reason) for m in found.misses)
    used = sorted({r.rule for r in rows if r.rule >= 0})
    rules = tuple((i, repr(target.rules[i].select)) for i in used)
    return Explanation(target.name, tuple(rows), rules, floats, misses)


def _shown(module: FakeQuantize) -> tuple[str, str]:
    if module.dynamic or not module.ready:
        word = "at run time" if module.dynamic else "not calibrated"
        return word, word
    found = module.qparams()
    return _span(found.scale), _span(found.zero_point)


def _span(values: Tensor) -> str:
    if values.ndim == 0 or values.numel() == 1:
        return f"{float(values):.6g}"
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
