"""fit_accumulators: narrower weight codes for the channels whose sums overflow the target's accumulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.arithmetic.integers import SumRange
from qfunc.errors import SpecError
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import slots
from qfunc.placement.partition import Partition
from qfunc.placement.products import range_of_unit
from qfunc.placement.units import Unit
from qfunc.transforms.batch_norm import fold_batch_norm
from qfunc.transforms.reconcile import set_qparams

Model = TypeVar("Model", bound=nn.Module)
_ROUNDS = 40


def fit_accumulators() -> Callable[[Model], Model]:
    """Return a transform of a calibrated model after which no sum of weights and codes overflows its accumulator.

    Each output channel c whose sums may overflow gets a larger weight scale, hence smaller codes q:

        s_c' = s_c * max_x |sum q x + q_b| / (2^(bits-1) - 1),

    with x over all codes of the input minus its zero point, until the sums fit.  A scale that all channels share is that of
    the widest channel; powers of two stay powers of two.  The real weights stay as they are and are rounded more coarsely.
    Learned roundings of these weights are lost: call it before `reconstruct` and before training.  Products of two
    activations stay as they are; `explain` lists them.  The given model is not changed.

    Raises:
        CalibrationError: a model that is not calibrated.
        SpecError: sums that still overflow, because a limit or a tie of the target keeps the scale.
    Source: the bound on the l1 norm of weights of Colbert et al., arXiv:2308.13504 (A2Q).  A2Q clips the norm in training;
        here the scale grows, so that the real weights stay.

    >>> import qfunc
    >>> from qfunc import targets
    >>> calibrated = qfunc.calibrate([torch.ones(1, 3)])(qfunc.quantize(targets.onnxruntime)(nn.Linear(3, 2)))
    >>> fitted = fit_accumulators()(calibrated)  # three products fit 32 bits
    >>> bool((fitted(torch.ones(1, 3)) == calibrated(torch.ones(1, 3))).all())
    True
    """

    def transform(calibrated: Model) -> Model:
        parts = require_submodules(calibrated, "calibrated", "fit_accumulators")
        with torch.inference_mode(False), torch.no_grad():
            results = {path: _fitted(fold_batch_norm()(part)) for path, part in parts.items()}
        fitted: Any = with_submodules(calibrated, results, "fit_accumulators")
        return fitted  # type: ignore[no-any-return]

    return Transform(fit_accumulators, {}, transform)


def _fitted(model: fx.GraphModule) -> fx.GraphModule:
    stuck: Unit | None = None
    for _ in range(_ROUNDS):
        view = QuantizedModel(model)
        target = view.record.target
        assert target is not None
        partition = Partition(view, target)
        wider, stuck = {}, None
        for unit in partition.units:
            sums = range_of_unit(partition, unit)
            if sums is None or sums.per_product or not bool(sums.at_risk.any()) or unit.kind == "mul":
                continue
            stuck = unit
            node = dict(slots(unit.group.root))["weight"]
            encoding = partition.encoding(node, unit.group.root)
            assert encoding is not None
            qparams, path = encoding.qparams, encoding.quantizer.path
            factor = _factor(sums, qparams.scale, encoding.quantizer.module.scheme.scale.power_of_two)
            wider[path] = qparams._replace(scale=(qparams.scale.double() * factor).float())
        if stuck is None:
            return model
        set_qparams(view, wider)
    raise _too_narrow(stuck)


def _factor(sums: SumRange, scale: Tensor, power_of_two: bool) -> Tensor:
    # The factor of each scale: 1 where all sums fit.  Rounding may leave a sum just above the limit, so that it grows.
    largest = torch.maximum(sums.high, -sums.low) / (2.0 ** (sums.bits - 1) - 1)
    factor = torch.where(sums.at_risk, largest.clamp(min=1 + 2.0**-8), torch.ones_like(largest))
    factor = factor.reshape(-1, scale.numel()).amax(0).reshape(scale.shape)
    return torch.exp2(torch.ceil(torch.log2(factor))) if power_of_two else factor


def _too_narrow(unit: Unit | None) -> SpecError:
    path = "" if unit is None else unit.path
    wanted, do = "sums that a larger weight scale makes fit", "Make the accumulator wider, or the target's limits."
    return SpecError(where=f"fit_accumulators, unit {path!r}", found="sums that still overflow", wanted=wanted, do=do)
