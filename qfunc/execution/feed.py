"""Feed batches to a quantized model, or through an outer module to its quantized submodules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.errors import CalibrationError, QfuncError, a_or_an, first_line
from qfunc.execution.batches import Binder, as_list, warn_caller
from qfunc.execution.progress import track
from qfunc.graph.submodules import run_submodules

Observe = Callable[[tuple[Any, ...], int], Any]
"""(positional arguments of a quantized model, number of the batch) -> the model's value."""


def feed_all(model: nn.Module, observers: Mapping[str, Observe], batches: Iterable[Any], step: str, progress: bool) -> int:
    """Call an observer with the arguments of each quantized submodule, and return the number of batches.

    `observers` are functions by path; "" is the model itself.  Their results replace the outputs of the submodules, and
    the rest of an outer module runs in evaluation mode.

    Raises:
        CalibrationError: a wrong batch structure, or arguments that the model does not accept.
    """
    feed, count = feeder(model, observers, step), 0
    for count, batch in enumerate(track(batches, step, "batch", progress), 1):
        feed(batch, count)
    return count


def feeder(model: nn.Module, observers: Mapping[str, Observe], step: str) -> Callable[[Any, int], None]:
    """Return a function of one batch and its number that calls the observers as `feed_all` does."""
    if isinstance(model, fx.GraphModule) and "" in observers:
        bind = Binder(model)

        def feed(batch: Any, number: int) -> None:
            observers[""](bind(batch, step), number)

        return feed
    return _Outer(model, observers, step)


class _Outer:
    def __init__(self, model: nn.Module, observers: Mapping[str, Observe], step: str) -> None:
        self.step, self.number, self.warned = step, 0, False
        parts = {path: model.get_submodule(path) for path in observers}
        self.outer = run_submodules(model, {path: self._observed(path, part, observers[path]) for path, part in parts.items()})
        parameters = inspect.signature(self.outer.forward).parameters.values()
        self.names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = [p for p in parameters if p.name in self.names and p.default is p.empty]
        self.required, self.variadic = max(len(needed), 1), any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def _observed(self, path: str, part: nn.Module, observe: Observe) -> Callable[..., Any]:
        signature = inspect.signature(part.forward)

        def forward(*args: Any, **kwargs: Any) -> Any:
            try:
                arguments = positional(signature, args, kwargs)
            except TypeError as e:
                raise CalibrationError(
                    where=f"{self.step}, batch {self.number}, submodule {path!r}",
                    found=f"a call with wrong arguments: {e}",
                    wanted=f"{path}{signature}",
                    do="Call it as its forward is declared.",
                ) from e
            return observe(arguments, self.number)

        return forward

    def __call__(self, batch: Any, number: int) -> None:
        self.number = number
        args, kwargs = self._arguments(batch)
        try:
            with torch.no_grad():
                self.outer(*args, **kwargs)
        except QfuncError:
            raise
        except Exception as e:
            raise CalibrationError(
                where=f"{self.step}, batch {number}, {type(self.outer).__name__}.forward",
                found=first_line(e),
                wanted="inputs on which the model runs",
                do="Pass batches with the arguments of the model's forward.",
            ) from e

    def _arguments(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(batch, Tensor):
            batch = (batch,)
        if isinstance(batch, Mapping):
            if set(batch) <= self.named:
                return (), dict(batch)
            if self.required == 1:
                return (batch,), {}
            raise self._error(f"a dict with keys {as_list(batch)}")
        if not isinstance(batch, tuple | list):
            raise self._error(a_or_an(type(batch)))
        if len(batch) < self.required and not self.variadic:
            raise self._error(f"{len(batch)} input{'s' * (len(batch) != 1)}")
        if self.variadic or len(batch) == self.required:
            return tuple(batch), {}
        if not self.warned:
            self.warned = True
            found = f"batches of {len(batch)} elements for {self.required} required inputs"
            warn_caller(f"{self.step}: {found}; extra elements are ignored.")
        return tuple(batch[: self.required]), {}

    def _error(self, found: str) -> CalibrationError:
        wanted = f"a tensor, tuple or dict for the inputs {', '.join(self.names)} ({self.required} required)"
        do = "Pass batches with the arguments of the model's forward."
        return CalibrationError(where=f"{self.step}, batch", found=found, wanted=wanted, do=do)


def positional(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call as positional ones.

    >>> positional(inspect.signature(lambda x, gain=1.0, bias=0.0: x), (5,), {"bias": 2.0})
    (5, 1.0, 2.0)

    Raises:
        TypeError: the function does not take them.
    """
    bound = signature.bind(*args, **kwargs)
    if bound.kwargs:  # passed by name after arguments that were omitted
        bound.apply_defaults()
    return bound.args
