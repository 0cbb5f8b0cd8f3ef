"""Models whose tensors of codes are additional outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.lowering.report_fields import read_quantized

Run = Callable[[Sequence[Any]], list[Any]]


@frozen(eq=False)
class ModelWithCodes:
    """A deployed model, and the same model with its tensors of codes as additional outputs.

    `last` maps a tensor of codes to True if its channels are last in the file.  `joined` is True if the runtime takes one
    example a call, and the examples are joined along the first axis.  `executed` maps a
    tensor of codes to "integer" or "float", as the op before it is computed, as far as the runtime shows that; None if it does
    not.
    """

    plain: Run
    exposed: Run
    last: dict[str, bool]
    joined: bool = False
    executed: Mapping[str, str] | None = None
    difference: str = ""
    units: None = None

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors of codes."""
        return frozenset(self.last)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model as deployed, code tensor -> codes in the model's own layout).

        >>> shown = ModelWithCodes(lambda x: x, lambda x: [*x, np.zeros((2, 5, 7, 3))], {"conv.codes": True})
        >>> outputs, codes = shown.run([1.5])
        >>> outputs, codes["conv.codes"].shape
        ([1.5], (2, 3, 5, 7))
        """
        values = self.exposed(inputs)[-len(self.last) :] if self.last else []
        codes = {n: np.moveaxis(v, -1, 1) if last else v for (n, last), v in zip(self.last.items(), values, strict=True)}
        return self.plain(inputs), codes


@frozen(eq=False)
class ModelWithReals:
    """A deployed model, and the same model with inner tensors of real values as additional outputs, one example a call."""

    plain: Run
    exposed: Run
    names: tuple[str, ...]
    units: None = None
    difference: str = ""
    tensors: frozenset[str] = frozenset()

    @property
    def reals(self) -> frozenset[str]:
        """The names of the real tensors."""
        return frozenset(self.names)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model as deployed, real tensor -> values).

        >>> shown = ModelWithReals(lambda x: x, lambda x: [*x, 2.5], ("fc",))
        >>> shown.run([1.5])
        ([1.5], {'fc': 2.5})
        """
        values = self.exposed(inputs)[-len(self.names) :] if self.names else []
        return self.plain(inputs), dict(zip(self.names, values, strict=True))


def code_names(artifact: Any) -> set[str]:
    """Return the names of the tensors of codes of an artifact's activations."""
    return {f"{t}.codes" for s in read_quantized(artifact.report) if s["role"] == "activation" for t in s["tensors"]}


def with_code_outputs(artifact: Any, tensors: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return {code tensor of the artifact: the first tensor of the file with its codes}."""
    wanted, found = code_names(artifact), dict[str, Any]()
    for name, value in tensors:
        plain = name.removesuffix(".nhwc")
        if plain in wanted:
            found.setdefault(plain, value)
    return found
