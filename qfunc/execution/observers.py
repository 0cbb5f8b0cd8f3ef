"""Statistics of a calibration pass: the tensors that each estimator observes, and its state while the network runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import CalibrationError, SpecError, a_or_an
from qfunc.execution.batches import infos
from qfunc.execution.fixed_qparams import FixedScale, loss_text, observed_site
from qfunc.execution.tensor_ranges.measure import range_of, union
from qfunc.execution.varying_sizes import join_sizes
from qfunc.graph.arguments import flatten
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.record import TensorInfo, record_of
from qfunc.graph.sites import QuantizerNode
from qfunc.numerics.qparams import qparams_shape
from qfunc.quantizers.lost_negatives import Negatives, lost_text, maps_negatives_to_zero
from qfunc.quantizers.site import Site
from qfunc.specs import DerivedQParams, FixedQParams, PerTensor, Scheme


@frozen(eq=False)
class Statistic:
    """One estimator: the (model, path) of its sites, and the names of its tensors with the names of their sites."""

    site: Site
    owners: tuple[tuple[int, str], ...]
    tensors: dict[str, str]


def statistics(models: list[tuple[QuantizerNode, ...]]) -> list[Statistic]:
    """Return the statistics to estimate for the quantizers of some models.

    Sites with the same tensor, scheme and estimator share one statistic.
    """
    by_key: dict[Any, Statistic] = {}
    for index, quantizers in enumerate(models):
        for quantizer in quantizers:
            site = quantizer.module.site
            if site.constant or (site.dynamic and not site.outer) or isinstance(site.value, DerivedQParams):
                continue  # weights need no batches; derived and dynamic qparams are never estimated
            site = observed_site(site)
            joined = site.tie and site.leader == "union" and isinstance(site.value, Scheme)
            tensor = (index, site.tie) if joined else quantizer.tensor
            key = (tensor, site.estimator, site.scheme)
            old = by_key.get(key, Statistic(site, (), {}))
            tensors = {quantizer.tensor: site.name, **old.tensors}
            by_key[key] = Statistic(old.site, (*old.owners, (index, quantizer.path)), tensors)
    return list(by_key.values())


class Observer:
    """The states of all statistics while a network runs.

    Args:
        network: The network.
        models: The indices of the models for which the network runs.
        statistics: The statistics.
        parts: The names of more tensors whose ranges are measured.
    """

    def __init__(
        self, network: fx.GraphModule, models: tuple[int, ...], statistics: list[Statistic], parts: tuple[str, ...] = ()
    ) -> None:
        self.models, self.statistics = models, statistics
        self.states: list[Any] = [None] * len(statistics)
        self.readers: dict[str, list[int]] = {}
        for index, statistic in enumerate(statistics):
            for name in statistic.tensors:
                self.readers.setdefault(name, []).append(index)
        self.ranges = dict[str, Tensor]()
        self.measured = {*self.readers, *parts}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.negatives: dict[int, Negatives] = {}
        self.pending: dict[int, list[Tensor]] = {}
        self.batch = 0
        record = record_of(network)
        self.rank_two = {n: record.path(record.facts[n].path) for n in record.rank_two} if record else {}
        self.interpreter = ObservingInterpreter(network, self.observe, {*self.measured, *self.rank_two})
        self.inputs: tuple[TensorInfo, ...] = ()
        self.example: tuple[Any, ...] = ()
        self.device = next((t.device for t in itertools.chain(network.parameters(), network.buffers())), None)

    def read(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Update all statistics and return the network's value; set `inputs` and `example` by the first non-empty call."""
        self.batch = number
        if not self.inputs or any(0 in i.shape for i in self.inputs):
            self.inputs, self.example = infos(arguments), arguments
        else:
            self.inputs = join_sizes(self.inputs, infos(arguments))
        return self.interpreter.run_batch(arguments, f"calibrate, batch {number}")

    def observe(self, name: str, value: Any) -> None:
        """Update the statistics that read a tensor."""
        if name in self.rank_two and value.ndim != 2:
            raise CalibrationError(
                where=f"op {self.rank_two[name]!r}",
                found=f"values of rank {value.ndim} before its BatchNorm1d",
                wanted="rank 2, where a BatchNorm1d can be folded into the linear layer",
                do="Flatten the leading axes before this layer, or move the BatchNorm1d.",
            )
        for index in self.readers.get(name, ()):
            statistic = self.statistics[index]
            require_float(value, statistic.tensors[name])
            if len(statistic.tensors) == 1:
                self._update(index, value)
                # NaN and infinity appear in the statistics, so check the tensor itself only then.
                if not _finite(self.states[index]):
                    self._require_finite(index, name, value)
                continue
            self._require_finite(index, name, value)
            # The estimator gets tied tensors as one tensor, once a batch.
            chunks = self.pending.setdefault(index, [])
            chunks.append(value.flatten())
            if len(chunks) == len(statistic.tensors):
                self._update(index, torch.cat(self.pending.pop(index)))
        if name in self.measured and isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            self.ranges[name] = union(self.ranges.get(name), range_of(value))

    def _require_finite(self, index: int, name: str, value: Tensor) -> None:
        require_finite(value, self.statistics[index].tensors[name], f"the activations of batch {self.batch}")

    def _update(self, index: int, value: Tensor) -> None:
        if value.numel():
            estimator, scheme = self.statistics[index].site.estimator, self.statistics[index].site.scheme
            if not isinstance(scheme.scale.shared, PerTensor):
                self._require_same_channels(index, tuple(value.shape))
            before = estimator.init(scheme, value) if self.states[index] is None else self.states[index]
            self.states[index] = estimator.update(before, value, scheme)
            if maps_negatives_to_zero(scheme):
                self.negatives[index] = self.negatives.get(index, Negatives()).seen(value)

    def _require_same_channels(self, index: int, shape: tuple[int, ...]) -> None:
        site, wanted, scales = self.statistics[index].site, "an axis of the tensor", None
        try:
            scales = qparams_shape(site.scheme, shape)
            wanted = f"scales of shape {self.shapes.setdefault(index, scales)}, as in the batches before"
        except SpecError:  # the tensor has no such axis
            do = f"Replace the axis of {site.scheme.scale.shared!r}, in a rule for this op if other ops have that axis."
        else:
            do = "Pass batches that differ only in the axes that share a scale, or use a scale per tensor."
        if scales is None or scales != self.shapes[index]:
            found = f"a tensor of shape {shape} in batch {self.batch}"
            raise CalibrationError(where=f"site {site.name!r}", found=found, wanted=wanted, do=do)

    def qparams(self, part: str = "") -> list[dict[str, Any]]:
        """Return a dict from path to qparams for each model.

        Raises:
            CalibrationError: a site has no values, or the outer module has never called the submodule `part`.
        """
        by_model: list[dict[str, Any]] = [{} for _ in self.models]
        if part and not self.batch and self.statistics and all(state is None for state in self.states):
            do = "Pass batches for which it runs, or leave it out of `submodules`."
            where, wanted = f"calibrate, submodule {part!r}", "at least one"
            raise CalibrationError(where=where, found="no call of it in any batch", wanted=wanted, do=do)
        for statistic, state in zip(self.statistics, self.states, strict=True):
            site = statistic.site
            if isinstance(site.value, FixedQParams) and (state is None or not site.value.smaller):
                continue
            if state is None:
                do = "Pass batches with at least one example."
                raise CalibrationError(where=f"site {site.name!r}", found="only empty tensors", wanted="some values", do=do)
            for owner, path in statistic.owners:
                by_model[owner][path] = site.estimator.finalize(state, site.scheme)
        return by_model

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings: fixed qparams that round most of a sum to 0, and negatives without codes."""
        fixed = ((s.site, s.site.estimator, t) for s, t in zip(self.statistics, self.states, strict=True) if t is not None)
        lost = ((site, e.lost_part(t, site.scheme)) for site, e, t in fixed if isinstance(e, FixedScale))
        return (*(loss_text(site, part) for site, part in lost if part), *filter(None, (self._lost(),)))

    def _lost(self) -> str:
        sites = {i: self.statistics[i].site for i in self.negatives}
        scales = {i: site.estimator.finalize(self.states[i], site.scheme).scale for i, site in sites.items()}
        return lost_text([(site, self.negatives[i], scales[i]) for i, site in sites.items()])


def _finite(state: Any) -> bool:
    tensors = (t for t in flatten(state) if isinstance(t, Tensor) and t.is_floating_point())
    return all(bool(t.isfinite().all()) for t in tensors)


def require_float(value: Any, name: str) -> None:
    """Refuse values that cannot have a scale.

    Raises:
        CalibrationError: the value is not a float tensor; the message names the site.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        found = f"{value.dtype} values" if isinstance(value, Tensor) else a_or_an(type(value))
        do = _SEVERAL if isinstance(value, list | tuple | Mapping) else _SKIP
        if isinstance(value, list) and value and all(isinstance(v, int | float) for v in flatten(value)):
            found, do = "a list of numbers", _TENSORS
        raise CalibrationError(where=f"site {name!r}", found=found, wanted="a float tensor", do=do)


_SEVERAL = (
    "Pass example_inputs=(...,) to quantize, so that each tensor is a separate input, or leave the op in float by edit.skip."
)
_SKIP = "Use edit.skip for ops on such values."
_TENSORS = "Give batches of tensors: torch.tensor(numbers), or dataset.with_format('torch') of Hugging Face."


def require_finite(value: Tensor, name: str, source: str) -> None:
    """Refuse NaN and infinite values, in one pass without allocations of the tensor's size.

    Args:
        value: The values.
        name: The name of the site.
        source: The source of the values, for the message.

    Raises:
        CalibrationError: a value is not finite; the message names the site.
    """
    ends = torch.stack(torch.aminmax(value.detach())) if value.numel() and value.is_floating_point() else torch.zeros(1)
    if not bool(ends.isfinite().all()):
        raise CalibrationError(
            where=f"site {name!r}",
            found=f"{'NaN' if bool(ends.isnan().any()) else 'infinite'} values in {source}",
            wanted="finite values",
            do="Repair the weights, omit the batch, or leave the op in float by edit.skip.",
        )
