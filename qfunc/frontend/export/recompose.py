"""Programs after `run_decompositions`: several core ops are again the one op that they were made of."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from qfunc.errors import CaptureError
from qfunc.frontend.export.aten import Call, arg, args, aten, behind
from qfunc.frontend.export.recompose_activations import CURVES
from qfunc.frontend.export.recompose_linear import ATTENTION, BIASES, PRODUCTS, UNFLATTENED, WEIGHTS
from qfunc.frontend.source_location import source_line

_OPS: Any = torch.ops.aten
_TRAINING = ("_native_batch_norm_legit_functional", "native_dropout")


def recompose(graph: fx.Graph) -> None:
    """Rewrites the (own) graph of a decomposed program, so that it quantizes as the program before did.

    Convolutions, linear layers, products and attention, norms and curves; what it does not know stays as it is.

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
    for turn in (_SINGLE, WEIGHTS, UNFLATTENED, PRODUCTS, BIASES, ATTENTION, CURVES):
        _turn(graph, turn)


def _turn(graph: fx.Graph, rewrites: dict[str, Callable[[fx.Node], Any]]) -> None:
    stale = set[fx.Node]()
    for node in list(graph.nodes):
        rewrite = rewrites.get(_key(node))
        made = rewrite(node) if rewrite is not None else None
        if isinstance(made, Call):
            with graph.inserting_before(node):
                call = graph.call_function(made.target, made.args, made.kwargs)
            call.meta, made = dict(node.meta), call
        if made is not None:
            node.replace_all_uses_with(made)
            stale.add(node)
    for node in reversed(list(graph.nodes)):
        if node in stale and not node.users:
            stale.update(n for n in node.all_input_nodes if n.op == "call_function" and not aten(n).endswith("_"))
            graph.erase_node(node)


def _key(node: fx.Node) -> str:
    # The first result of an op that has several is named by that op, if nobody reads the others.
    if node.op != "call_function" or node.target is not operator.getitem:
        return aten(node)
    source = node.args[0]
    alone = isinstance(source, fx.Node) and all(u.target is operator.getitem and u.args[1] == 0 for u in source.users)
    return f"first of {aten(source)}" if alone else ""


def _convolution(node: fx.Node) -> Call:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args(node)
    rank = len(stride)
    if transposed:
        overload = getattr(getattr(_OPS, f"conv_transpose{rank}d"), "default" if rank == 1 else "input")
        return Call(overload, (x, weight, bias, stride, padding, output_padding, groups, dilation))
    return Call(getattr(_OPS, f"conv{rank}d").default, (x, weight, bias, stride, padding, dilation, groups))


def _batch_norm(node: fx.Node) -> Call:
    # (x, weight, bias, mean, var, momentum, eps)
    *tensors, momentum, eps = args(node.args[0])
    return Call(_OPS.batch_norm.default, (*tensors, False, momentum, eps, False))


def _batch_norm_of_either_mode(node: fx.Node) -> Call | None:
    given = args(node.args[0])
    return None if given[5] else Call(_OPS.batch_norm.default, (*given, False))


def _norm_of_the_batch(node: fx.Node) -> Call | None:
    # (x, weight, bias, training, momentum, eps), without statistics
    given = args(node.args[0])
    return Call(_OPS.batch_norm.default, (*given[:3], None, None, *given[3:], False)) if len(given) == 6 else None


def _layer_norm(node: fx.Node) -> Call:
    return Call(_OPS.layer_norm.default, args(node.args[0]))


def _group_norm(node: fx.Node) -> Call:
    x, weight, bias, _, _, _, groups, eps = args(node.args[0])
    return Call(_OPS.group_norm.default, (x, groups, weight, bias, eps))


def _soft(overload: Any) -> Callable[[fx.Node], Call | None]:
    return lambda node: None if node.args[2] else Call(overload, node.args[:2])


def _pool(overload: Any) -> Callable[[fx.Node], Call]:
    return lambda node: Call(overload, args(node.args[0]))


def _same(overload: Any) -> Callable[[fx.Node], Call]:
    return lambda node: Call(overload, node.args)


def _pad(node: fx.Node) -> Call:
    return Call(_OPS.pad.default, (node.args[0], node.args[1], "constant", arg(node, 2, 0.0)))


def _squeeze(node: fx.Node) -> Call | None:
    dims = arg(node, 1)
    return Call(_OPS.squeeze.dim, (node.args[0], *dims)) if isinstance(dims, list | tuple) and len(dims) == 1 else None


def _where(node: fx.Node) -> Call | None:
    # A number that was made a tensor is a number.
    if len(node.args) != 3:
        return None
    condition, a, b = args(node)
    numbers = [aten(v) == "scalar_tensor" for v in (a, b)]
    if numbers == [True, False]:
        return Call(_OPS.where.ScalarSelf, (condition, a.args[0], b))
    if numbers == [False, True]:
        return Call(_OPS.where.ScalarOther, (condition, a, b.args[0]))
    return None


def _permute(node: fx.Node) -> Any:
    # Two permutations that cancel, as those around torch's layout of attention.
    source = behind(node.args[0], "clone")
    if aten(source) != "permute":
        return None
    first, second = source.args[1], args(node)[1]
    dims = [first[d] % len(second) for d in second]
    return source.args[0] if dims == sorted(dims) else None


_SINGLE: dict[str, Callable[[fx.Node], Any]] = {
    "convolution": _convolution,
    "first of _native_batch_norm_legit_no_training": _batch_norm,
    "first of native_batch_norm": _batch_norm_of_either_mode,
    "first of _native_batch_norm_legit": _norm_of_the_batch,
    "first of native_layer_norm": _layer_norm,
    "first of native_group_norm": _group_norm,
    "first of max_pool2d_with_indices": _pool(_OPS.max_pool2d.default),
    "first of max_pool3d_with_indices": _pool(_OPS.max_pool3d.default),
    "_adaptive_avg_pool2d": _same(_OPS.adaptive_avg_pool2d.default),
    "_adaptive_avg_pool3d": _same(_OPS.adaptive_avg_pool3d.default),
    "_softmax": _soft(_OPS.softmax.int),
    "_log_softmax": _soft(_OPS.log_softmax.int),
    "_unsafe_view": _same(_OPS.view.default),
    "constant_pad_nd": _pad,
    "squeeze": _squeeze,
    "where": _where,
    "permute": _permute,
}

__all__ = ["recompose"]
