"""explain: list the quantized tensors with their rules, and the float ops with the reasons."""

from __future__ import annotations

from operator import attrgetter

from torch import Tensor, fx, nn

from qfunc._collection import paused_collection
from qfunc.analysis.explanation import Explanation, FloatRow, HostRow, OverflowRow, SiteRow
from qfunc.analysis.histogram import Counter, Histogram
from qfunc.errors import CalibrationError
from qfunc.graph.data_movement import commutes
from qfunc.graph.selectors import Context
from qfunc.graph.stages import require_stage
from qfunc.graph.submodules import outer_model, require_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.affine import full_scale
from qfunc.placement.encoding import has_kernel_codes
from qfunc.placement.fusion import FusedGroup, match_fusions
from qfunc.placement.islands import rules_of, with_islands
from qfunc.placement.partition import Partition
from qfunc.placement.products import range_of_unit
from qfunc.placement.rules import GroupRules, near_rule
from qfunc.placement.units import Unit
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import KeepFloat, PerTensor, Target, Unknown
from qfunc.specs.text.datasheet import selected


@paused_collection()
def explain(model: nn.Module) -> Explanation:
    """Return the sites of a quantized model, its rules, and its float ops with the reasons.

    Of a calibrated model it also lists the ops whose accumulators may overflow, with the largest sum that weights and
    ranges allow. In all other ops they prove that no sum overflows. If the chip has a host, it lists the ops that the host
    runs.

    Returns:
        An `Explanation`: data, and a table when printed.
    Raises:
        CalibrationError: the model is not quantized.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> [(s.tensor, s.slot, s.rule) for s in explain(qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))).sites]
    [('input', 'input', 0), ('weight', 'weight', 0), ('bias', 'bias', 0), ('linear', 'output', 0)]
    """
    if isinstance(model, Target):
        do = "Write print(target), or qfunc.explain(qfunc.quantize(target)(model))."
        raise CalibrationError(where="explain", found="a Target", wanted="a quantized model", do=do)
    parts = require_submodules(model, "quantized", "explain")
    explanations = [_explain_graph(part) for part in parts.values()]
    if "" in parts:
        return explanations[0]
    targets = tuple(dict.fromkeys(e.target for e in explanations))
    rules = {(i, text if len(targets) == 1 else f"{e.target}: {text}") for e in explanations for i, text in e.rules}
    outside = tuple(
        FloatRow("", path or type(m).__name__, type(m).__name__, _OUTSIDE)
        for path, m in outer_model(model)
        if _has_parameters(m)
    )
    return Explanation(
        ", ".join(targets),
        tuple(row for e in explanations for row in e.sites),
        tuple(sorted(rules)),
        (*outside, *(row for e in explanations for row in e.floats)),
        tuple(row for e in explanations for row in e.misses),
        tuple(row for e in explanations for row in e.unmatched),
        tuple(row for e in explanations for row in e.overflows),
        ", ".join(dict.fromkeys(e.host for e in explanations if e.host)),
        tuple(row for e in explanations for row in e.hosted),
    )


def _has_parameters(module: nn.Module) -> bool:
    return any(p is not None for p in module._parameters.values())


