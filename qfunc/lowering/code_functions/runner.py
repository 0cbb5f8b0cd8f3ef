"""The runner of a chip whose vendor gives functions on codes: it walks the file, and they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from qfunc.specs import Bounds
from qfunc.specs._check import instance_of, refuse
from qfunc.specs._values import readable


def _pairs(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


def _functions(instance: Any, attribute: Any, value: Any) -> None:
    pairs = value if isinstance(value, tuple) else ()
    if not pairs or not all(type(p) is tuple and len(p) == 2 and type(p[0]) is str and callable(p[1]) for p in pairs):
        do = 'Give e.g. {"Conv": conv, "Add": add}.'
        raise refuse(instance, "functions", value, "a mapping from ONNX operators to functions of a CodeOp", do)


@readable
@frozen
class CodesRunner:
    """Runs a Q/DQ file: the units on integers by functions on codes, everything else in float32.

    A unit is one op with the activations that are fused with it, which clamp its codes.  Ops that only move codes (Flatten,
    Reshape, Transpose, Squeeze, Unsqueeze, MaxPool, Identity) need no function.  Ops in float are computed by ONNX's reference
    evaluator, and the host quantizes as the scheme says.  `inside` shows all codes.

    Args:
        functions: ONNX operator -> function of a `CodeOp` that returns its codes, or its real values if it has no codes.
        bounds: How a bound v of an activation becomes a code, as of `Kernel`.
    Raises:
        SpecError: no functions.
        VerifyError: from `run`: an op on codes without a function, codes out of range, or a unit of several ops.

    >>> def add(op):
    ...     a, b = op.inputs
    ...     real = (a.codes - float(a.zero_point)) * a.scale + (b.codes - float(b.zero_point)) * b.scale
    ...     return np.clip(np.rint(real / op.scale) + op.zero_point, op.low, op.high)
    >>> import numpy as np
    >>> [kind for kind, _ in CodesRunner({"Add": add}).functions]
    ['Add']
    """

    functions: tuple[tuple[str, Callable[[Any], Any]], ...] = field(converter=_pairs, validator=_functions)
    bounds: Bounds = field(default=Bounds(), validator=instance_of(Bounds))

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs in float32."""
        return list(self.inside(artifact).run(inputs)[0])

    def inside(self, artifact: Any) -> Any:
        """Return a view of the artifact that also shows its codes."""
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.code_functions.execution import Execution

        return Execution(artifact, dict(self.functions), self.bounds)
