"""How the lowerings to vendors' formats refuse a tensor that a format cannot say."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Int


def require(site: QuantizedTensor, said: bool, found: str, wanted: str, do: str) -> None:
    """Refuses a tensor that the artifact cannot say.

    Raises:
        DeployError: names the tensor.

    >>> from qfunc.lowering.quantized_tensor import Place
    >>> from qfunc.specs import Int
    >>> t = QuantizedTensor("x", "activation", "x", (), Int(4), (1.0,), (0,), "half_even", (Place("x", "x.real"),))
    >>> require(t, True, "Int(4)", "Int(8)", "Use 8 bits.")
    """
    if not said:
        raise DeployError(where=f"tensor {site.name!r}", found=found, wanted=wanted, do=do)


def require_one_scale(site: QuantizedTensor, artifact: str) -> None:
    """Refuses several scales, even if they are equal.

    Raises:
        DeployError: names the tensor.
    """
    wanted, do = f"one scale, as {artifact} has it", "Use granularity=PerTensor()."
    require(site, len(site.scale) == 1, f"{len(site.scale)} scales", wanted, do)


def require_int8(site: QuantizedTensor, target: str, artifact: str) -> None:
    """Refuses what TFLite's operators do not hold: they hold activations in int8, constants in less too, biases in int32.

    Raises:
        DeployError: names the tensor.
    """
    fmt = site.format
    if site.role == "bias":
        said = fmt == Int(32)
    elif site.role == "activation":
        said = fmt == Int(8)
    else:
        said = isinstance(fmt, Int) and fmt.bits <= 8 and fmt.signed
    do = f"Use the schemes of targets.{target}, or edit.deploy(QdqLowering())."
    require(site, said, repr(fmt), "Int(8), of weights at most, biases Int(32)", do)
    if site.role == "activation":
        require_one_scale(site, artifact)


def require_input(name: str, dtype: Any, varies: int | None) -> None:
    """Refuses an input whose values are not float32, or whose examples do not lie along the first axis; None: it is no input.

    Raises:
        DeployError: names the input.
    """
    if dtype is not None and np.dtype(dtype) != np.float32:
        do = "Deploy what reads them apart, by another target."
        raise DeployError(where=f"input {name!r}", found=f"{np.dtype(dtype)} values", wanted="float32", do=do)
    if varies:
        do = "Let the first axis be the batch's."
        raise DeployError(where=f"input {name!r}", found=f"examples along axis {varies}", wanted="axis 0", do=do)


def format_error(site: QuantizedTensor, tensor: str, found: str, wanted: str, do: str) -> DeployError:
    """The error of a format that cannot hold a site."""
    return DeployError(where=f"{site.role} {tensor!r}", found=found, wanted=wanted, do=do)


def require_integers(site: QuantizedTensor, tensor: str, artifact: str) -> Int:
    """The integer format of a site.

    Raises:
        DeployError: another format.
    """
    if isinstance(site.format, Int):
        return site.format
    raise format_error(site, tensor, repr(site.format), f"integers: {artifact} has no other formats", "Edit the scheme.")


def require_symmetric(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Refuses zero points.

    Raises:
        DeployError: a zero point that is not 0.
    """
    if any(site.zero_point):
        found, wanted = f"zero point {next(z for z in site.zero_point if z)}", f"0: {artifact} has no zero points"
        raise format_error(site, tensor, found, wanted, "Edit the scheme: zero_point=None.")


def require_per_tensor(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Refuses scales that differ, which one number in a file beside the model cannot say.

    Raises:
        DeployError: a scale a channel.
    """
    if len(set(zip(site.scale, site.zero_point, strict=True))) > 1:
        wanted = f"one: {artifact} has one number a tensor"
        raise format_error(site, tensor, f"{len(site.scale)} scales", wanted, "Edit the scheme: Scale(PerTensor()).")


__all__ = [
    "format_error", "require", "require_input", "require_int8", "require_integers", "require_one_scale", "require_per_tensor",
    "require_symmetric",
]  # fmt: skip
