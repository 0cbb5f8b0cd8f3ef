"""The law of commuting ops: Q(op(x)) = op(Q(x)), bit for bit, for each kind that a target lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.graph.selectors import kinds_of
from qfunc.numerics.affine import fake_quantize
from qfunc.numerics.qparams import from_range
from qfunc.ops.definition import Trait
from qfunc.ops.opset import OPS
from qfunc.placement.without_effect.unmatched_selectors import atoms
from qfunc.specs import AllOf, AnyOf, Cases, Int, Not, Op, PerTensor, Scheme, Selector, Target

_MOVING: dict[str, Callable[[Tensor], Any]] = {
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "resize": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
}
"""Ops that only move codes for some arguments (`graph.data_movement.only_moves_codes`), with such arguments."""


def commuting_ops_commute(target: Target) -> None:
    """Check Q(op(x)) = op(Q(x)) for each kind that `commuting` selects and each per-tensor scheme of activations in rules."""
    own = {op.kind: op for op in target.ops}
    named = {kind for leaf in _leaves(target) for kind in leaf.kinds}
    x = 2.3 * torch.randn((2, 3, 5, 6), generator=torch.Generator().manual_seed(0))  # partly outside the range
    for scheme in dict.fromkeys(_schemes(target)):
        qparams = from_range(torch.tensor(-2.1), torch.tensor(3.3), scheme)
        for kind in _commuting(target):
            op = _example(kind) if kind not in own else own[kind].example or _example(own[kind].behaves_like or kind)
            if op is None and (kind in own or kind not in named):
                continue  # a user's op without an example that behaves like no built-in one, or a trait of ops of other inputs
            assert op is not None, f"{kind!r} is listed as commuting, but is not an op on one float tensor"
            after = torch.cat([fake_quantize(t, qparams, scheme).flatten() for t in _tensors(op(x))])
            before = torch.cat([t.flatten() for t in _tensors(op(fake_quantize(x, qparams, scheme)))])
            differ = int((after != before).sum())
            found = f"Q({kind}(x)) is not {kind}(Q(x)) for {differ} of {after.numel()} elements with {scheme!r}"
            assert not differ, f"{kind!r} is listed as commuting: {found}"


def _leaves(target: Target) -> list[Op]:
    return [] if target.commuting is None else [leaf for leaf in atoms(target.commuting) if isinstance(leaf, Op)]


def _commuting(target: Target) -> tuple[str, ...]:
    """Return the kinds of which `commuting` selects some ops."""
    if (select := target.commuting) is None:
        return ()
    named = [kind for leaf in _leaves(target) for kind in kinds_of(leaf, target.ops)]
    every = dict.fromkeys((*named, *(op.kind for op in OPS), *(op.kind for op in target.ops)))
    return tuple(kind for kind in every if _may_select(select, kind, target))


def _may_select(select: Selector, kind: str, target: Target) -> bool:
    match select:
        case Op():
            return kind in kinds_of(select, target.ops)
        case AnyOf(of):
            return any(_may_select(one, kind, target) for one in of)
        case AllOf(of):
            return all(_may_select(one, kind, target) for one in of)
        case Not(Op() as of):
            return not _may_select(of, kind, target)
    return True


def _example(kind: str) -> Callable[[Tensor], Any] | None:
    # The example of the kind's first record, if it is an op on real numbers.
    op = next((op for op in OPS if op.kind == kind), None)
    if op is None or op.traits & (Trait.INTEGER_RESULT | Trait.CREATES):
        return None
    return _MOVING.get(kind, op.example)


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for t in value if t.is_floating_point()]


def _schemes(target: Target) -> Iterator[Scheme]:
    for rule in target.rules:
        for value in (rule.input, rule.output):
            values = (*(c[1] for c in value.cases), value.default) if isinstance(value, Cases) else (value,)
            for candidate in values:
                if (
                    isinstance(candidate, Scheme)
                    and isinstance(candidate.format, Int)
                    and isinstance(candidate.scale.shared, PerTensor)
                ):
                    yield candidate
