"""GgmlBlocks: weights in blocks with minimums, or with integers as scales, as llama.cpp quantizes them."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics._grads import straight_through
from qfunc.numerics.affine import dequantize, full_minimum, full_scale, spread
from qfunc.numerics.qparams import Affine
from qfunc.numerics.search.blocks import codes_of, nearest_codes, qparams_of
from qfunc.specs import Int, PerBlock, Scheme

_BITS = {False: (3, 6), True: (2, 4, 5)}
"""Minimum or not -> the bits of codes in blocks with integers as scales."""
_BITS_OF_ENDS = (4, 5)
"""The bits of codes in blocks with a minimum and a scale that is no integer."""


@frozen
class GgmlBlocks:
    """x_hat = q s + m in blocks of the last axis, with a straight-through gradient.

    s and m are found for the weight itself, not for a range, by llama.cpp's own search in float32, so that codes, scales and
    minimums are those that llama.cpp writes.

    Raises:
        SpecError: by `init`, for a scheme other than `GGUF_Q4_1`, `GGUF_Q5_1`, `GGUF_Q2_K`, `GGUF_Q3_K`, `GGUF_Q4_K`,
            `GGUF_Q5_K` and `GGUF_Q6_K`, apart from the sizes of its blocks.
    Source: ggml, src/ggml-quants.c.

    >>> import torch
    >>> from qfunc.specs.formats import GGUF_Q4_1
    >>> x = torch.arange(32.0)[None]
    >>> params = GgmlBlocks().init(Affine(torch.ones(1, 1), torch.zeros(1, 1)), x, GGUF_Q4_1)
    >>> GgmlBlocks().apply(params, x, GGUF_Q4_1)[0, 31]
    tensor(30.9961)
    """

    searches = True

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Affine:
        """Return the qparams of x."""
        _require_known(scheme)
        return qparams_of(x, scheme)

    def apply(self, params: Affine, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        value = dequantize(nearest_codes(x.detach(), params, scheme), params, scheme).to(x.dtype)
        return straight_through(x, value, _inside(x.detach(), params, scheme))

    def export(self, params: Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x and their qparams."""
        return codes_of(x, params, scheme), params


def _inside(x: Tensor, params: Affine, scheme: Scheme) -> Tensor:
    # True where x is at most half a step outside of the values of its block.
    step, minimum = full_scale(params), full_minimum(params, scheme)
    assert isinstance(scheme.format, Int)  # _require_known
    ends = [step * code if minimum is None else step * code + minimum for code in (scheme.format.qmin, scheme.format.qmax)]
    low, high = torch.minimum(*ends) - step.abs() / 2, torch.maximum(*ends) + step.abs() / 2
    return (x >= spread(low, x, scheme)) & (x <= spread(high, x, scheme))


def _require_known(scheme: Scheme) -> None:
    shared, fmt = scheme.scale.shared, scheme.format
    known = scheme.searched and isinstance(shared, PerBlock) and shared.axis == -1 and not shared.partial
    bits = _BITS[scheme.minimum] if scheme.scale.integers is not None else _BITS_OF_ENDS
    if not known or not isinstance(fmt, Int) or fmt.bits not in bits:
        wanted = (
            "blocks of the last axis, as GGUF_Q4_1, GGUF_Q5_1, GGUF_Q2_K, GGUF_Q3_K, GGUF_Q4_K, GGUF_Q5_K or GGUF_Q6_K has them"
        )
        do = "Give one of these schemes, or the function Fixed()."
        raise SpecError(where="GgmlBlocks()", found=repr(scheme), wanted=wanted, do=do)
