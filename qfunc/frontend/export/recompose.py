"""Rewrites that undo `run_decompositions`: core ATen ops become the one op that they were decomposed from."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qfunc.errors import CaptureError
from qfunc.frontend.export.aten import ATEN, aten
from qfunc.frontend.export.recompose_activations import CURVES
from qfunc.frontend.export.recompose_linear import ATTENTION, BIASES, PRODUCTS, UNFLATTENED, WEIGHTS
from qfunc.frontend.source_location import source_line
from qfunc.graph.matcher import Call, Rewrite, apply_rewrites, calls
from qfunc.graph.patterns import Condition, Match, Through, Var, op, tensor

_OPS: Any = torch.ops.aten
_TRAINING = ("_native_batch_norm_legit_functional", "native_dropout")


def recompose(graph: fx.Graph) -> None:
    """Rewrite the graph of a decomposed program in place, so that it quantizes like the program before.

    This covers convolutions, linear layers, matrix products, attention, norms and activations.  Other ops stay.

    >>> program = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 4, 2),)).run_decompositions()
    >>> module = program.module(check_guards=False)
    >>> recompose(module.graph)
    >>> [aten(n) for n in module.graph.nodes if n.op == "call_function"]
    ['linear']

    Raises:
        CaptureError: norms or dropouts of training mode.
    """
    for node in graph.nodes:
        if aten(node) in _TRAINING:
            raise CaptureError(
                where=source_line(node) or f"node {node.name!r}",
                found=f"aten.{aten(node)}, which run_decompositions makes of a norm or dropout in training mode",
                wanted="a program that was not decomposed, or one of evaluation mode",
                do="Give the program before run_decompositions; or export model.eval().",
            )
    for stage in (_SINGLE, WEIGHTS, UNFLATTENED, PRODUCTS, BIASES, ATTENTION, CURVES):
        _apply(graph, stage)


def _apply(graph: fx.Graph, stage: tuple[Rewrite, ...]) -> None:
    stale = set[fx.Node]()

    def put(node: fx.Node, made: Any) -> None:
        if isinstance(made, Call):
            with graph.inserting_before(node):
                call = graph.call_function(made.target, made.args, made.kwargs)
            call.meta, made = dict(node.meta), call
        node.replace_all_uses_with(made)
        stale.add(node)

    apply_rewrites(graph, stage, reader=ATEN, put=put)
    for node in reversed(list(graph.nodes)):
        if node in stale and not node.users:
            stale.update(n for n in node.all_input_nodes if n.op == "call_function" and not aten(n).endswith("_"))
            graph.erase_node(node)


def _renamed(kind: str, target: Any, *operands: Any, where: Condition | None = None, **conditions: Any) -> Rewrite:
    # The same op by another name; `operands` gives another order of the operands.
    def replace(found: Match) -> Call:
        node: Any = found.root.args[0] if kind.startswith("first of") else found.root
        given = ATEN.operands(node)
        return Call(target, tuple(given.get(v, v) for v in operands) or tuple(node.args))

    return Rewrite(kind, op(kind, where=where, **conditions), replace, private=False)


def _convolution(found: Match) -> Call:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = found.root.args
    rank = len(stride)  # type: ignore[arg-type]
    if transposed:
        overload = getattr(getattr(_OPS, f"conv_transpose{rank}d"), "default" if rank == 1 else "input")
        return Call(overload, (x, weight, bias, stride, padding, output_padding, groups, dilation))
    return Call(getattr(_OPS, f"conv{rank}d").default, (x, weight, bias, stride, padding, dilation, groups))


def _do_not_cancel(found: Match) -> str:
    first, second = found["first"], found["second"]
    dims = [first[d] % len(second) for d in second]
    return "" if dims == sorted(dims) else "the permutations do not cancel"


_NORM = ("input", "weight", "bias", "running_mean", "running_var", False, "momentum", "eps", False)
_BATCH = ("input", "weight", "bias", None, None, "training", "momentum", "eps", False)
_NUMBER = op("scalar_tensor", Var("number"))
_NO_NUMBER = tensor("tensor", lambda n: aten(n) != "scalar_tensor")
_TURNED = op("permute", Through(("clone",), op("permute", tensor("x"), Var("first"))), Var("second"))
_SINGLE = (
    Rewrite("convolution", op("convolution"), _convolution, private=False),
    _renamed("first of _native_batch_norm_legit_no_training", _OPS.batch_norm.default, *_NORM),
    _renamed("first of native_batch_norm", _OPS.batch_norm.default, *_NORM, training=False),
    # The overload without statistics has six parameters.
    _renamed("first of _native_batch_norm_legit", _OPS.batch_norm.default, *_BATCH, where=lambda n: len(ATEN.operands(n)) == 6),
    _renamed("first of native_layer_norm", _OPS.layer_norm.default),
    _renamed("first of native_group_norm", _OPS.group_norm.default, "input", "group", "weight", "bias", "eps"),
    _renamed("first of max_pool2d_with_indices", _OPS.max_pool2d.default),
    _renamed("first of max_pool3d_with_indices", _OPS.max_pool3d.default),
    _renamed("_adaptive_avg_pool2d", _OPS.adaptive_avg_pool2d.default),
    _renamed("_adaptive_avg_pool3d", _OPS.adaptive_avg_pool3d.default),
    _renamed("_softmax", _OPS.softmax.int, "self", "dim", half_to_float=False),
    _renamed("_log_softmax", _OPS.log_softmax.int, "self", "dim", half_to_float=False),
    _renamed("_unsafe_view", _OPS.view.default),
    _renamed("constant_pad_nd", _OPS.pad.default, "self", "pad", "constant", "value"),
    Rewrite("squeeze", op("squeeze", tensor("x"), Var("dims", lambda v: isinstance(v, list | tuple) and len(v) == 1)),
            lambda found: Call(_OPS.squeeze.dim, (found["x"], *found["dims"])), private=False),
    # A scalar tensor is a number.
    Rewrite("where", op("where", tensor("condition"), _NUMBER, _NO_NUMBER),
            calls(_OPS.where.ScalarSelf, "condition", "number", "tensor"), private=False),
    Rewrite("where", op("where", tensor("condition"), _NO_NUMBER, _NUMBER),
            calls(_OPS.where.ScalarOther, "condition", "tensor", "number"), private=False),
    # Two permutations that cancel, such as those around the layout of torch's attention.
    Rewrite("permute", _TURNED, lambda found: found["x"], check=_do_not_cancel, private=False),
)  # fmt: skip

__all__ = ["recompose"]
