"""Convert user-defined modules that depend on the mode, as dropout and BatchNorm do, to leaf modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.graph.channel_affine import batch_norm_arguments

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def prepare(model: nn.Module, leaves: frozenset[type[nn.Module]] = frozenset()) -> None:
    """Wrap each submodule that returns its input in evaluation in a `TrainingOnly`.

    Stochastic depth is such a module.  It has no tensors and its forward reads `self.training`; a call shows that it
    returns its input in evaluation.  Modules of a class in `leaves` stay.

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
    wrappers: dict[nn.Module, TrainingOnly] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if path and module not in wrappers and type(module) not in leaves and _returns_input_in_evaluation(module):
            wrappers[module] = TrainingOnly(module)
        if path and module in wrappers:
            model.set_submodule(path, wrappers[module])


def _returns_input_in_evaluation(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    user_defined = not type(module).__module__.startswith("torch.") and not isinstance(module, TrainingOnly)
    if not user_defined or code is None or "training" not in code.co_names or [*module.children(), *module.state_dict()]:
        return False
    x, mode = torch.zeros(1), module.training
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            return module.eval()(x) is x
    except Exception:  # the module does not accept a single tensor
        return False
    finally:
        module.train(mode)


def train(model: nn.Module) -> nn.Module:
    """Set the model to training, except the norms that `norms_as_modules` converts to leaves, and return it."""
    model.train()
    for module in model.modules():
        if _is_norm_subclass(module):
            module.training = False
    return model


def take_modes(model: nn.Module, original: nn.Module) -> None:
    """Set the mode of each submodule of a prepared model to the mode of the same submodule of the original."""
    for path, module in original.named_modules():
        copied = model.get_submodule(path)
        copied.training = module.training
        if isinstance(copied, TrainingOnly):
            copied.inner.training = module.training


def norms_as_modules(graph: fx.Graph, owner: nn.Module) -> None:
    """Replace F.batch_norm in the forward of a subclass of torch's BatchNorm by a call of the plain class, with its tensors.

    The other ops of the subclass, such as an activation, stay as they were traced.  In training the plain class uses
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
        if path in made or (path and _is_norm_subclass(norm) and _reads_tensors_of(path, given)):
            if path not in made:
                made[path] = _plain_norm(norm)
                owner.set_submodule(path, made[path])
            with graph.inserting_before(node):
                call = graph.call_module(path, (given["input"],))
            call.meta = dict(node.meta)
            node.replace_all_uses_with(call)
            graph.erase_node(node)


def _is_norm_subclass(module: nn.Module) -> bool:
    return isinstance(module, _NORMS) and not type(module).__module__.startswith("torch.") and module.running_mean is not None


def _reads_tensors_of(path: str, given: dict[str, Any]) -> bool:
    # Return True if each tensor argument is the norm's own attribute of that name.
    tensors = ((name, given[name]) for name in ("weight", "bias", "running_mean", "running_var"))
    return given["training"] is False and all(
        v is None or (isinstance(v, fx.Node) and v.op == "get_attr" and v.target == f"{path}.{name}") for name, v in tensors
    )


def _plain_norm(norm: Any) -> nn.Module:
    kind: Any = next(k for k in _NORMS if isinstance(norm, k))
    norm_copy: nn.Module = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, device=norm.running_mean.device)  # pyright: ignore[reportOptionalMemberAccess]
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        value = getattr(norm, name)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and name in norm_copy._parameters:
            delattr(norm_copy, name)  # a frozen norm stores them as buffers
            norm_copy.register_buffer(name, value)
        else:
            setattr(norm_copy, name, value)
    norm_copy.training = norm.training
    return with_missing_members(norm_copy, norm)


def with_missing_members(made: nn.Module, of: nn.Module) -> nn.Module:
    """Add the submodules and tensors of another module for which this one has no value, and return this one.

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
    """Wrapper of a user-defined module that returns its input in evaluation, as dropout does.

    >>> TrainingOnly(nn.Dropout(1.0)).eval()(3)
    3
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training

    def forward(self, input: Any) -> Any:
        """Return the inner module's output in training, and the input in evaluation."""
        return self.inner(input) if self.training else input
