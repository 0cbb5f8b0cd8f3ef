"""The passes that run before placement, in order."""

from __future__ import annotations

from torch import fx

from qfunc.passes.decompose_attention import decompose_attention
from qfunc.passes.decompose_products import decompose_products
from qfunc.passes.fold_constant_weights import fold_constant_weights
from qfunc.passes.fuse_activations import ACTIVATIONS
from qfunc.passes.fuse_norms import NORMS
from qfunc.passes.fuse_quotients import QUOTIENTS
from qfunc.passes.match_epsilon_guards import match_epsilon_guards
from qfunc.passes.match_masks import match_masks
from qfunc.passes.rewrite import rewrite
from qfunc.specs import Target

__all__ = ["prepare"]


def prepare(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Apply the passes to a network, in place, and return it."""
    named = rewrite(decompose_products(decompose_attention(network, target)), *NORMS, *ACTIVATIONS, *QUOTIENTS)
    return match_epsilon_guards(match_masks(fold_constant_weights(named)))
