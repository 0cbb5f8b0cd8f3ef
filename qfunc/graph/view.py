"""A view of a quantized model for transforms, which computes each form of the model at most once per call."""

from __future__ import annotations

from functools import cached_property

from torch import fx

from qfunc.graph.evaluation_form import evaluation_form
from qfunc.graph.float_network import without_quantizers
from qfunc.graph.record import Record, record_of
from qfunc.graph.sites import QuantizerNode, find_quantizers
from qfunc.quantizers.fake_quantize import FakeQuantize


class QuantizedModel:
    """A quantized model, its record, its evaluation form, its quantizers and its float network.

    Each public call creates one view per model.  It is never stored on the model, because the evaluation form has
    folded weights, which would not follow later changes of the model.  The quantized weights that the model itself caches
    by tensor versions are dropped, because `.data` and NumPy change a tensor without changing its version.

    >>> import qfunc, torch
    >>> view = QuantizedModel(qfunc.quantize(qfunc.targets.onnxruntime)(torch.nn.Linear(3, 2)))
    >>> [quantizer.tensor for quantizer in view.quantizers], view.float_network is view.float_network
    (['input_1', 'weight', 'bias', 'linear'], True)
    """

    def __init__(self, model: fx.GraphModule) -> None:
        self.model = model
        for module in model.modules():
            if isinstance(module, FakeQuantize):
                module.cache.clear()

    @cached_property
    def record(self) -> Record:
        """The record of the model."""
        found = record_of(self.model)
        assert found is not None
        return found

    @cached_property
    def evaluation_form(self) -> fx.GraphModule:
        """The model with its BatchNorms folded; itself if none trains."""
        return evaluation_form(self.model)

    @cached_property
    def quantizers(self) -> tuple[QuantizerNode, ...]:
        """The quantizers in the order of the graph."""
        return find_quantizers(self.evaluation_form)

    @cached_property
    def float_network(self) -> fx.GraphModule:
        """The evaluation form without quantizers and dropouts."""
        return without_quantizers(self.evaluation_form)

    @cached_property
    def network_so_far(self) -> fx.GraphModule:
        """The evaluation form without dropouts and without the quantizers that have no qparams yet."""
        return without_quantizers(self.evaluation_form, keep_ready=True)
