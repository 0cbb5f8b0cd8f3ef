"""silu(x) = x sigmoid(x): as one op or as two, whichever the kernels of the target compute on integers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.graph.gates import divides_silu, on_integers
from qfunc.graph.selectors import Context, matches, names_kind
from qfunc.ops.node import attribute, kind_of
from qfunc.passes.decomposition import Decompose, Emit, decompose
from qfunc.specs import KeepFloat, Refuse, Rule, Target


def gate_by_sigmoid(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Write each silu as a sigmoid and a product, or such a product as a silu, in place, as the target computes it.

    A silu becomes two ops if kernels compute these on integers and no kernel a silu, or if the target, or the chip beside a
    host, refuses a silu.  x * sigmoid(x) becomes a silu if a kernel computes that on integers, or if no rule and no kernel
    names a sigmoid.  A silu that the target names elsewhere, as in a rule, a fusion or a refusal, stays.

    >>> from qfunc import targets
    >>> from qfunc.frontend.capture import capture
    >>> [kind_of(n) for n in gate_by_sigmoid(capture()(torch.nn.SiLU()), targets.onnxruntime).graph.nodes]
    ['input', 'sigmoid', 'mul', 'output']
    """
    context = Context(network, target.ops)
    steps = (step.op for fusion in target.fusions for step in fusion.then)
    rules, overrides = [rule.select for rule in target.rules], [change.select for change in target.overrides]
    selects = (*steps, *rules, *overrides, *(refusal.select for refusal in _refusals(target)))
    named = any(names_kind(select, "silu") for select in selects)
    kept = [rule.select for rule in target.rules if _keeps_float(rule)]
    asked = any(names_kind(select, "sigmoid") for select in (*kept, *overrides))
    known = any(names_kind(select, "sigmoid") for select in rules) or on_integers("sigmoid", target)
    whole, divides = on_integers("silu", target), divides_silu(target)
    joins = not asked and (whole or not known)

    def choose(node: fx.Node) -> Decompose | None:
        match kind_of(node):
            case "silu" if not named and (divides or _is_refused(node, target, context)):
                return _divided
            case "mul" if joins:
                return partial(_joined, target=target, context=context)
        return None

    return decompose(network, choose)


def _keeps_float(rule: Rule) -> bool:
    return isinstance(rule.input, KeepFloat) or isinstance(rule.output, KeepFloat)


def _refusals(target: Target) -> list[Refuse]:
    every = (*target.legality, *(() if target.host is None else target.host.refuses))
    return [rule for rule in every if isinstance(rule, Refuse)]


def _is_refused(node: fx.Node, target: Target, context: Context) -> bool:
    return any(matches(rule.select, node, context) for rule in _refusals(target))


def _divided(node: fx.Node, emit: Emit) -> fx.Node:
    x = attribute(node, "input")
    return emit(torch.mul, x, emit(torch.sigmoid, x))


def _joined(node: fx.Node, emit: Emit, target: Target, context: Context) -> fx.Node | None:
    x, gate = node.args[:2]
    x, gate = (x, gate) if _gates(gate, x) else (gate, x)
    if not _gates(gate, x):
        return None
    found = emit(F.silu, x)
    if _is_refused(found, target, context):
        node.graph.erase_node(found)
        return None
    return found


def _gates(gate: Any, x: Any) -> bool:
    # sigmoid(x) that nothing else reads
    return isinstance(gate, fx.Node) and kind_of(gate) == "sigmoid" and gate.args[0] is x and len(gate.users) == 1
