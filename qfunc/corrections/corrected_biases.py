"""Biases that corrections change: each is corrected from its original value, and a scale of its own follows it."""

from __future__ import annotations

from attrs import evolve
from torch import Tensor, fx

from qfunc.graph.constants import read_attr
from qfunc.graph.record import CorrectedBias, Record, attach, record_of
from qfunc.graph.view import QuantizedModel
from qfunc.transforms.reconcile import bias_qparams, set_qparams


class CorrectedBiases:
    """The biases of a model that a transform owns; those that were corrected have their original values again.

    A change since then, as by training, stays.
    """

    def __init__(self, model: fx.GraphModule) -> None:
        self.model, self.original = model, dict[str, Tensor]()
        self.before = {each.path: each for each in _record(model).corrected}
        for path, each in self.before.items():
            bias = _bias(model, path)
            bias.copy_(each.original_of(bias))

    def subtract(self, bias: fx.Node, shift: Tensor) -> None:
        """Subtract the shift of the mean from the bias that a node reads."""
        value = read_attr(self.model, bias)
        self.original[str(bias.target)] = value.detach().clone()
        value.sub_(shift)

    def record(self) -> None:
        """Record the original values, and estimate the biases' own scales; biases without a new shift get the earlier one."""
        for path in self.before.keys() - self.original.keys():
            bias, each = _bias(self.model, path), self.before[path]
            self.original[path] = bias.detach().clone()
            bias.add_((each.corrected - each.original).to(bias))
        values = {path: _bias(self.model, path).detach().clone() for path in self.original}
        corrected = (CorrectedBias(path, self.original[path], values[path]) for path in sorted(values))
        attach(self.model, evolve(_record(self.model), corrected=tuple(corrected)))
        view = QuantizedModel(self.model)
        found = bias_qparams(view)
        if _record(self.model).stage == "calibrated":
            set_qparams(view, found)
        else:  # `calibrate` keeps the limits
            for quantizer in (q for q in view.quantizers if q.path in found):
                quantizer.module.set_qparams(found[quantizer.path])


def _bias(model: fx.GraphModule, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    found: Tensor = getattr(model.get_submodule(owner), name)
    return found


def _record(model: fx.GraphModule) -> Record:
    found = record_of(model)
    assert found is not None
    return found
