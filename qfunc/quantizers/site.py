"""Sites: the quantized tensors of a model."""

from __future__ import annotations

from attrs import frozen
from torch import nn

from qfunc.specs import DerivedQParams, FixedQParams, PerChannel, PerTensor, Scale, Scheme
from qfunc.specs.protocols import Estimator, Function


@frozen
class Site:
    """One quantized tensor: its name, its scheme, and the estimator and function of its qparams.

    `slot` is the slot of `op` for which it is quantized; `rule` is the index of the target's rule.  Sites with the
    same `tie` must have equal qparams, and `leader` is the way in which they agree on them.
    """

    name: str
    op: str
    slot: str
    value: Scheme | FixedQParams | DerivedQParams
    rule: int
    estimator: Estimator
    function: Function
    constant: bool = False
    tie: str | None = None
    leader: str = ""

    @property
    def scheme(self) -> Scheme:
        """The scheme of the tensor; a derived bias is symmetric per channel."""
        match self.value:
            case Scheme():
                return self.value
            case FixedQParams(scheme=scheme):
                return scheme
            case DerivedQParams():
                return Scheme(self.value.format, Scale(PerChannel(0)), rounding=self.value.rounding)

    @property
    def dynamic(self) -> bool:
        """True for an activation with scales that are computed at run time."""
        return self.scheme.scale.dynamic and not self.constant

    @property
    def by_channel(self) -> bool:
        """True for an activation with a static scale per channel; calibration determines the number of channels."""
        shared = self.scheme.scale.shared
        static = isinstance(self.value, Scheme) and not self.constant and not self.dynamic
        return static and isinstance(shared, PerChannel) and shared.axis != "channel"

    def of_outputs(self, axis: int, rank: int) -> bool:
        """Return True if a weight has one scale, or one per output channel, so that it can be factored out of the sum."""
        shared = self.scheme.scale.shared
        along = isinstance(shared, PerChannel) and (shared.axis == "channel" or int(shared.axis) % rank == axis % rank)
        return along or isinstance(shared, PerTensor)


def quantizer_path(name: str, constant: bool) -> str:
    """Return the path of a tensor's quantizer in the model: "quantizers.conv1.weight", "quantizers.relu.output".

    A part that is an attribute of nn.Module, as for an op named "to", gets an underscore.
    """
    parts = [*name.split("."), *([] if constant else ["output"])]
    return ".".join(["quantizers", *(f"{p}_" if hasattr(nn.Module, p) else p for p in parts)])
