"""Batches that have labels for a metric beside the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from attrs import frozen
from torch import fx

from qfunc.execution.batches import Binder
from qfunc.graph.record import record_of

CLOSE = 0.8
"""A key this similar to an argument that a batch lacks is taken for a misspelt argument, not for a label (`difflib`)."""


def without_labels(network: fx.GraphModule) -> Callable[[Any], Any]:
    """Return a function from a batch to the part of it that a network reads.

    A tuple loses the elements behind the inputs, and a dict the keys that are no arguments.  A dict without a required
    argument, or with a key that is nearly the name of an argument which it lacks, stays as it is, so that the network's
    `Binder` refuses it.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> inputs = without_labels(capture()(torch.nn.ReLU()))
    >>> inputs({"input": 1, "labels": 2}), inputs({"inputs": 1, "labels": 2}), inputs((1, 2))
    ({'input': 1}, {'inputs': 1, 'labels': 2}, (1,))
    """
    binder, record = Binder(network), record_of(network)
    required = {name for name in binder.names[: binder.required] if name not in binder.fixed}
    names = {*binder.names, *(a.name for a in (record.arguments if record is not None else ()))}

    def inputs(batch: Any) -> Any:
        if isinstance(batch, tuple | list):
            return batch[: binder.required]
        if not isinstance(batch, Mapping):
            return batch
        known, needed = names, required
        if binder.takes_dict and binder.names[0] not in batch:
            if binder.spec is None:  # a traced network reads the keys that it needs
                return batch
            known = needed = set(binder.spec[0].context)
        absent = [name for name in known if name not in batch]
        others = [str(key) for key in batch if key not in known]
        if needed.intersection(absent) or any(get_close_matches(key, absent, cutoff=CLOSE) for key in others):
            return batch
        return {key: value for key, value in batch.items() if key in known}

    return inputs


@frozen(eq=False)
class Inputs:
    """Batches without their labels; they can be iterated as often as the batches."""

    batches: Iterable[Any]
    inputs: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        """Yield each batch without its labels."""
        return map(self.inputs, self.batches)

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: they have none.
        """
        return len(self.batches)  # type: ignore[arg-type]
