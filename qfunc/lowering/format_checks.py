"""Errors for tensors that a vendor's format cannot represent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Int

if TYPE_CHECKING:
    from qfunc.lowering.qdq_reader import QdqModel


_INT8, _INT32 = Int(8), Int(32)


def require(site: QuantizedTensor, fits: bool, found: str, wanted: str, do: str) -> None:
    """Raise unless a tensor fits the artifact.

    Raises:
        DeployError: names the tensor.

    >>> from qfunc.lowering.quantized_tensor import Place
    >>> from qfunc.specs import Int
    >>> t = QuantizedTensor("x", "activation", "x", (), Int(4), (1.0,), (0,), "half_even", (Place("x", "x.real"),))
    >>> require(t, True, "Int(4)", "Int(8)", "Use 8 bits.")
    """
    if not fits:
        raise DeployError(where=f"tensor {site.name!r}", found=found, wanted=wanted, do=do)


def require_one_scale(site: QuantizedTensor, artifact: str) -> None:
    """Raise if a tensor has several scales, even equal ones.

    Raises:
        DeployError: names the tensor.
    """
    wanted, do = f"one scale, as {artifact} has it", "Use granularity=PerTensor()."
    require(site, len(site.scale) == 1, f"{len(site.scale)} scales", wanted, do)


def require_int8(site: QuantizedTensor, target: str, artifact: str, activation: Int = _INT8, bias: Int = _INT32) -> None:
    """Raise unless activation and bias have these formats, a weight int8 or narrower: TFLite's operators have no others.

    Raises:
        DeployError: names the tensor.
    """
    fmt = site.format
    if site.role == "bias":
        fits = fmt == bias
    elif site.role == "activation":
        fits = fmt == activation
    else:
        fits = isinstance(fmt, Int) and fmt.bits <= 8 and fmt.signed
    do = f"Use the schemes of targets.{target}, or edit.deploy(QdqLowering())."
    require(site, fits, repr(fmt), f"{activation!r}, for weights Int(8) or narrower, for biases {bias!r}", do)
    if site.role == "activation":
        require_one_scale(site, artifact)


def require_input(name: str, dtype: Any, varies: int | None, *, indices: bool = False) -> None:
    """Raise if an input is not float32 or its batch is not the first axis; `dtype` and `varies` are None for other tensors.

    `indices`: an input may also have int64 or int32.

    Raises:
        DeployError: names the input.
    """
    if dtype is not None and np.dtype(dtype) != np.float32 and not indices:
        do = "Move the ops that read it out of the deployed model."
        raise DeployError(where=f"input {name!r}", found=f"{np.dtype(dtype)} values", wanted="float32", do=do)
    if varies:
        do = "Make the batch the first axis."
        raise DeployError(where=f"input {name!r}", found=f"examples along axis {varies}", wanted="axis 0", do=do)


def require_real(source: QdqModel, name: str) -> None:
    """Raise if the model computes a tensor of indices or booleans: such tensors are not written.

    Raises:
        DeployError: names the tensor.
    """
    if name in source.producers and not source.is_real(name):
        found, do = f"{source.element_type(name)} values", "Return or compute it outside of the deployed model."
        raise DeployError(where=f"tensor {name!r}", found=found, wanted="float32", do=do)


def format_error(site: QuantizedTensor, tensor: str, found: str, wanted: str, do: str) -> DeployError:
    """Return the error of a format that cannot represent a site."""
    return DeployError(where=f"{site.role} {tensor!r}", found=found, wanted=wanted, do=do)


def require_integers(site: QuantizedTensor, tensor: str, artifact: str) -> Int:
    """Return the integer format of a site.

    Raises:
        DeployError: another format.
    """
    if isinstance(site.format, Int):
        return site.format
    raise format_error(
        site, tensor, repr(site.format), f"integers: {artifact} has no other formats", "Edit the scheme: format=Int(8)."
    )


def require_symmetric(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Raise if a tensor has zero points.

    Raises:
        DeployError: a zero point that is not 0.
    """
    if any(site.zero_point):
        found, wanted = f"zero point {next(z for z in site.zero_point if z)}", f"0: {artifact} has no zero points"
        raise format_error(site, tensor, found, wanted, "Edit the scheme: zero_point=None.")


def require_per_tensor(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Raise if the scales of a tensor differ: a file of qparams has one number for each tensor.

    Raises:
        DeployError: scales that differ.
    """
    if len(set(zip(site.scale, site.zero_point, strict=True))) > 1:
        wanted = f"one: {artifact} has one number per tensor"
        raise format_error(site, tensor, f"{len(site.scale)} scales", wanted, "Edit the scheme: Scale(PerTensor()).")


__all__ = [
    "format_error", "require", "require_input", "require_int8", "require_integers", "require_one_scale", "require_per_tensor",
    "require_real", "require_symmetric",
]  # fmt: skip
