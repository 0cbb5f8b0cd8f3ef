"""What the lowerings to vendors' formats have in common: how a tensor that a format cannot say is refused."""

from __future__ import annotations

from qfunc.errors import DeployError
from qfunc.lowering.tensors import QuantizedTensor


def require(site: QuantizedTensor, said: bool, found: str, wanted: str, do: str) -> None:
    """Refuses a tensor that the artifact cannot say.

    Raises:
        DeployError: names the tensor.

    >>> from qfunc.lowering.tensors import Place
    >>> from qfunc.specs import Int
    >>> t = QuantizedTensor("x", "activation", "x", (), Int(4), (1.0,), (0,), "half_even", (Place("x", "x.real"),))
    >>> require(t, True, "Int(4)", "Int(8)", "Use 8 bits.")
    """
    if not said:
        raise DeployError(where=f"tensor {site.name!r}", found=found, wanted=wanted, do=do)


def require_per_tensor(site: QuantizedTensor, artifact: str) -> None:
    """Refuses scales per channel.

    Raises:
        DeployError: names the tensor.
    """
    wanted, do = f"one scale, as {artifact} has it", "Use granularity=PerTensor()."
    require(site, len(site.scale) == 1, f"{len(site.scale)} scales", wanted, do)


__all__ = ["require", "require_per_tensor"]
