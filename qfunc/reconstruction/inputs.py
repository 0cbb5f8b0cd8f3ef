"""The images of a reconstruction: the batches as tensors of the network's inputs, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import CalibrationError, a_or_an

LEAST = 3


@frozen(eq=False)
class Inputs:
    """The value of each placeholder; those in `split` hold all images along their first axis."""

    values: dict[str, Tensor]
    split: frozenset[str]
    images: int
    batch: int

    def few(self) -> dict[str, Tensor]:
        """The values on as many images as tell which axes run over them."""
        return {name: v[:LEAST] if name in self.split else v for name, v in self.values.items()}


class Collector:
    """Takes the arguments of each call of a quantized model, until `inputs` puts them together."""

    def __init__(self, network: fx.GraphModule) -> None:
        self.network, self.calls = network, list[dict[str, Any]]()
        self.names = [n.name for n in network.graph.nodes if n.op == "placeholder"]

    def see(self, arguments: tuple[Any, ...], number: int) -> Any:
        """One call; what the float network returns."""
        given = self.network.graph.process_inputs(*arguments)
        self.calls.append(dict(zip(self.names, given, strict=False)))
        with torch.no_grad():
            return self.network(*arguments)

    def note(self, arguments: tuple[Any, ...], number: int) -> None:
        """As `see`, where nobody asks for the value."""
        self.calls.append(dict(zip(self.names, self.network.graph.process_inputs(*arguments), strict=False)))

    def inputs(self) -> Inputs:
        """All of them.

        Raises:
            CalibrationError: fewer than three images, inputs that are no tensors, or batches of other shapes.
        """
        for name, value in self.calls[0].items() if self.calls else ():
            if not isinstance(value, Tensor):
                do = "Give quantize example_inputs=(...,), whose tensors are then inputs of their own."
                found = a_or_an(type(value))
                raise CalibrationError(where=f"reconstruct, input {name!r}", found=found, wanted="a tensor", do=do)
        counts = [_images(call.values()) for call in self.calls]
        if sum(counts) < LEAST:
            wanted, do = f"at least {LEAST}", "Give images as for calibration; the papers take 1,024."
            raise CalibrationError(where="reconstruct, batches", found=f"{sum(counts)} images", wanted=wanted, do=do)
        made, split = dict[str, Tensor](), set[str]()
        for name in self.calls[0]:
            values = [call[name] for call in self.calls]
            if all(v.ndim and v.shape[0] == n for v, n in zip(values, counts, strict=True)):
                _require_alike(name, values)
                split.add(name)
                made[name] = torch.cat([v.detach() for v in values])
            else:
                made[name] = values[0].detach()
                if not all(torch.equal(v, values[0]) for v in values[1:]):
                    raise _unlike(f"input {name!r}", "other values in each batch, and no axis that runs over the images")
        return Inputs(made, frozenset(split), sum(counts), max(counts))


def _images(values: Any) -> int:
    return next((len(v) for v in values if v.ndim), 0)


def _require_alike(name: str, values: Sequence[Tensor]) -> None:
    first = values[0]
    other = next((v for v in values if (v.shape[1:], v.dtype) != (first.shape[1:], first.dtype)), None)
    if other is not None:
        shapes = " and ".join(f"{v.dtype} of shape {tuple(v.shape[1:])} an image" for v in (first, other))
        raise _unlike(f"input {name!r}", shapes)


def _unlike(where: str, found: str) -> CalibrationError:
    do = "Give images, or padded sequences, of one size."
    return CalibrationError(
        where=f"reconstruct, {where}", found=found, wanted="batches that differ in the number of images alone", do=do
    )


__all__ = ["LEAST", "Collector", "Inputs"]
