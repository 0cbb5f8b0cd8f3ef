"""Transforms as values: the function that returns a transform, its arguments, and the transform itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from attrs import frozen
from torch import Tensor


@frozen(eq=False, repr=False)
class Transform:
    """A transform that prints as the code that makes it; it compares, hashes and pickles by that code.

    Tensors, modules and other values without a hash, such as a list of batches, are equal if they are identical.

    Args:
        maker: The public function that returned it.
        arguments: All arguments of the function by name.
        apply: Computes the result.

    >>> import qfunc
    >>> qfunc.corrections.replace_relu6() == qfunc.corrections.replace_relu6(), qfunc.equalize(3.0) == qfunc.equalize()
    (True, False)
    >>> qfunc.equalize(3.0)
    equalize(deviations=3.0)
    """

    maker: Callable[..., Any]
    arguments: Mapping[str, Any]
    apply: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result for a model."""
        return self.apply(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transform):
            return NotImplemented
        return self.maker is other.maker and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.maker, self._key()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.maker, {name: value for name, value in self.arguments.items() if not self._is_default(name)})

    def __repr__(self) -> str:
        found = []
        for name, parameter in signature(self.maker).parameters.items():
            if not self._is_default(name):
                value = repr(self.arguments[name])
                required = parameter.default is Parameter.empty and parameter.kind is not Parameter.KEYWORD_ONLY
                found.append(value if required else f"{name}={value}")
        return f"{self.maker.__name__}({', '.join(found)})"

    def _is_default(self, name: str) -> bool:
        default = signature(self.maker).parameters[name].default
        return default is not Parameter.empty and _key(self.arguments[name]) == _key(default)

    def _key(self) -> tuple[Any, ...]:
        return tuple((name, _key(value)) for name, value in self.arguments.items())


def _made(maker: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return maker(**arguments)


def _key(value: Any) -> Any:
    # Return a hashable value that equals that of another argument if the two are the same code.
    if isinstance(value, Mapping):
        return "mapping", tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, Tensor) or type(value).__hash__ is None:
        return type(value), id(value)
    return value
