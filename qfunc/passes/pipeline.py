"""The passes that run before placement, in order."""

from __future__ import annotations

from torch import fx

from qfunc.passes.decompose_attention import open_attention
from qfunc.passes.decompose_products import open_products
from qfunc.passes.fold_constant_weights import fold_computed
from qfunc.passes.fuse_norms import name_norms
from qfunc.passes.match_epsilon_guards import name_guards
from qfunc.passes.match_masks import name_masks
from qfunc.specs import Target

__all__ = ["prepared"]


def prepared(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """The (own) network as placement wants it: products opened, norms, masks, guards named, computed weights constants."""
    named = name_norms(open_products(open_attention(network, target)))
    return name_guards(name_masks(fold_computed(named)))
