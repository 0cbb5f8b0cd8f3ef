"""Mixtures of experts that a runtime computes as one op."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import integer
from qfunc.specs._values import readable


@readable
@frozen
class ExpertSums:
    """y = sum over e of r_e w_e(g l), with the products g and l of a token x and the gate and up weights, g = v / (1 + e^-v).

    An expert e computes the tokens whose weight r_e exceeds 2^-26.6 (1e-8) and no others.  Its products are those of the kernel
    of the linear layers; the rows of its first weight are a gate and an up channel in turns.  v has the logistic
    1 / (1 + e^-v), and e^v / (1 + e^v) if it is negative, by the C library's exponential; each step is rounded to float32.

    r_e w_e is rounded, and added expert by expert.  With fewer experts that have tokens than `threads`, or one thread, those
    with few tokens come first.  Else those with many do; in turns they go to the threads, whose sums are then added in order.
    Experts with equally many tokens are in the order that the C++ library's sort leaves them in.

    Source: ONNX Runtime, contrib_ops/cpu/moe/moe_quantization_cpu.cc; measured on onnxruntime 1.31.

    >>> ExpertSums()
    ExpertSums()
    """

    threads: int = field(default=2, validator=integer(1))


__all__ = ["ExpertSums"]
