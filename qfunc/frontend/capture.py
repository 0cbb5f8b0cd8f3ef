"""capture: convert a model into one functional graph of canonical ops."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from qfunc._collection import paused_collection
from qfunc._transform import Transform
from qfunc.errors import CaptureError
from qfunc.frontend.export.program import from_program, from_program_module, is_module_of_a_program, program_of
from qfunc.frontend.functionalize import functionalize
from qfunc.frontend.fx.module_forwards import root_of
from qfunc.frontend.fx.tracer import Tracer, tracing_error
from qfunc.frontend.mode_dependence import norms_as_modules, prepare, take_modes, train
from qfunc.frontend.options import (
    Leaves,
    bind,
    custom_tracer,
    leaf_classes,
    require_arguments,
    require_inputs,
    require_leaves,
    require_mapping,
    with_forward_bound,
)
from qfunc.frontend.parametrizations import remove_parametrizations
from qfunc.frontend.refusals.already_quantized import require_float_model, require_float_ops
from qfunc.frontend.refusals.assigned_buffers import buffers_of, require_same_buffers
from qfunc.frontend.refusals.reserved_names import members_of, require_free_names
from qfunc.frontend.sizes_of_results import read_sizes_of_results
from qfunc.frontend.source_location import module_call, qualified_name, source_line
from qfunc.graph.arguments import store_fixed_arguments
from qfunc.graph.copying import own_copy, sharing_parameters
from qfunc.graph.hooks import require_no_hooks
from qfunc.graph.module import copy_module
from qfunc.graph.record import record_of, within_module
from qfunc.graph.stages import unwrap, unwrap_inside
from qfunc.graph.user_attributes import copy_user_attributes
from qfunc.ops.canonicalize import DROPOUTS, canonical
from qfunc.ops.sizes import short_name

_LOCK = threading.RLock()  # tracing patches globals of torch


def capture(
    example_inputs: tuple[Any, ...] | None = None,
    *,
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
) -> Callable[[nn.Module | torch.export.ExportedProgram], fx.GraphModule]:
    """Return a transform that converts a model into a functional `fx.GraphModule` of canonical ops.

    Without `example_inputs` the model is traced symbolically by torch.fx.  With them, or given an
    `ExportedProgram` or its `.module()`, it is captured by `torch.export`, which also supports control flow on
    shapes and inputs of any structure.  The result owns copies of the tensors, computes the same function as the
    model, and names its nodes by the model's module paths.  The model itself is not changed.  With torch.fx,
    arguments that default to None, a bool or a string keep the default.

    The result keeps the attributes, methods and properties of the model and of its submodules
    (`captured.config`, `captured.backbone.width`).  Attributes are deep copies.  Methods are bound to the
    result; a method that calls a float submodule raises a CaptureError that names both.  Methods that `nn.Module` or
    `fx.GraphModule` define (`train`, `code`) are not replaced; a submodule or tensor with such a name is refused.
    Special methods (`__len__`) are not kept.  A submodule without tensors that the forward does not use (a loss) is
    kept unchanged.
    Pickles omit whatever pickle refuses: attributes such as lambdas, methods of local classes.

    Dropout and BatchNorm stay modules, because they compute differently in training and in evaluation.  So do
    user-defined modules that return their input in evaluation (stochastic depth), and the norms inside subclasses
    of BatchNorm; the other ops in the forward of such a subclass are traced.

    Args:
        example_inputs: The positional inputs of one call, any batch size; None to trace with torch.fx.
        leaves: Classes of modules that stay one op each, or their names, with or without the package.  They
            compute in float; selectors match their class (`edit.module("MyBlock")`).  For torch.fx only.
        concrete_args: Values for arguments of `forward`, by name; these arguments are no longer inputs.
        tracer: A custom `torch.fx.Tracer`, as a class or an instance.  For torch.fx only.  Modules of torch.nn
            are leaves as without it; its `is_leaf_module` decides for `nn.Sequential` and all others.
    Raises:
        CaptureError: control flow on values, a write through a view, a leaf that hides weights; the
            message gives the file and line of the model's code and an alternative that works.  Also a leaf
            that is not the class of any submodule, an argument that forward does not have, or a model that another
            tool has quantized or prepared.

    >>> graph = capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))).graph
    >>> [n.name for n in graph.nodes]
    ['input_1', '_0_weight', '_0_bias', '_0', '_1', 'output']
    >>> [n.name for n in capture(leaves="Conv2d")(nn.Sequential(nn.Conv2d(3, 4, 3))).graph.nodes]
    ['input_1', '_0', 'output']
    """
    if example_inputs is not None and (leaves or tracer is not None):
        given = "leaves" if leaves else "a tracer"
        raise CaptureError(
            where="capture",
            found=f"{given} together with example_inputs",
            wanted="one of the two: torch.export inlines every module",
            do="Leave out example_inputs, or leave ops in float by edit.skip(edit.module(...)).",
        )
    require_inputs(example_inputs, "capture")
    leaves = require_leaves(leaves)
    concrete = require_mapping(concrete_args)

    @paused_collection()
    def transform(model: nn.Module | torch.export.ExportedProgram) -> fx.GraphModule:
        if isinstance(model, torch.export.ExportedProgram):
            require_float_ops(model.graph)
            return from_program(model)
        if isinstance(model, fx.GraphModule) and record_of(model) is not None:
            return copy.deepcopy(model)
        model = unwrap(model)
        require_float_model(model)
        if is_module_of_a_program(model):
            exported: Any = model
            specs = [s for s in map(vars(model).get, ("_in_spec", "_out_spec")) if s is not None]
            owned: Any = own_copy(model, {id(s): s for s in specs} | {id(exported.graph): copy_module(exported.graph)})
            return from_program_module(owned)
        require_arguments(concrete, model)
        with _LOCK:
            owned, shell_source = own_copy(model), model
            if any(
                [unwrap_inside(owned), remove_parametrizations(owned)]
            ):  # attributes are then copied from a model without parametrizations
                unwrap_inside(shell_source := own_copy(model))
                remove_parametrizations(shell_source)
            if example_inputs is not None:
                program, batch = program_of(with_forward_bound(owned, concrete), example_inputs)
                require_float_ops(program.graph)
                opened = store_fixed_arguments(from_program(program, modes_of=model), model, concrete, example_inputs, batch)
                return copy_user_attributes(opened, shell_source, module_call(program.graph))
            require_free_names(members_of(owned))
            require_no_hooks(owned)
            kinds = leaf_classes(leaves, owned)
            prepare(owned, kinds)
            root_class = qualified_name(type(owned))  # without the class that a parametrization generates

            def trace(root: nn.Module) -> fx.Graph:
                default = Tracer(kinds)
                chosen = default if tracer is None else custom_tracer(tracer, default.is_leaf_module)
                return _trace(root, bind(chosen, concrete))

            evaluated, dropouts = _traced(owned, trace, shell_source)
            require_float_ops(evaluated)
            captured = within_module(read_sizes_of_results(functionalize(owned, evaluated, dropouts)), (root_class,))
            return copy_user_attributes(
                store_fixed_arguments(captured, model, concrete, None), shell_source, module_call(evaluated)
            )

    return Transform(
        capture,
        {"example_inputs": example_inputs, "leaves": leaves, "concrete_args": concrete_args, "tracer": tracer},
        transform,
    )


def _traced(owned: nn.Module, trace: Callable[[nn.Module], fx.Graph], model: nn.Module) -> tuple[fx.Graph, set[str]]:
    # Trace both modes: any difference depends on `self.training`, and only dropout may differ.
    trained, buffers = trace(train(sharing_parameters(owned))), buffers_of(owned)
    evaluated = trace(owned.eval())
    require_same_buffers(owned, buffers)
    take_modes(owned, model)
    dropouts = _dropouts(evaluated, trained)
    norms_as_modules(evaluated, owned)
    return evaluated, dropouts


def _trace(model: nn.Module, tracer: fx.Tracer) -> fx.Graph:
    try:
        return tracer.trace(root_of(model))
    except CaptureError:
        raise
    except Exception as e:
        raise tracing_error(e, model) from e


def _dropout_arguments(evaluated: fx.Node, trained: fx.Node) -> tuple[Any, ...] | None:
    # Return the arguments of an attention with dropout in training only, or None if the two calls differ in more.
    if {short_name(n.op, n.target) for n in (evaluated, trained)} != {"scaled_dot_product_attention"}:
        return None
    calls = canonical(evaluated), canonical(trained)
    if calls[0] is None or calls[1] is None:
        return None
    kept, p = (*calls[0][1][:_P], *calls[0][1][_P + 1 :]), calls[1][1][_P]
    same = str(kept) == str((*calls[1][1][:_P], *calls[1][1][_P + 1 :]))
    return (*kept[:_P], p, *kept[_P:]) if same and calls[0][1][_P] == 0 and isinstance(p, float) else None


_P = 4
"""The position of dropout_p among the arguments of scaled_dot_product_attention."""


def _dropouts(evaluated: fx.Graph, trained: fx.Graph) -> set[str]:
    # Return the names of the dropout calls that are active in training only; refuse any other difference.
    a, b = list(evaluated.nodes), list(trained.nodes)
    found = set()
    for x, y in zip(a, b, strict=False):
        if (x.op, x.target, str(x.args), str(x.kwargs)) == (y.op, y.target, str(y.args), str(y.kwargs)):
            continue
        if x.target == y.target and short_name(x.op, x.target) in DROPOUTS:
            found.add(x.name)
            continue
        if (dropping := _dropout_arguments(x, y)) is not None:
            x.args, x.kwargs = dropping, {}
            found.add(x.name)
            continue
        raise CaptureError(
            where=source_line(x) or f"node {x.name!r}",
            found=f"{x.format_node()} in eval mode but {y.format_node()} in train mode",
            wanted="a graph that differs by dropout alone",
            do="Move what depends on self.training out of the model, replace it by nn.Dropout, or give example_inputs=(...,), "
            "for a model that is evaluated only.",
        )
    if len(a) != len(b):
        raise CaptureError(
            where="capture",
            found=f"{len(a)} nodes in eval mode but {len(b)} in train mode",
            wanted="one graph for both",
            do="Move what depends on self.training out of the model.",
        )
    return found
