"""Rewrites that undo `run_decompositions`: core ATen ops become the one op that they were decomposed from.

The rewrites of activation functions are here, these of linear ops in recompose_linear.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from qfunc.errors import CaptureError
from qfunc.frontend.export.aten import ATEN, aten, shape
from qfunc.frontend.export.recompose_linear import ATTENTION, BIASES, PRODUCTS, UNFLATTENED, WEIGHTS
from qfunc.frontend.source_location import source_line
from qfunc.graph.matcher import Call, Rewrite, apply_rewrites, calls
from qfunc.graph.patterns import Condition, Match, Through, Var, number, op, tensor

_OPS: Any = torch.ops.aten
_TRAINING = ("_native_batch_norm_legit_functional", "native_dropout")
_X = tensor("x")
_SIX = op("clamp", op("clamp", op("add", _X, 3), 0, None), None, 6)
_POSITIVE = op("gt", _X, 0)
_BETA, _THRESHOLD = number("beta", lambda v: isinstance(v, float)), Var("threshold")
_SCALED = op("mul", _X, _BETA, name="scaled")
_SLOPE = Through(("view", "reshape"), tensor("slope", lambda n: n.op == "get_attr", "a parameter"))


def _close(name: str, value: float) -> Var:
    return number(name, lambda v: math.isclose(v, value, rel_tol=1e-6), str(value))


def _no_halves(found: Match) -> str:
    source, dim = found["source"], found["dim"]
    size = (shape(source) or {dim: ""})[dim]
    halves = str(found["half"]) == str(found["start"]) and str(found["end"]) == size
    return "" if halves else "the slices are not the two halves of the axis"


def _one(name: str, pattern: Any, *operands: Any, **options: Any) -> Rewrite:
    target = getattr(_OPS, name).default
    return Rewrite(name, pattern, calls(target, *(operands or ("x",))), private=False, **options)


_CURVES = (
    _one("hardsigmoid", op("div", _SIX, 6)),
    _one("hardswish", op("div", op("mul", _X, _SIX, commutative=True), 6)),
    _one("silu", op("mul", _X, op("sigmoid", _X), commutative=True)),
    _one("mish", op("mul", _X, op("tanh", op("softplus", _X, 1, 20)), commutative=True)),
    _one("glu", op("mul", op("slice", tensor("source"), Var("dim"), 0, Var("half")),
                   op("sigmoid", op("slice", tensor("source"), Var("dim"), Var("start"), Var("end"))), commutative=True),
         "source", "dim", check=_no_halves),
    _one("prelu", op("where", _POSITIVE, _X, op("mul", _SLOPE, _X)), "x", "slope"),
    _one("celu", op("where", _POSITIVE, _X, op("mul", op("expm1", op("div", _X, Var("alpha"))), Var("alpha"))), "x", "alpha"),
    _one("celu", op("where", _POSITIVE, _X, op("expm1", _X)), "x", 1.0),
    # log1p(exp(z)) / beta, with z = beta x, and x above the threshold
    _one("softplus", op("where", op("gt", _X, _THRESHOLD), _X, op("log1p", op("exp", _X))), "x", 1.0, "threshold"),
    _one("softplus", op("where", op("gt", _SCALED, _THRESHOLD), _X, op("div", op("log1p", op("exp", _SCALED)), _BETA)),
         "x", "beta", "threshold"),
    _one("selu", op("elu", _X, _close("alpha", 1.6732632423543772), _close("scale", 1.0507009873554805))),
    # min(0, x) - log1p(exp(-|x|))
    _one("log_sigmoid", op("sub", op("minimum", op("full", [], 0), _X), op("log1p", op("exp", op("neg", op("abs", _X)))))),
)  # fmt: skip


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
    for stage in (_SINGLE, WEIGHTS, UNFLATTENED, PRODUCTS, BIASES, ATTENTION, _CURVES):
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
