"""Mean task scores, by a user-defined function, for each way of running a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from qfunc.errors import QfuncError, VerifyError, first_line
from qfunc.transforms.validate import describe

Score = Callable[[list[Tensor], Any], Any]
"""(the outputs in the model's order, the original batch) -> one number per example, or one for all."""


def user_error(error: Exception, where: str, kind: type[QfuncError]) -> QfuncError:
    """Return the error that tells of an exception of the user's function.

    >>> user_error(KeyError("digit"), "verify, score", VerifyError).found
    "KeyError: 'digit'"
    """
    do = "Its arguments are the list of all output tensors, in the model's order, and the batch."
    return kind(where=where, found=first_line(error), wanted="one number per example", do=do)


class Scores:
    """Means of a score over all examples, for each source of outputs.

    >>> scores = Scores(lambda outputs, batch: outputs[0].argmax(1) == batch[1])
    >>> for _ in scores.watched([(torch.ones(2, 3), torch.tensor([0, 2]))]):
    ...     scores.add("float", [torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])])
    >>> scores.means
    (('float', 0.5),)
    """

    def __init__(self, score: Score) -> None:
        self.score, self.batch = score, None
        self.found: dict[str, list[Tensor]] = {}

    def watched(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches, and keep each one until the next."""
        for self.batch in batches:
            yield self.batch

    def add(self, name: str, outputs: list[Tensor]) -> None:
        """Record the score of a model's outputs for the current batch.

        Raises:
            VerifyError: the score raises, or is not a number.
        """
        try:
            found = self.score(outputs, self.batch)
        except Exception as e:
            raise user_error(e, "verify, score", VerifyError) from e
        try:
            self.found.setdefault(name, []).append(torch.as_tensor(found, dtype=torch.float64).flatten().cpu())
        except (TypeError, ValueError, RuntimeError) as e:
            do = "Return a tensor of numbers or booleans, such as outputs[0].argmax(1) == batch[1]."
            raise VerifyError(where="verify, score", found=describe(found), wanted="one number per example", do=do) from e

    @property
    def means(self) -> tuple[tuple[str, float], ...]:
        """The pairs (source of the outputs, mean score)."""
        return tuple((name, float(torch.cat(values).mean())) for name, values in self.found.items())
