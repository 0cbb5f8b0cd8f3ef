"""What a file is worth beside the float network: the errors of its outputs, its latency, its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.analysis.gain import LOW_SQNR, Gain, Latency, OutputErrors, least_sqnr
from qfunc.errors import VerifyError, first_line
from qfunc.execution.batches import tensors_of
from qfunc.execution.evaluate import run_in_evaluation_mode
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Target
from qfunc.transforms.compare import compare
from qfunc.transforms.deploy import Deployment
from qfunc.transforms.verification.float_file import float_file, latency, size_ratio
from qfunc.transforms.verification.unit_costs import unit_costs

_NAMED = 3
"""The number of tensors, and of units, that a report names as the cause of its error, and of its time."""


class Gains:
    """The sums over batches, and the measurement after them.

    Args:
        model: The calibrated model.
        deployed: The model as its artifact computes it.
        reference: A function of a batch's arguments with which the outputs are compared; None for the float network.
        timed: Whether to measure the latency.
    """

    def __init__(self, model: fx.GraphModule, deployed: Deployment, reference: Callable[..., Any] | None, timed: bool) -> None:
        self.model, self.deployed, self.given, self.timed = model, deployed, reference, timed
        self.errors = OutputErrors()
        self.arguments: tuple[Any, ...] = ()
        self.leaves: list[Tensor] = []

    def add(self, arguments: tuple[Any, ...], leaves: list[Tensor], outputs: Sequence[Tensor], where: str) -> None:
        """Add the runtime's outputs for one batch.

        Raises:
            VerifyError: the caller's model fails, or has outputs of other shapes.
        """
        self.arguments, self.leaves = arguments, leaves
        self.errors.add(self._reference(outputs, where), outputs)

    def _reference(self, like: Sequence[Tensor], where: str) -> list[Tensor]:
        if self.given is None:
            return run_in_evaluation_mode(self.deployed.partition.network, self.leaves)
        do = "Pass the float model that was quantized, or another with its arguments and outputs."
        try:
            with torch.inference_mode():
                outputs = tensors_of(self.given(*self.arguments))
        except Exception as e:  # of the caller's model
            raise VerifyError(where=f"{where}, reference", found=first_line(e), wanted="outputs", do=do) from e
        found, wanted = ([list(v.shape) for v in each] for each in (outputs, like))
        if found != wanted:
            raise VerifyError(where=f"{where}, reference", found=f"outputs {found}", wanted=f"outputs {wanted}", do=do)
        return outputs

    def measured(self, runner: Any, artifact: Artifact, target: Target) -> Gain:
        """Return the errors of the outputs, and the latency and the size beside the float file."""
        rows = self.errors.rows()
        lowest = least_sqnr(rows)
        low = lowest is not None and lowest < LOW_SQNR
        losses, simulated = (self._losses(), self._simulated()) if low else ((), None)
        plain = float_file(self.deployed, target)
        if isinstance(plain, str):
            return Gain(rows, losses, Latency(why=plain), simulated=simulated)
        example = self._one_example()
        timed = latency(runner, artifact, plain, example) if self.timed else Latency(why="it was not asked for")
        costs = unit_costs(runner, artifact, plain, example, self.deployed.partition, _NAMED) if timed.slower else ()
        return Gain(rows, losses, timed, size_ratio(artifact, plain), simulated, costs)

    def _simulated(self) -> float | None:
        # The SQNR of the simulation in the last batch.
        errors, outputs = OutputErrors(), run_in_evaluation_mode(self.deployed.model, self.leaves)
        errors.add(self._reference(outputs, "verify"), outputs)
        return least_sqnr(errors.rows())

    def _losses(self) -> tuple[tuple[str, float], ...]:
        # The quantizers that lose most of what they are given, in the last batch.
        rows = compare([self.arguments], progress=False)(self.model).rows
        alone = sorted((row.alone.sqnr, row.tensor) for row in rows if row.alone is not None)
        return tuple((tensor, sqnr) for sqnr, tensor in alone[:_NAMED])

    def _one_example(self) -> list[Tensor]:
        axes, leaves = self.deployed.axes, self.leaves
        if axes is None:
            return leaves  # the size of the batch is fixed
        batch = leaves[0].shape[:1] if leaves else None
        rows = axes or [("batch",) if leaf.shape[:1] == batch else () for leaf in leaves]
        return [
            leaf.narrow(row.index("batch"), 0, 1) if "batch" in row else leaf for leaf, row in zip(leaves, rows, strict=True)
        ]
