"""A language model on the meta device: what comes before its layers, each of its layers, and all that is outside of them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from qfunc.errors import CaptureError, QfuncError, a_or_an, first_line
from qfunc.graph.copying import own_copy
from qfunc.streaming.forms import fill_slots, form_of
from qfunc.streaming.weights import Weights, fill


@frozen(eq=False)
class Call:
    """One batch: its tensors, those that enter the first layer, and for each layer its other inputs."""

    values: tuple[Tensor, ...]
    entering: Tensor
    others: tuple[tuple[Tensor, ...], ...]


class Network:
    """A model whose weights are read piece by piece; each piece has the names of the whole model.

    Args:
        model: On the meta device.
        layers: The path of the layers, each of which gets what the one before returns.
        weights: The checkpoint.
    Raises:
        CaptureError: there are no such layers, or a tensor of the model is not on the meta device.
    """

    def __init__(self, model: nn.Module, layers: str, weights: Weights) -> None:
        where = f"stream, {type(model).__name__}"
        if real := [name for name, p in model.named_parameters() if not p.is_meta]:
            do = 'Build it by: with torch.device("meta"): model = ...'
            raise CaptureError(where=where, found=f"{real[0]!r} in memory", wanted="a model on the meta device", do=do)
        found = dict(model.named_modules()).get(layers)
        if not isinstance(found, nn.ModuleList | nn.Sequential) or not len(found):
            lists = [path for path, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential) and path]
            do = f"Name them: layers={lists[0]!r}." if lists else "Deploy the model whole."
            raise CaptureError(where=where, found=f"no layers at {layers!r}", wanted="a ModuleList or Sequential", do=do)
        self.model, self.layers, self.weights, self.where = own_copy(model).eval(), layers, weights, where
        self.count, self.forward = len(found), inspect.signature(model.forward)
        _rebuild_buffers(self.model, where)
        self._before = self.model
        self.forms: list[Any] = []
        self.arguments: tuple[str, ...] = ()

    @torch.no_grad()
    def enter(self, batches: Sequence[Any]) -> list[Call]:
        """Return the calls of all batches: the model runs up to its first layer, on the weights that it needs for this.

        Raises:
            CaptureError: the model does not run, or a layer gets something else than tensors and numbers.
        """
        seen: list[Any] = []
        self._before = self._without_layers()
        container: Any = self._before.get_submodule(self.layers)
        for i in range(self.count):
            container[i] = _Recorder(seen, last=i == self.count - 1)
        names = _names(self._before)

        def read(module: nn.Module, inputs: Any) -> None:
            self.weights.load(module, names, recurse=False)

        hooks = [m.register_forward_pre_hook(read) for m in self._before.modules()]
        calls = [self._call(batch, seen) for batch in batches]
        for hook in hooks:
            hook.remove()
        return calls

    def _call(self, batch: Any, seen: list[Any]) -> Call:
        seen.clear()
        named = self._named(batch)
        try:
            self._before(**named)
        except _LastLayer:
            pass
        except QfuncError:
            raise
        except Exception as e:
            do = "Pass batches with the arguments of the model's forward."
            raise CaptureError(where=self.where, found=first_line(e), wanted="a model that runs", do=do) from e
        if len(seen) != self.count:
            do = "Name the layers that the model calls one after the other."
            found = f"calls of {len(seen)} of {self.count} layers"
            raise CaptureError(where=self.where, found=found, wanted="one call of each layer", do=do)
        tensors: list[list[Tensor]] = [[] for _ in seen]
        forms = [form_of(call, held, f"{self.where}, a layer's arguments") for call, held in zip(seen, tensors, strict=True)]
        arguments = tuple(named)
        if self.forms and (forms != self.forms or arguments != self.arguments):
            do = "Give all batches the same arguments."
            raise CaptureError(where=self.where, found="other arguments than in the first batch", wanted="the same", do=do)
        self.forms, self.arguments = forms, arguments
        # What a layer passes on is its first tensor.
        return Call(tuple(named.values()), tensors[0][0], tuple(tuple(held[1:]) for held in tensors))

    def _named(self, batch: Any) -> dict[str, Tensor]:
        args, kwargs = (
            ((), batch) if isinstance(batch, Mapping) else (batch if isinstance(batch, tuple | list) else (batch,), {})
        )
        try:
            named = dict(self.forward.bind(*args, **kwargs).arguments)
        except TypeError as e:
            do = "Pass tensors, tuples or dicts of the arguments of the model's forward."
            raise CaptureError(where=f"{self.where}, batch", found=first_line(e), wanted="its arguments", do=do) from e
        if other := next((name for name, value in named.items() if not isinstance(value, Tensor)), None):
            found = f"{a_or_an(type(named[other]))} for {other!r}"
            do = "Set what is no tensor in the model's config."
            raise CaptureError(where=f"{self.where}, batch", found=found, wanted="tensors", do=do)
        return named

    def layer(self, index: int) -> nn.Module:
        """Return the layer at an index, without weights, as a module (x, *others) -> x."""
        layer: nn.Module = copy.deepcopy(list(self.model.get_submodule(self.layers).children())[index])
        return _Layer(f"{self.layers}.{index}", layer, self.forms[index]).eval()

    def before(self) -> nn.Module:
        """Return what comes before the layers, with its weights after `enter`, once, as a module (x, *values) -> entering."""
        made, self._before = self._before, self.model
        fill(made, lambda t: torch.zeros((), dtype=torch.float32).expand(t.shape))
        return self._swapped(made, lambda entering, value: entering)

    def outside(self) -> nn.Module:
        """Return the model without layers and weights, as a module (x, *values) -> (entering, the model's value).

        `entering` enters the first layer; the value is that for x after the last layer.
        """
        return self._swapped(self._without_layers(), _both)

    def load(self, piece: nn.Module) -> nn.Module:
        """Return a piece, with its weights."""
        self.weights.load(piece, _names(piece))
        return piece

    def _without_layers(self) -> nn.Module:
        layers = self.model.get_submodule(self.layers).children()
        made: nn.Module = copy.deepcopy(self.model, {id(layer): nn.Identity() for layer in layers})
        return made

    def _swapped(self, made: nn.Module, result: Callable[[Tensor, Any], Any]) -> nn.Module:
        given, entering = list[Tensor](), list[Tensor]()
        container: Any = made.get_submodule(self.layers)
        for i in range(self.count):
            container[i] = _Pass() if i else _Swap(given, entering)
        compute, names = type(made).forward, self.arguments

        def forward(x: Tensor, *values: Tensor) -> Any:
            given[:] = [x]
            value = compute(made, **dict(zip(names, values, strict=True)))
            return result(entering.pop(), value)

        vars(made)["forward"] = forward
        return made


def _both(entering: Tensor, value: Any) -> Any:
    return {"entering": entering, **value} if isinstance(value, Mapping) else (entering, value)


def _names(module: nn.Module) -> dict[int, str]:
    # The first name of each tensor that a checkpoint has.
    return {id(t): name for name, t in reversed(module.state_dict(keep_vars=True).items())}


def _rebuild_buffers(model: nn.Module, where: str) -> None:
    # Buffers that no checkpoint has are computed by the modules of transformers from their config.
    known = model.state_dict(keep_vars=True).keys()
    for path, module in model.named_modules():
        lost = [n for n, b in module.named_buffers(path, recurse=False) if b.is_meta and n not in known]
        if not lost:
            continue
        config = getattr(module, "config", None)
        if config is None:
            do = "Compute it in the forward, or make it persistent."
            raise CaptureError(
                where=where, found=f"buffer {lost[0]!r} on the meta device", wanted="one in the checkpoint", do=do
            )
        made: Any = type(module)(config)
        module._buffers.update(made._buffers)


class _LastLayer(Exception):
    """All layers were called."""


class _Recorder(nn.Module):
    """Records its call, and returns its first tensor."""

    def __init__(self, seen: list[Any], last: bool) -> None:
        super().__init__()
        self.seen, self.last = seen, last

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the first tensor of a call."""
        self.seen.append((args, kwargs))
        if self.last:
            raise _LastLayer
        return _first(args, kwargs)


class _Pass(nn.Module):
    """Returns its first tensor."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the first tensor of a call."""
        return _first(args, kwargs)


class _Swap(nn.Module):
    """Keeps its first tensor, and returns another."""

    def __init__(self, given: list[Tensor], kept: list[Tensor]) -> None:
        super().__init__()
        self.given, self.kept = given, kept

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the tensor that is given."""
        self.kept.append(_first(args, kwargs))
        return self.given.pop()


def _first(args: Any, kwargs: Any) -> Tensor:
    found: Tensor = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
    return found


class _Layer(nn.Module):
    """A layer at its path in the model."""

    def __init__(self, path: str, layer: nn.Module, form: Any) -> None:
        super().__init__()
        *outer, last = path.split(".")
        inner: nn.Module = self
        for name in outer:
            inner.add_module(name, nn.Module())
            inner = inner.get_submodule(name)
        inner.add_module(last, layer)
        self.path, self.form = path, form

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Return what the layer passes on."""
        args, kwargs = fill_slots(self.form, (x, *others))
        value = self.get_submodule(self.path)(*args, **kwargs)
        first: Tensor = value if isinstance(value, Tensor) else value[0]
        return first
