"""The networks that `check_target` draws without `models`: of kinds of ops that the target takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from torch import nn

from qfunc.errors import SpecError
from qfunc.frontend.capture import capture
from qfunc.frontend.options import present_arguments
from qfunc.graph.selectors import kinds_of
from qfunc.placement.legality.constraints import violations
from qfunc.specs import AllOf, AnyOf, Op, Target
from qfunc.specs.selectors import Selector
from qfunc.testing.one_op import KINDS, network_of, networks_of
from qfunc.testing.small_models import Block, SmallNet
from qfunc.testing.strategies import ACTS, BLOCKS, TAILS, chains, small_models
from qfunc.transforms.batch_norm import FoldBatchNorm
from qfunc.transforms.insert_quantizers import placements

_ACTS = (("relu", "relu"), ("relu6", "clip"))


def default_networks(target: Target) -> st.SearchStrategy[Any]:
    """Return a strategy of (network, input) pairs of ops that a target takes: quantizes, or at least does not refuse.

    It is `small_models()` if the target takes all kinds of its ops. Else it draws networks of the kinds that the target takes,
    among them networks of one op that the target quantizes. Networks that the target refuses for other reasons are not drawn.

    Raises:
        SpecError: the target quantizes no op of these networks.

    >>> from qfunc import targets
    >>> str(default_networks(targets.onnxruntime)).partition(".")[0]
    'small_models()'
    """
    blocks = tuple(kind for kind in BLOCKS if not _refuses(target, SmallNet((_block(kind),))))
    acts = tuple(act for act in ACTS if not _refuses(target, SmallNet((Block("conv", 3, 4, act=act),))))
    tails = tuple(tail for tail in TAILS if not _refuses(target, SmallNet((Block(tail), Block("linear", 3, 5)))))
    whole = SmallNet((Block("conv", 3, 4), Block("adaptive"), Block("linear", 4, 5)))
    if (blocks, acts, tails) == (BLOCKS, ACTS, TAILS) and takes(target, whole):
        return small_models().filter(lambda model: takes(target, model[0]))
    fused = fused_acts(target)
    drawn = [networks_of(kind=kind, acts=fused) for kind in KINDS if takes(target, network_of(kind))]
    if "conv" in blocks and takes(target, SmallNet((Block("conv", 3, 4),))):
        drawn.insert(0, chains(blocks=blocks, acts=acts or (None,), tails=tails))
    if not drawn:
        do = "Give models= of its ops, (module, input) pairs. check_each_kind has no networks of its kinds either."
        wanted = "ops that the target quantizes and does not refuse"
        raise SpecError(
            where=f"check_target({target.name})", found="no such ops in the networks that it draws", wanted=wanted, do=do
        )
    return st.one_of(drawn).filter(lambda model: takes(target, model[0]))


def takes(target: Target, net: nn.Module) -> bool:
    """Return True if a target refuses no op of a network and quantizes a tensor of it.

    >>> from qfunc import targets
    >>> takes(targets.onnxruntime, nn.Conv2d(3, 4, 1)), takes(targets.onnxruntime, nn.Softplus())
    (True, False)
    """
    plan = _plan(target, net)
    return plan is None or (len(plan.placed) > 0 and all(v.slot for v in violations(plan, target)))


def fused_acts(target: Target) -> tuple[str | None, ...]:
    """Return the activations of `networks_of` that a target fuses, after None.

    >>> from qfunc import targets
    >>> fused_acts(targets.onnxruntime)
    (None, 'relu', 'relu6')
    """
    fused = {kind for fusion in target.fusions for step in fusion.then for kind in kinds_named(step.op)}
    return (None, *(act for act, kind in _ACTS if kind in fused))


def kinds_named(selector: Selector) -> Iterator[str]:
    """Yield the kinds of ops that a selector names.

    >>> list(kinds_named(Op(("conv", "linear")) & Op("add")))
    ['conv', 'linear', 'add']
    """
    match selector:
        case Op():
            yield from kinds_of(selector)
        case AllOf(of) | AnyOf(of):
            for part in of:
                yield from kinds_named(part)


def _refuses(target: Target, net: nn.Module) -> bool:
    plan = _plan(target, net)
    return plan is not None and any(not v.slot for v in violations(plan, target))


def _plan(target: Target, net: nn.Module) -> Any:
    # The plan of a network; None if the rules contradict each other, which a law finds.
    own = tuple(spelling for op in target.ops for spelling in op.spellings)
    try:
        return placements({"": capture(leaves=present_arguments(own, net))(net)}, target, FoldBatchNorm())[""].plan
    except SpecError:
        return None


def _block(kind: str) -> Block:
    # A small block of a kind, of three channels.
    match kind:
        case "max_pool" | "avg_pool":
            return Block(kind, kernel=3)
        case "depthwise":
            return Block("conv", 3, 3, 3, groups=3)
        case "grouped":
            return Block("conv", 4, 4, 3, groups=2)
    return Block(kind, 3, 3, 3)