def _explain_graph(model: fx.GraphModule) -> Explanation:
    record = require_stage(model, "quantized", "explain")
    target = record.target
    assert target is not None
    view = QuantizedModel(model)
    network = view.float_network
    context = Context(network, target.ops)
    nodes = {n.name: n for n in network.graph.nodes}
    rows = []
    for quantizer in view.quantizers:
        site, module, node = quantizer.module.site, quantizer.module, nodes.get(quantizer.tensor)
        scale, zero_point = _format_qparams(module)
        shared = site.scheme.scale.shared
        granularity = "per tensor" if isinstance(shared, PerTensor) else repr(shared)
        lines = (context.fact(nodes[n]).source for n in (quantizer.tensor, *quantizer.readers) if n in nodes)
        source = next(filter(None, lines), "")
        fmt, histogram = repr(site.scheme.format), _histogram(module, network, node)
        rows.append(SiteRow(source, site.name, site.slot, site.op, site.rule, fmt, granularity, scale, zero_point, histogram))
    fused = match_fusions(context, target.fusions, target.rules)
    public = not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)
    overflows: tuple[OverflowRow, ...] = ()
    hosted: tuple[HostRow, ...] = ()
    ready = all(q.module.ready and has_kernel_codes(q, target) for q in view.quantizers)
    partition = Partition(view, target) if ready and (public or target.host is not None) else None
    if partition is not None:
        units = ((u, nodes[u.group.root.name]) for u in partition.units if u.host)
        hosted = tuple(HostRow(context.fact(node).source, u.path, u.kind, u.host) for u, node in units)
    if public and partition is not None:
        float_ops = {u.path: (nodes[u.group.root.name], u.reason) for u in partition.float_units}
        rows_of_units = (_overflow(partition, unit, context) for unit in partition.units)
        overflows = tuple(row for row in rows_of_units if row is not None)
    else:
        quantized = {q.module.site.op for q in view.quantizers}
        ops = (g.root for g in fused.groups if not isinstance(g.root.target, type))
        roots = [node for node in ops if not commutes(node, context, target)]
        float_ops = {context.fact(n).path: (n, "") for n in roots if context.fact(n).path not in quantized}
    groups = {g.root: g for g in fused.groups}
    group_rules = with_islands(rules_of(fused.groups, context, target), fused.groups, context, target)
    floats = tuple(
        FloatRow(
            context.fact(node).source,
            path,
            context.kind(node),
            _reason(groups[node], group_rules, target) or reason or _BYPASSED,
        )
        for path, (node, reason) in float_ops.items()
    )
    unfused = tuple((context.fact(m.node).path, context.fact(m.step).path, m.reason) for m in fused.misses)
    used = sorted({r.rule for r in rows if r.rule >= 0})
    rules = tuple((i, selected(target.rules[i].select)) for i in used)
    misses = (*record.unfolded, *unfused)
    host = "" if target.host is None else target.host.name
    return Explanation(target.name, tuple(rows), rules, floats, misses, record.unmatched, overflows, host, hosted)


_LONG_SUM = 2**15
"""A product of two activations is listed if a sum of so many products may overflow: its length is not in the graph."""


def _overflow(partition: Partition, unit: Unit, context: Context) -> OverflowRow | None:
    sums = range_of_unit(partition, unit)
    if sums is None or not bool(sums.at_risk.any()) or (sums.per_product and sums.safe_length >= _LONG_SUM):
        return None
    risky = f"{int(sums.at_risk.sum())} of {sums.at_risk.numel()}"
    channels = f"all, from {sums.safe_length + 1} products on" if sums.per_product else risky
    source = context.fact(unit.group.root).source
    return OverflowRow(
        source, unit.path, repr(sums.accumulator), channels, f"{sums.largest:.0f}", str(2 ** (sums.bits - 1) - 1)
    )


_BYPASSED = "its quantizers were bypassed"
_OUTSIDE = "it is outside of the submodules that were quantized"


def _reason(group: FusedGroup, rules: GroupRules, target: Target) -> str:
    # Return the reason why placement does not quantize an op, or "" if it does.
    first = {slot: rules.first(group, slot) for slot in ("input", "weight", "bias", "output")}
    decides = {slot: index for slot, index in first.items() if index is not None}
    for slot, index in decides.items():
        rule = rules.rules[index]
        if isinstance(getattr(rule, slot), KeepFloat):
            what = "it" if set(decides.values()) == {index} else f"its {slot}"
            return f"rule {index} keeps {what} in float: {selected(rule.select)}"
    if decides:
        return ""
    if (row := rules.slower.get(group.root)) is not None:
        return f"on {target.runtime.cpu} it is {row.ratio:.3g} times slower on integers: {row.because}"
    if group.root in rules.islands:
        return "no op on integers reads it, but float ops are beside it, and its rule is `beside_integers`"
    if rules.context.kind(group.root) == "unknown":
        return "it is outside the vocabulary of ops; an OpKind in the target's ops gives it a kind"
    return near_rule(group.root, target, rules.context) or "no rule of the target quantizes it"


def _format_qparams(module: FakeQuantize) -> tuple[str, str]:
    if module.dynamic or not module.ready:
        text = "at run time" if module.dynamic else "not calibrated"
        return text, text
    qparams = module.qparams()
    return _format_range(full_scale(qparams)), _format_range(qparams.zero_point)


def _histogram(module: FakeQuantize, network: fx.GraphModule, node: fx.Node | None) -> Histogram | None:
    if node is None or node.op != "get_attr" or module.site.slot != "weight" or module.dynamic or not module.ready:
        return None
    counter = Counter(module)
    counter.add(attrgetter(str(node.target))(network))
    return counter.histogram()


def _format_range(values: Tensor) -> str:
    if values.ndim == 0 or values.numel() == 1:
        return f"{float(values):.6g}"
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
