"""Sites: the quantized tensors of a model, and the one module of the library, which holds their qparams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from qfunc.errors import CalibrationError
from qfunc.numerics.qparams import Affine, qparams_shape
from qfunc.specs import Derived, Fixed, PerChannel, Scale, Scheme
from qfunc.specs.protocols import Estimator, Function


@frozen
class Site:
    """One quantized tensor: what it is called, what holds it, how its qparams are found.

    `slot` is the slot of `op` that asked for it; `rule` the index of the target's rule; `tie` a name that
    sites share whose qparams must be equal, and `leader` how they agree.
    """

    name: str
    op: str
    slot: str
    value: Scheme | Fixed | Derived
    rule: int
    estimator: Estimator
    function: Function
    constant: bool = False
    tie: str | None = None
    leader: str = ""

    @property
    def scheme(self) -> Scheme:
        """How the hardware holds the tensor; a derived bias is symmetric per channel."""
        match self.value:
            case Scheme():
                return self.value
            case Fixed(scheme=scheme):
                return scheme
            case Derived():
                return Scheme(self.value.format, Scale(PerChannel(0)), rounding=self.value.rounding)


def seat_path(site: Site) -> str:
    """Where a site's quantizer sits in the model: "quantizers.conv1.weight", "quantizers.relu.output".

    A part that nn.Module has itself, as in the path of an op named "to", gets an underscore.
    """
    parts = [*site.name.split("."), *([] if site.constant else ["output"])]
    return ".".join(["quantizers", *(f"{p}_" if hasattr(nn.Module, p) else p for p in parts)])


class FakeQuantize(nn.Module):
    """x as the hardware holds it: the site's quantize function with this site's parameters.

    The parameters have their final shapes from the start, so that checkpoints and data parallelism work;
    until they are known the scale is NaN and calling is an error.

    Raises:
        CalibrationError: called before its qparams are known.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, site: Site, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.site = site
        held = (shape[0],) if isinstance(site.value, Derived) else qparams_shape(site.scheme, shape)
        self.register_buffer("scale", torch.full(held, torch.nan))
        self.register_buffer("zero_point", torch.zeros(held))
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        """The quantized value of x, in real units and in the dtype of x."""
        if not self.ready:
            raise CalibrationError(
                where=f"site {self.site.name!r}",
                found="no qparams yet",
                wanted="a calibrated model",
                do="Run qfunc.calibrate(batches)(quantized), or load qparams.",
            )
        result: Tensor = self.site.function.apply(self.qparams(), x, self.site.scheme)
        return result

    def qparams(self) -> Affine:
        """The current qparams."""
        return Affine(self.scale, self.zero_point)

    def hold(self, qparams: Affine) -> None:
        """Sets the qparams; for transforms, on models that they own."""
        self.scale.copy_(qparams.scale.reshape(self.scale.shape))
        self.zero_point.copy_(qparams.zero_point.reshape(self.scale.shape))
        self.ready = True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # model.half() must not round the qparams: they follow the device, not the dtype.
        def moved(t: Tensor) -> Tensor:
            new = fn(t)
            return t.to(new.device) if new.dtype != t.dtype else new

        return super()._apply(moved, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.ready = not bool(self.scale.isnan().any())

    def extra_repr(self) -> str:
        """Name, format and, for one scale, its value."""
        held = f"scale={self.scale.item():.6g}" if self.ready and self.scale.ndim == 0 else f"scale={tuple(self.scale.shape)}"
        return f"{self.site.name!r}, {self.site.scheme.format}, {held}"
