"""The inputs of a graph on the images of this process, compared with the inputs of the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.errors import CalibrationError, a_or_an
from qfunc.execution.distributed import gather_counts, propagate_errors
from qfunc.files.tensors import digest
from qfunc.reconstruction.cache import Collector
from qfunc.reconstruction.sharing.parts import Parts, sizes_of_parts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

MIN_IMAGES = 3


@frozen(eq=False)
class Inputs:
    """The value of each placeholder; those in `split` have all images of this process along their first axis.

    Attributes:
        values: The values.
        split: The names of those with a batch axis.
        counts: The number of images of each call.
        few: The values on the smallest number of images from which the batch axes can be found, the same in all processes.
        parts: The images of all processes.
        digests: A digest of each call of all processes.
    """

    values: dict[str, Tensor]
    split: frozenset[str]
    counts: tuple[int, ...]
    few: dict[str, Tensor]
    parts: Parts
    digests: tuple[str, ...]

    @property
    def images(self) -> int:
        """The number of images of this process."""
        return sum(self.counts)

    def chunks(self) -> list[tuple[int, int]]:
        """Return the first image, and the one after the last, of each call."""
        return [(start, stop) for start, stop in pairwise(accumulate(self.counts, initial=0)) if start < stop]


class _Told(NamedTuple):
    """What one process tells the others of its calls, by name where it says so."""

    sizes: tuple[int, ...]
    digests: tuple[str, ...]
    split: frozenset[str]
    kinds: dict[str, list[tuple[str, tuple[int, ...]]]]  # the dtype and the shape of one image
    first: dict[str, tuple[str, bool]]  # a digest of the first value, and whether all others equal it
    few: dict[str, Tensor]


def gathered_inputs(collector: Collector, batches: int, parts: Sequence[int] | None, group: ProcessGroup | None) -> Inputs:
    """Return the inputs of all calls of this process.

    Args:
        collector: The calls.
        batches: The number of batches of this process.
        parts: The number of batches of each of its parts.
        group: The result of `ranks`; None for this process alone.
    Raises:
        CalibrationError: fewer than three images, none in one of the processes, inputs that are not tensors, batches of
            different shapes, or other parts.
    """
    with propagate_errors(group):
        calls = collector.calls
        _require_tensors(calls)
        counts = tuple(_images(call.values()) for call in calls)
        own = _told(calls, counts, sizes_of_parts(parts, batches, list(zip(collector.numbers, counts, strict=True))))
    told: list[_Told] = gather_counts(own, 1, collector.names, group, "reconstruct")[0]
    _require_images(told)
    split = reduce(frozenset.__and__, (each.split for each in told))
    values, few = dict[str, Tensor](), dict[str, Tensor]()
    for name, first in calls[0].items():
        if name in split:
            _require_alike(name, [kind for each in told for kind in each.kinds[name]])
            values[name] = torch.cat([call[name].detach() for call in calls])
            few[name] = torch.cat([each.few[name].to(first.device) for each in told])[:MIN_IMAGES]
        else:
            values[name] = few[name] = first.detach()
            if len({each.first[name][0] for each in told}) > 1 or not all(each.first[name][1] for each in told):
                raise _unlike(f"input {name!r}", "different values in each batch, and no batch axis")
    rank = group.rank() if group is not None else 0
    digests = tuple(text for each in told for text in each.digests)
    return Inputs(values, split, counts, few, Parts(tuple(each.sizes for each in told), rank), digests)


def _told(calls: Sequence[dict[str, Any]], counts: Sequence[int], sizes: tuple[int, ...]) -> _Told:
    names = list(calls[0]) if calls else []
    of_name = {name: [call[name] for call in calls] for name in names}
    split = frozenset(
        name for name, values in of_name.items() if all(v.ndim and len(v) == n for v, n in zip(values, counts, strict=True))
    )
    return _Told(
        sizes,
        tuple(digest(call) for call in calls),
        split,
        {name: list(dict.fromkeys((str(v.dtype), tuple(v.shape[1:])) for v in of_name[name])) for name in split},
        {name: (digest({"": v[0]}), all(torch.equal(w, v[0]) for w in v[1:])) for name, v in of_name.items()},
        {name: torch.cat([v[:MIN_IMAGES].detach() for v in _alike(of_name[name])])[:MIN_IMAGES] for name in split},
    )


def _alike(values: Sequence[Tensor]) -> list[Tensor]:
    return [v for v in values if (v.shape[1:], v.dtype) == (values[0].shape[1:], values[0].dtype)]


def _images(values: Any) -> int:
    return next((len(v) for v in values if v.ndim), 0)


def _require_tensors(calls: Sequence[dict[str, Any]]) -> None:
    for name, value in (pair for call in calls for pair in call.items()):
        if not isinstance(value, Tensor):
            do = "Pass example_inputs=(...,) to quantize, so that each tensor becomes a separate input."
            found = a_or_an(type(value))
            raise CalibrationError(where=f"reconstruct, input {name!r}", found=found, wanted="a tensor", do=do)


def _require_images(told: Sequence[_Told]) -> None:
    images = [sum(each.sizes) for each in told]
    if sum(images) < MIN_IMAGES:
        wanted, do = f"at least {MIN_IMAGES}", "Pass images as for calibration; the papers use 1,024."
        found = f"{sum(images)} image{'s' * (sum(images) != 1)}"
        raise CalibrationError(where="reconstruct, batches", found=found, wanted=wanted, do=do)
    if 0 in images:
        do = "Give each process batches of its own."
        where = f"reconstruct, rank {images.index(0)}, batches"
        raise CalibrationError(where=where, found="0 images", wanted="at least one in each process", do=do)


def _require_alike(name: str, kinds: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    other = next((kind for kind in kinds if kind != kinds[0]), None)
    if other is not None:
        raise _unlike(
            f"input {name!r}", " and ".join(f"{dtype} of shape {shape} an image" for dtype, shape in (kinds[0], other))
        )


def _unlike(where: str, found: str) -> CalibrationError:
    wanted, do = "batches that differ only in the number of images", "Give images, or padded sequences, of one size."
    return CalibrationError(where=f"reconstruct, {where}", found=found, wanted=wanted, do=do)
