"""All records in one tuple, and look-ups by name, callable and kind."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Any

from qfunc.ops import (
    activation,
    arithmetic,
    attention,
    comparison,
    creation,
    elementary,
    image,
    indexing,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    shape,
)
from qfunc.ops.definition import NONE, Op, Trait

FAMILIES = (
    linear, activation, arithmetic, elementary, comparison, pooling, normalization, attention, shape, indexing, creation,
    reduction, image, recurrent,
)  # fmt: skip
OPS: tuple[Op, ...] = tuple(op for family in FAMILIES for op in family.ROWS)
BY_NAME = MappingProxyType({name: op for op in OPS for name in op.names})
BY_TARGET: MappingProxyType[Any, Op] = MappingProxyType({op.call: op for op in OPS})

MODULE_KINDS = {
    "TrainingOnly": "dropout",
    "Dropout": "dropout", "Dropout1d": "dropout", "Dropout2d": "dropout", "Dropout3d": "dropout", "AlphaDropout": "dropout",
    "FeatureAlphaDropout": "dropout", "BatchNorm1d": "batch_norm", "BatchNorm2d": "batch_norm", "BatchNorm3d": "batch_norm",
    "SyncBatchNorm": "batch_norm", "InstanceNorm1d": "instance_norm", "InstanceNorm2d": "instance_norm",
    "InstanceNorm3d": "instance_norm",
}  # fmt: skip
"""The leaf modules of torch.nn and of qfunc, and their kinds."""

# In evaluation a dropout is the identity.
_IDENTITY = (
    Trait.KEEPS_SIGN | Trait.ELEMENTWISE | Trait.HOMOGENEOUS | Trait.SCALES_WITH_CHANNELS | Trait.KEEPS_CONSTANTS | Trait.VIEW
)
MODULE_TRAITS = {"dropout": _IDENTITY, "batch_norm": Trait.NORM, "fake_quantize": Trait.KEEPS_SIGN}
"""The traits of kinds of modules that no record has."""


@cache
def kinds_with(trait: Trait) -> tuple[str, ...]:
    """Return the kinds that have a trait, in the order of the records.

    >>> kinds_with(Trait.CLAMPS), kinds_with(Trait.RECURRENT)
    (('relu', 'clip'), ('lstm', 'gru', 'rnn'))
    """
    return tuple(kind for kind in dict.fromkeys((*(op.kind for op in OPS), *MODULE_TRAITS)) if trait in traits_of(kind))


@cache
def traits_of(kind: str) -> Trait:
    """Return the traits that all records of a kind have; none for an unknown kind.

    >>> Trait.NON_NEGATIVE in traits_of("relu"), Trait.NON_NEGATIVE in traits_of("tanh")
    (True, False)
    """
    rows = [op.traits for op in OPS if op.kind == kind]
    if not rows:
        return MODULE_TRAITS.get(kind, NONE)
    common = rows[0]
    for traits in rows:
        common &= traits
    return common


def kinds(traits: Trait) -> frozenset[str]:
    """Return the kinds all of whose records have these traits.

    >>> sorted(kinds(Trait.CLAMPS))
    ['clip', 'relu']
    """
    return frozenset(k for k in (*(op.kind for op in OPS), *MODULE_TRAITS) if traits in traits_of(k))


def names(traits: Trait = NONE, results: tuple[int | None, ...] = (1, 2, 3, None)) -> frozenset[str]:
    """Return the short names that spell records with these traits and one of these numbers of results.

    >>> sorted(names(results=(None,)))
    ['chunk', 'split', 'split_with_sizes', 'unbind']
    """
    return frozenset(name for op in OPS if traits in op.traits and op.results in results for name in op.names)
