"""Modules of the user's own that compute otherwise in training, as dropout and BatchNorm do, made leaves that still do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.graph.channel_affine import batch_norm_arguments

__all__ = ["TrainingOnly", "norms_as_modules", "prepare", "take_modes", "train", "with_missing_members"]


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def prepare(model: nn.Module, leaves: frozenset[type[nn.Module]] = frozenset()) -> None:
    """Puts a `TrainingOnly` in the place of each submodule that in evaluation returns its input itself.

    So stochastic depth writes itself.  Such a module has no tensors and its forward reads `self.training`; what it does
    in evaluation is found by a call.  Modules of a class in `leaves` stay.

    >>> class Noise(nn.Module):
    ...     def forward(self, x):
    ...         return x + torch.randn_like(x) if self.training else x
    >>> model = nn.Sequential(nn.ReLU(), Noise())
    >>> prepare(model)
    >>> model[1]
    TrainingOnly(
      (inner): Noise()
    )
    """
    made: dict[nn.Module, TrainingOnly] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if path and module not in made and type(module) not in leaves and _returns_its_input(module):
            made[module] = TrainingOnly(module)
        if path and module in made:
            model.set_submodule(path, made[module])


def _returns_its_input(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    own = not type(module).__module__.startswith("torch.") and not isinstance(module, TrainingOnly)
    if not own or code is None or "training" not in code.co_names or [*module.children(), *module.state_dict()]:
        return False
    x, mode = torch.zeros(1), module.training
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            return module.eval()(x) is x
    except Exception:  # it takes something else than one tensor
        return False
    finally:
        module.train(mode)


def train(model: nn.Module) -> nn.Module:
    """The model in training, but for the norms that `norms_as_modules` makes leaves, which know both modes."""
    model.train()
    for module in model.modules():
        if _is_own_norm(module):
            module.training = False
    return model


def take_modes(model: nn.Module, original: nn.Module) -> None:
    """Sets the modes of a prepared model to those of the one that it was copied from, submodule by submodule."""
    for path, module in original.named_modules():
        twin = model.get_submodule(path)
        twin.training = module.training
        if isinstance(twin, TrainingOnly):
            twin.inner.training = module.training


def norms_as_modules(graph: fx.Graph, owner: nn.Module) -> None:
    """F.batch_norm in the forward of a subclass of torch's BatchNorm becomes a call of the plain class, with its tensors.

    What else the subclass does, an activation say, stays as it was traced.  In training the plain class computes with
    the statistics of the batch.
    """
    made: dict[str, nn.Module] = {}
    for node in [n for n in graph.nodes if n.op == "call_function"]:
        given = batch_norm_arguments(node) or {}
        mean = given.get("running_mean")
        if not isinstance(mean, fx.Node) or mean.op != "get_attr":
            continue
        path = str(mean.target).rpartition(".")[0]
        norm = owner.get_submodule(path)
        if path in made or (path and _is_own_norm(norm) and _all_of(path, given)):
            if path not in made:
                made[path] = _plain(norm)
                owner.set_submodule(path, made[path])
            with graph.inserting_before(node):
                call = graph.call_module(path, (given["input"],))
            call.meta = dict(node.meta)
            node.replace_all_uses_with(call)
            graph.erase_node(node)


def _is_own_norm(module: nn.Module) -> bool:
    return isinstance(module, _NORMS) and not type(module).__module__.startswith("torch.") and module.running_mean is not None


def _all_of(path: str, given: dict[str, Any]) -> bool:
    # The norm's own tensors, each in its place.
    tensors = ((name, given[name]) for name in ("weight", "bias", "running_mean", "running_var"))
    return given["training"] is False and all(
        v is None or (isinstance(v, fx.Node) and v.op == "get_attr" and v.target == f"{path}.{name}") for name, v in tensors
    )


def _plain(norm: Any) -> nn.Module:
    kind: Any = next(k for k in _NORMS if isinstance(norm, k))
    made: nn.Module = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, device=norm.running_mean.device)  # pyright: ignore[reportOptionalMemberAccess]
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        value = getattr(norm, name)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and name in made._parameters:
            delattr(made, name)  # a frozen norm's are buffers
            made.register_buffer(name, value)
        else:
            setattr(made, name, value)
    made.training = norm.training
    return with_missing_members(made, norm)


def with_missing_members(made: nn.Module, of: nn.Module) -> nn.Module:
    """The module with the submodules and tensors of another that it does not have by those names.

    >>> sorted(n for n, _ in with_missing_members(nn.Linear(1, 1, bias=False), nn.Linear(1, 1)).named_parameters())
    ['bias', 'weight']
    """
    for name, child in of.named_children():
        if name not in made._modules:
            made.add_module(name, child)
    for name, parameter in of._parameters.items():
        if made._parameters.get(name) is None:
            made.register_parameter(name, parameter)
    for name, buffer in of._buffers.items():
        if made._buffers.get(name) is None:
            made.register_buffer(name, buffer, persistent=name not in of._non_persistent_buffers_set)
    return made


class TrainingOnly(nn.Module):
    """A module of the user's own that in evaluation returns its input, as dropout does.

    >>> TrainingOnly(nn.Dropout(1.0)).eval()(3)
    3
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training

    def forward(self, input: Any) -> Any:
        """What the inner module makes of the input in training; in evaluation the input."""
        return self.inner(input) if self.training else input
