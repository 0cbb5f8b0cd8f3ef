"""compose: chain several transforms into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen
from torch import nn

from qfunc.errors import QfuncError, SpecError, a_or_an


def _flat(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(s for step in steps for s in (step.steps if isinstance(step, Compose) else (step,)))


@frozen
class Compose:
    """The transforms of `steps`, first to last; an error gets a note with the number of its step."""

    steps: tuple[Callable[[Any], Any], ...] = field(converter=_flat)

    def __call__(self, model: Any) -> Any:
        """Return the model after all steps."""
        for index, step in enumerate(self.steps):
            try:
                model = step(model)
            except QfuncError as e:
                e.add_note(f"in step {index + 1} of {len(self.steps)} of qfunc.compose")
                raise
        return model


def compose(*transforms: Callable[[Any], Any]) -> Compose:
    """Return one transform that applies the given ones in order; without transforms it is the identity.

    Raises:
        SpecError: a step is not a function of a model.

    >>> compose(compose(str.strip, str.upper), str.title)(" a b ")
    'A B'
    """
    for index, step in enumerate(transforms, 1):
        if not callable(step) or isinstance(step, type | nn.Module):
            found = a_or_an(type(step)) if not isinstance(step, type) else step.__name__
            do = "Pass transforms, as qfunc.quantize(target) returns them."
            raise SpecError(where=f"compose, step {index}", found=found, wanted="a function of a model", do=do)
    return Compose(transforms)
