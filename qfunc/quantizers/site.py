"""Sites: the quantized tensors of a model."""

from __future__ import annotations

from attrs import frozen
from torch import nn

from qfunc.specs import DerivedQParams, FixedQParams, PerChannel, PerTensor, Scale, Scheme
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
    value: Scheme | FixedQParams | DerivedQParams
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
            case FixedQParams(scheme=scheme):
                return scheme
            case DerivedQParams():
                return Scheme(self.value.format, Scale(PerChannel(0)), rounding=self.value.rounding)

    @property
    def dynamic(self) -> bool:
        """Whether this is an activation whose scales are found when the model runs."""
        return self.scheme.scale.dynamic and not self.constant

    @property
    def by_channel(self) -> bool:
        """Whether this is an activation with a static scale for each channel: how many there are, its values tell."""
        shared = self.scheme.scale.shared
        static = isinstance(self.value, Scheme) and not self.constant and not self.dynamic
        return static and isinstance(shared, PerChannel) and shared.axis != "channel"

    def of_outputs(self, axis: int, rank: int) -> bool:
        """Return True if a weight has one scale, or one an output channel: those that a sum of products can be multiplied by."""
        shared = self.scheme.scale.shared
        along = isinstance(shared, PerChannel) and (shared.axis == "channel" or int(shared.axis) % rank == axis % rank)
        return along or isinstance(shared, PerTensor)


def quantizer_path(name: str, constant: bool) -> str:
    """Where the quantizer of a tensor sits in the model: "quantizers.conv1.weight", "quantizers.relu.output".

    A part that nn.Module has itself, as in the path of an op named "to", gets an underscore.
    """
    parts = [*name.split("."), *([] if constant else ["output"])]
    return ".".join(["quantizers", *(f"{p}_" if hasattr(nn.Module, p) else p for p in parts)])
