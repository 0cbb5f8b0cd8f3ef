"""explain: the quantized tensors and their rules, and the ops that stay float and why."""

from __future__ import annotations

from operator import attrgetter

from torch import Tensor, fx, nn

from qfunc.analysis.explanation import Explanation, FloatRow, SiteRow
from qfunc.analysis.histogram import Counter, Histogram
from qfunc.graph.selectors import Context
from qfunc.graph.stages import require_stage
from qfunc.graph.submodules import outer_model, require_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.placement.encoding import is_integer_encoding
from qfunc.placement.fusion import FusedGroup, match_fusions
from qfunc.placement.partition import Partition
from qfunc.placement.rules import GroupRules
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import KeepFloat, PerTensor, Unknown


def explain(model: nn.Module) -> Explanation:
    """Return what `quantize` did to a model, or to the submodules of a model and what is around them.

    Returns:
        An `Explanation`: data, and a table when printed.
    Raises:
        CalibrationError: the model is not quantized.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> [(s.tensor, s.slot, s.rule) for s in explain(qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))).sites]
    [('input', 'input', 0), ('weight', 'weight', 0), ('bias', 'bias', 0), ('linear', 'output', 0)]
    """
    each = require_submodules(model, "quantized", "explain")
    found = [_explained(part) for part in each.values()]
    if "" in each:
        return found[0]
    names = tuple(dict.fromkeys(one.target for one in found))
    rules = {(i, text if len(names) == 1 else f"{one.target}: {text}") for one in found for i, text in one.rules}
    outside = tuple(
        FloatRow(path or type(m).__name__, type(m).__name__, _OUTSIDE, "") for path, m in outer_model(model) if _owns(m)
    )
    return Explanation(
        ", ".join(names),
        tuple(row for one in found for row in one.sites),
        tuple(sorted(rules)),
        (*outside, *(row for one in found for row in one.floats)),
        tuple(row for one in found for row in one.misses),
        tuple(row for one in found for row in one.unmatched),
    )


def _owns(module: nn.Module) -> bool:
    return any(p is not None for p in module._parameters.values())


def _explained(model: fx.GraphModule) -> Explanation:
    record = require_stage(model, "quantized", "explain")
    target = record.target
    assert target is not None
    view = QuantizedModel(model)
    network = view.float_network
    context = Context(network, target.ops)
    nodes = {n.name: n for n in network.graph.nodes}
    rows = []
    for seat in view.quantizers:
        site, module = seat.module.site, seat.module
        scale, zero = _shown(module)
        shared = site.scheme.scale.shared
        where = "per tensor" if isinstance(shared, PerTensor) else repr(shared)
        source = context.fact(nodes[seat.tensor]).source if seat.tensor in nodes else ""
        text, drawn = repr(site.scheme.format), _histogram(module, network, nodes.get(seat.tensor))
        rows.append(SiteRow(site.name, site.slot, site.op, text, where, scale, zero, site.rule, source, drawn))
    found = match_fusions(context, target.fusions)
    public = not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)
    if public and all(s.module.ready and is_integer_encoding(s) for s in view.quantizers):
        units = Partition(view, target).float_units
        bare = {u.path: (nodes[u.group.root.name], u.reason) for u in units}
    else:
        quantized = {s.module.site.op for s in view.quantizers}
        roots = [g.root for g in found.groups if context.kind(g.root) not in target.commuting]
        bare = {context.fact(n).path: (n, "") for n in roots if context.fact(n).path not in quantized}
    groups, rules_of = {g.root: g for g in found.groups}, GroupRules(context, target)
    floats = tuple(
        FloatRow(path, context.kind(node), _why(groups[node], rules_of) or reason or _GONE, context.fact(node).source)
        for path, (node, reason) in bare.items()
    )
    unfused = tuple((context.fact(m.node).path, context.fact(m.step).path, m.reason) for m in found.misses)
    used = sorted({r.rule for r in rows if r.rule >= 0})
    rules = tuple((i, repr(target.rules[i].select)) for i in used)
    return Explanation(target.name, tuple(rows), rules, floats, (*record.unfolded, *unfused), record.unmatched)


_GONE = "its quantizers were bypassed"


_OUTSIDE = "it is outside of the submodules that were quantized"


def _why(group: FusedGroup, rules: GroupRules) -> str:
    # The reason why placement left an op alone, or "" if it did not.
    for index, rule in enumerate(rules.rules):
        asked = [v for v in (rule.input, rule.weight, rule.bias, rule.output) if v is not None]
        if asked and rules.applies(index, group):
            return f"rule {index} keeps it in float: {rule.select!r}" if all(isinstance(v, KeepFloat) for v in asked) else ""
    if rules.context.kind(group.root) == "unknown":
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
