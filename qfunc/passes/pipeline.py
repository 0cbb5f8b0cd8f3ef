"""The passes that run before placement, in order."""

from __future__ import annotations

from attrs import frozen
from torch import fx

from qfunc.passes.decompose_attention import decompose_attention
from qfunc.passes.decompose_products import decompose_products
from qfunc.passes.fold_layer_sizes import fold_layer_sizes
from qfunc.passes.fold_positions import fold_positions
from qfunc.passes.fuse_activations import ACTIVATIONS, QUOTIENTS
from qfunc.passes.fuse_cached_attention import fuse_cached_attention
from qfunc.passes.fuse_channel_norms import CHANNEL_NORMS
from qfunc.passes.fuse_norms import NORMS
from qfunc.passes.gate_by_sigmoid import gate_by_sigmoid
from qfunc.passes.match_epsilon_guards import match_epsilon_guards
from qfunc.passes.match_masks import fuse_masked_softmax, match_masks
from qfunc.passes.merge_clamps import merge_clamps
from qfunc.passes.parameters.fold_constant_weights import fold_constant_weights
from qfunc.passes.parameters.insert_weight_formulas import WeightFormula
from qfunc.passes.parameters.transpose_weights import transpose_weights
from qfunc.passes.remove_neutral_arithmetic import remove_casts, remove_neutral_arithmetic
from qfunc.passes.rewrite import rewrite
from qfunc.specs import Target


@frozen(eq=False)
class Prepared:
    """A network after the passes, and the formulas of the weights that it computed from its parameters."""

    network: fx.GraphModule
    formulas: tuple[WeightFormula, ...]


def prepare(network: fx.GraphModule, target: Target) -> Prepared:
    """Apply the passes to a network, in place."""
    attending = fuse_cached_attention(remove_casts(fold_layer_sizes(fold_positions(network))), target)
    plain = remove_neutral_arithmetic(decompose_products(decompose_attention(attending, target)))
    named = merge_clamps(gate_by_sigmoid(rewrite(plain, *QUOTIENTS, *NORMS, *CHANNEL_NORMS, *ACTIVATIONS), target))
    formulas = fold_constant_weights(transpose_weights(named, target))
    return Prepared(fuse_masked_softmax(match_epsilon_guards(match_masks(named)), target), formulas)
