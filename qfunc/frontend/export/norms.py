"""Norms of an exported program: convert them back to modules, and detect the mode in which it was exported."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from qfunc.frontend.mode_dependence import with_missing_members
from qfunc.frontend.source_location import module_stack
from qfunc.graph.module import ensure_submodule

_NORMS: dict[str, dict[int, type[nn.Module]]] = {
    "batch_norm": {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d},
    "instance_norm": {2: nn.InstanceNorm1d, 3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d},
}
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
_DECOMPOSED = ("convolution", "native_layer_norm", "native_group_norm", "_native_batch_norm_legit", "native_dropout",
               "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional", "_softmax")  # fmt: skip
_SYNC = "torch.nn.modules.batchnorm.SyncBatchNorm"


def form_of(graph: fx.Graph, decomposed: bool, what: str) -> tuple[bool, str]:
    """Return (whether a program was exported in training mode, a description of what fixes it to evaluation, or "").

    >>> form_of(torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),)).graph, False, "a program")
    (False, '')
    >>> form_of(torch.export.export(nn.BatchNorm1d(2).eval(), (torch.ones(3, 2),)).graph, False, "a program")
    (False, 'a program in evaluation mode, with 1 norms and 0 dropouts')
    """
    norms = [n.args[5] for n in graph.nodes if _name(n) == "batch_norm"]
    dropouts = [n.args[2] for n in graph.nodes if _name(n).removesuffix("_") in _DROPOUTS]
    if any((*norms, *dropouts)):
        return True, ""
    if decomposed:
        return False, f"{what} after run_decompositions, which has one mode"
    counts = f"{len(norms)} norms and {len(dropouts)} dropouts"
    return False, f"{what} in evaluation mode, with {counts}" if norms or dropouts else ""


def is_decomposed(graph: fx.Graph) -> bool:
    """Return True if a graph has ops that `run_decompositions` creates; an exported module does not record this.

    >>> program = torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),))
    >>> is_decomposed(program.graph), is_decomposed(program.run_decompositions().graph)
    (False, True)
    """
    return any(_name(n) in _DECOMPOSED or (_name(n) in ("mm", "addmm") and _name(n.args[-1]) == "permute") for n in graph.nodes)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", "")).removesuffix(".default") if node.op == "call_function" else ""


def take_counters(graph: fx.Graph) -> set[str]:
    """Remove the batch counters of BatchNorms in training from the graph, and return the paths of these BatchNorms."""
    counted = set()
    for node in list(graph.nodes):
        counter = node.args[0] if _name(node) == "add_.Tensor" and not node.users else None
        if isinstance(counter, fx.Node) and counter.op == "get_attr" and str(counter.target).endswith("num_batches_tracked"):
            counted.add(str(counter.target).rpartition(".")[0])
            graph.erase_node(node)
    return counted


def take_dropouts(graph: fx.Graph) -> set[str]:
    """Return the names of the active dropouts of a program in training mode, and switch their `train` argument off."""
    nodes = [n for n in graph.nodes if _name(n).removesuffix("_") in _DROPOUTS and n.args[2]]
    for node in nodes:
        node.args = (*node.args[:2], False)
    return {n.name for n in nodes}


def norms_as_modules(owner: nn.Module, module: fx.GraphModule, counted: set[str], like: nn.Module | None) -> None:
    """Replace calls of batch_norm and instance_norm in the module's graph by modules with the same tensors.

    Args:
        owner: The module that holds the tensors; it gets the new modules, too.
        module: The module with the graph.
        counted: The paths of BatchNorms that were exported in training.
        like: The exported model, if it is known.
    """
    for node in list(module.graph.nodes):
        if _name(node) in _NORMS:
            _norm_module(owner, module, node, counted, like)


def _norm_module(owner: nn.Module, module: fx.GraphModule, node: fx.Node, counted: set[str], like: nn.Module | None) -> None:
    # aten.batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn); aten.instance_norm is similar.
    # A batch norm without running statistics stays an op.
    kinds, batch = _NORMS[_name(node)], _name(node) == "batch_norm"
    x, weight, bias, mean, var, from_batch, momentum, eps = node.args[:8]
    tensors = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
    attributes = {k: v for k, v in tensors.items() if isinstance(v, fx.Node)}
    if any(v.op != "get_attr" for v in attributes.values()) or (batch and mean is None):
        return
    path = str(next(iter(attributes.values())).target).rpartition(".")[0] if attributes else _free_path(node)
    if bool(from_batch) != (mean is None) and path not in counted:
        return
    rank = node.meta["val"].ndim if "val" in node.meta else 4
    values = {k: _tensor(owner, v) for k, v in attributes.items()}
    features = next(iter(values.values())).shape[0] if values else node.meta["val"].shape[1]
    stack = module_stack(node)
    kind: Any = nn.SyncBatchNorm if stack and stack[-1][2] == _SYNC else kinds[rank]
    norm: Any = kind(
        int(features),
        eps=eps,
        momentum=_momentum(like, path, momentum),
        affine=weight is not None or bias is not None,
        track_running_stats=mean is not None,
    )
    for name in tensors:
        value = values.get(name)
        if name in ("weight", "bias") and value is not None and not isinstance(value, nn.Parameter):
            delattr(norm, name)  # a frozen norm stores them as buffers
            norm.register_buffer(name, value)
        else:
            setattr(norm, name, value)
    counter = getattr(ensure_submodule(owner, path), "num_batches_tracked", None)
    if counter is not None:
        norm.num_batches_tracked = counter
    if path:
        with_missing_members(norm, ensure_submodule(owner, path))  # a subclass may contain its activation
        holder, _, last = path.rpartition(".")
        for root in (owner, module):
            ensure_submodule(root, holder).add_module(last, norm)
        with node.graph.inserting_before(node):
            call = node.graph.call_module(path, (x,))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        node.graph.erase_node(node)


def _momentum(like: nn.Module | None, path: str, exported: Any) -> Any:
    # In evaluation torch writes 0.0 for None, the average over all batches.
    try:
        return exported if like is None else getattr(like.get_submodule(path), "momentum", exported)
    except AttributeError:
        return exported


def _free_path(node: fx.Node) -> str:
    stack = module_stack(node)
    return stack[-1][1] if stack and stack[-1][1] and "norm" in stack[-1][2] else node.name


def _tensor(owner: nn.Module, node: fx.Node) -> torch.Tensor:
    path, _, name = str(node.target).rpartition(".")
    value: torch.Tensor = getattr(owner.get_submodule(path), name)
    return value
