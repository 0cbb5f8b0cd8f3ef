"""Write elementary functions as several TFLite operators in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor

_OPTIONS = {
    "ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions",
    "MAXIMUM": "MaximumMinimumOptions", "MINIMUM": "MaximumMinimumOptions",
}  # fmt: skip
_FUSES = ("ADD", "SUB", "MUL", "DIV")
_STEEP = 1e38
"""The square of this number times the least number of float32 is above 1."""


class Formula:
    """Writes operators inside of one op; numbers among the operands become constants.

    `result` is the op's result in the layout of `like`, for the last operator.
    """

    def __init__(self, step: OpContext) -> None:
        self.step, self.count = step, 0
        self.numbers: dict[float, NhwcTensor] = {}

    def result(self, like: NhwcTensor) -> NhwcTensor:
        """Return the tensor of the op's result, with the shape of `like`."""
        return self.step.result(like.shape, last=like.last)

    def __call__(self, op: str, *operands: NhwcTensor | float, into: NhwcTensor | None = None, **fields: Any) -> NhwcTensor:
        """Write an elementwise operator, and return its result: `into`, or a new tensor."""
        tensors = [o if isinstance(o, NhwcTensor) else self.number(o) for o in operands]
        fields |= {"fusedActivationFunction": "NONE"} if op in _FUSES else {}
        shape = np.broadcast_shapes(*(t.shape for t in tensors))
        output = into or self.tensor(op, shape, last=any(t.last for t in tensors))
        self.step.file.operator(op, tensors, [output], _OPTIONS.get(op, ""), **fields)
        return output

    def tensor(self, op: str, shape: Any, *, last: bool = False) -> NhwcTensor:
        """Return a new tensor of real values inside of the op."""
        self.count += 1
        return self.step.writer.make(f"{self.step.name}.{op.lower()}_{self.count}", shape, None, last=last)

    def number(self, value: float) -> NhwcTensor:
        """Return a constant."""
        if value not in self.numbers:
            name = f"{self.step.name}.number_{len(self.numbers)}"
            self.numbers[value] = self.step.file.tensor(name, (1,), value=np.array([value], np.float32))
        return self.numbers[value]

    def sign(self, x: NhwcTensor, into: NhwcTensor | None = None) -> NhwcTensor:
        """Return -1, 0 or 1."""
        steep = self("MUL", self("MUL", x, _STEEP), _STEEP)
        return self("MAXIMUM", self("MINIMUM", steep, 1.0), -1.0, into=into)

    def softplus(self, x: NhwcTensor, into: NhwcTensor | None = None) -> NhwcTensor:
        """Return max(0, x) + log(1 + exp(-|x|)), to within 2^-22 for results below 1."""
        tail = self("LOG", self("ADD", self("EXP", self("NEG", self("ABS", x))), 1.0))
        return self("ADD", self("RELU", x), tail, into=into)


Curve = Callable[[Formula, NhwcTensor, Callable[[str, float], float]], NhwcTensor]
"""The last operator's result, from the op's input and its attributes (name, default)."""


def curve(write: Curve) -> Callable[[OpContext], None]:
    """Return the writer of a function of one tensor."""

    def write_curve(step: OpContext) -> None:
        write(Formula(step), step.input(), lambda name, default: float(step.attribute(name, default)))

    return write_curve


def _selu(f: Formula, x: NhwcTensor, given: Callable[[str, float], float]) -> NhwcTensor:
    # gamma (max(0, x) + alpha (exp(min(0, x)) - 1))
    gamma, alpha = given("gamma", 1.0507009873554805), given("alpha", 1.6732632423543772)
    below = f("MUL", f("SUB", f("EXP", f("MINIMUM", x, 0.0)), 1.0), alpha * gamma)
    return f("ADD", f("MUL", f("RELU", x), gamma), below, into=f.result(x))


def _elu(f: Formula, x: NhwcTensor, given: Callable[[str, float], float]) -> NhwcTensor:
    below = f("MUL", f("SUB", f("EXP", f("MINIMUM", x, 0.0)), 1.0), given("alpha", 1.0))
    return f("ADD", f("RELU", x), below, into=f.result(x))


def _mish(f: Formula, x: NhwcTensor, given: Callable[[str, float], float]) -> NhwcTensor:
    return f("MUL", x, f("TANH", f.softplus(x)), into=f.result(x))


def _softsign(f: Formula, x: NhwcTensor, given: Callable[[str, float], float]) -> NhwcTensor:
    return f("DIV", x, f("ADD", f("ABS", x), 1.0), into=f.result(x))


def _shrink(f: Formula, x: NhwcTensor, given: Callable[[str, float], float]) -> NhwcTensor:
    # x - bias above lambd, x + bias below -lambd, else 0.
    bound, bias = given("lambd", 0.5), given("bias", 0.0)
    if bias == bound:
        above = f("RELU", f("SUB", x, bound))
        return f("ADD", above, f("MINIMUM", f("ADD", x, bound), 0.0), into=f.result(x))
    outside = f.sign(f("RELU", f("SUB", f("ABS", x), bound)))
    moved = f("SUB", x, f("MUL", f.sign(x), bias)) if bias else x
    return f("MUL", moved, outside, into=f.result(x))


_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _erf(f: Formula, x: NhwcTensor, given: Callable[[str, float], float]) -> NhwcTensor:
    """Write 1 - (a1 t + ... + a5 t^5) exp(-x^2) with t = 1 / (1 + p |x|), to within 2e-7, and the sign of x.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    size = f("ABS", x)
    t = f("DIV", 1.0, f("ADD", f("MUL", size, 0.3275911), 1.0))
    sum_ = f("MUL", t, _ERF[0])
    for factor in _ERF[1:]:
        sum_ = f("MUL", f("ADD", sum_, factor), t)
    bell = f("EXP", f("NEG", f("MUL", size, size)))
    return f("MUL", f("SUB", 1.0, f("MUL", sum_, bell)), f.sign(x), into=f.result(x))


CURVES: dict[str, Callable[[OpContext], None]] = {
    "Selu": curve(_selu), "Mish": curve(_mish), "Softsign": curve(_softsign), "Shrink": curve(_shrink), "Erf": curve(_erf),
    "Softplus": curve(lambda f, x, given: f.softplus(x, f.result(x))),
    "Sign": curve(lambda f, x, given: f.sign(x, f.result(x))),
    "Reciprocal": curve(lambda f, x, given: f("DIV", 1.0, x, into=f.result(x))),
}  # fmt: skip
"""The writers of functions that TFLite does not have, by the type of the node."""


def elu(step: OpContext) -> None:
    """Write ELU, or RELU(x) + alpha (exp(min(0, x)) - 1): LiteRT's reference kernels have no ELU, and TFLite's has no alpha."""
    if step.file.batched:
        return curve(_elu)(step)
    step.on_codes(0)
    x = step.input()
    step.file.operator("ELU", [x], [step.result(x.shape, last=x.last)], alpha=float(step.attribute("alpha", 1.0)))
