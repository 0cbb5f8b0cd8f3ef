"""What `verify` wants of the view of a runner: its attributes, and the tensors that its `run` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from qfunc.errors import QfuncError, VerifyError
from qfunc.lowering.runner_support import raised
from qfunc.transforms.validate import describe

_ATTRIBUTES = ("tensors", "run", "units", "difference")


def view_of(runner: Any, artifact: Any) -> Any:
    """Return the runner's view of an artifact.

    Raises:
        VerifyError: `inside` raises, or the view lacks an attribute that `specs.InspectableRunner` describes.
    """
    name = type(runner).__name__
    where, wanted = f"verify, {name}.inside", f"a view with {', '.join(_ATTRIBUTES)}"
    try:
        view = runner.inside(artifact)
    except QfuncError:
        raise
    except Exception as e:  # a user's runner may raise anything
        raise VerifyError(where=where, found=raised(e), wanted=wanted, do=f"Correct {name}.inside.") from e
    missing = [a for a in _ATTRIBUTES if not hasattr(view, a)]
    if missing:
        found, do = f"{describe(view)} without {', '.join(missing)}", _remedy(missing)
        raise VerifyError(where=where, found=found, wanted=wanted, do=do)
    if isinstance(view.tensors, str) or not isinstance(view.tensors, Iterable):
        found, wanted = f"tensors {view.tensors!r}", "a frozenset of names, such as 'conv.codes'"
        raise VerifyError(where=where, found=found, wanted=wanted, do="Return such a frozenset as tensors.")
    return view


def _remedy(missing: list[str]) -> str:
    empty = {"units": "units = None if it shows no units", "difference": 'difference = "" if it equals the artifact'}
    if any(a not in empty for a in missing):
        return f"Add {', '.join(missing)}, as specs.InspectableRunner describes them."
    return f"Write {', and '.join(empty[a] for a in missing)}."


def shown_by(runner: Any, value: Any, names: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """Return the outputs and the inner tensors that the `run` of the runner's view returned.

    Args:
        runner: The runner.
        value: What `run` returned.
        names: The names of the tensors that are compared.
    Raises:
        VerifyError: it is no pair of outputs and a dict, the dict lacks one of these tensors, or has another value for it.
    """
    where = f"verify, view of {type(runner).__name__}"
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[1], Mapping):
        do = "Return (outputs, codes), where codes has an array for each of the view's tensors."
        raise VerifyError(where=where, found=describe(value), wanted="a pair of outputs and a dict", do=do)
    outputs, shown = value
    for name in names:
        if name not in shown:
            found, do = f"no {name!r} among the tensors that run returns", "Return it, or leave it out of the view's tensors."
            raise VerifyError(where=where, found=found, wanted="all that the view names", do=do)
        as_numbers(shown[name], f"{where}, tensor {name!r}")
    return outputs, dict(shown)


def as_numbers(value: Any, where: str) -> Tensor:
    """Return an array of a runtime as a tensor.

    Raises:
        VerifyError: it is no array of numbers.

    >>> as_numbers([1.5], "verify, output 0")
    tensor([1.5000])
    """
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as e:
        found, wanted = describe(value), "an array of numbers"
        raise VerifyError(where=where, found=found, wanted=wanted, do="Return a NumPy array or a tensor.") from e


def require_shape(actual: Tensor, emulated: Tensor, runner: Any, name: str) -> None:
    """Raise unless the codes of a view have the shape of the model's tensor.

    Raises:
        VerifyError: they have another one; the message names the runner and the tensor.
    """
    if actual.shape != emulated.shape:
        where, wanted = f"verify, view of {type(runner).__name__}, tensor {name!r}", f"{list(emulated.shape)}"
        found, do = f"codes of the shape {list(actual.shape)}", "Return the codes in the model's layout, of the whole batch."
        raise VerifyError(where=where, found=found, wanted=wanted, do=do)
