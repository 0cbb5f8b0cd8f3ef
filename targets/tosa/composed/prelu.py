"""Write PReLU: the positive part and the product of the negative part with the slopes' codes, each with its own RESCALE."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.composed.integers import Integers
from qfunc.targets.tosa.linear import max_magnitude
from qfunc.targets.tosa.rescale import multiplier, qparams_of, require_range, rescale
from qfunc.targets.tosa.schema import PROPAGATE


def prelu(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write PRELU: see `specs.FixedPoint`.

    Raises:
        DeployError: values outside the range of RESCALE.
    """
    (x, slopes), i = inputs, Integers(graph, out.name, len(out.shape))
    (scale, zero), (slope_scale, slope_zero), (scale_out, zero_out) = (qparams_of(t) for t in (x, slopes, out))
    assert slopes.value is not None
    codes = slopes.value.astype(np.int32) - slope_zero
    codes = codes.reshape([1] * (len(out.shape) - codes.ndim) + list(codes.shape))
    wide = i.wide(x, zero)
    above = i("MAXIMUM", wide, 0, nan_mode=PROPAGATE)
    below = i.product(i("MINIMUM", wide, 0, nan_mode=PROPAGATE), codes)
    largest, parts = max_magnitude(x), []
    for part, factor, bound in ((above, 1.0, largest), (below, slope_scale, largest * int(np.abs(codes).max()))):
        pair = multiplier(np.asarray(np.float32(scale) * np.float32(factor) / np.float32(scale_out)))
        require_range(out, pair, np.asarray(bound))
        parts.append(i.scaled(part, int(pair[0][0]), int(pair[1][0])))
    rescale(graph, i("ADD", *parts), out, (np.array([1 << 30]), np.array([30])), output_zero=zero_out)
