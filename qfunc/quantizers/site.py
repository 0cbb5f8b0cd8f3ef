"""Sites: the quantized tensors of a model, and what a target decides for each."""

from __future__ import annotations

from attrs import field, frozen
from torch import Tensor, nn

from qfunc.errors import CaptureError
from qfunc.numerics.scales import has_scales_of_outputs
from qfunc.specs import DerivedQParams, FixedQParams, PerChannel, Scale, Scheme
from qfunc.specs.protocols import Estimator, Function

HOLDER = "quantizers"
"""The module of a quantized model that holds its quantizers."""


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

    scheme: Scheme = field(init=False, eq=False, repr=False)
    """The scheme of the tensor; a derived bias is symmetric per channel."""
    dynamic: bool = field(init=False, eq=False, repr=False)
    """True for an activation with scales that are computed at run time."""
    outer: bool = field(init=False, eq=False, repr=False)
    """True if such scales are within one that calibration determines."""
    by_channel: bool = field(init=False, eq=False, repr=False)
    """True for an activation with a static scale per channel; calibration determines the number of channels."""

    def __attrs_post_init__(self) -> None:
        scheme = _scheme_of(self.value)
        dynamic = scheme.scale.dynamic and not self.constant
        static = isinstance(self.value, Scheme) and not self.constant and not dynamic
        shared = scheme.scale.shared
        object.__setattr__(self, "scheme", scheme)
        object.__setattr__(self, "dynamic", dynamic)
        within = scheme.scale.within
        object.__setattr__(self, "outer", dynamic and within is not None and not within.dynamic)
        object.__setattr__(self, "by_channel", static and isinstance(shared, PerChannel) and shared.axis != "channel")

    def of_outputs(self, axis: int, rank: int) -> bool:
        """Return True if a weight has one scale, or one for each output channel: a factor of a sum of products."""
        return has_scales_of_outputs(self.scheme, axis, rank)


def _scheme_of(value: Scheme | FixedQParams | DerivedQParams) -> Scheme:
    match value:
        case Scheme():
            return value
        case FixedQParams(scheme=scheme):
            return scheme
        case DerivedQParams():
            return Scheme(value.format, Scale(PerChannel(0)), rounding=value.rounding)


def user_paths(model: nn.Module) -> list[str]:
    """Return the paths of the user's tensors and empty modules in `model.quantizers`, if the user's model has such a module.

    Raises:
        CaptureError: `model.quantizers` is a tensor.

    >>> user_paths(nn.ModuleDict({"quantizers": nn.Sequential(nn.Linear(2, 3), nn.ReLU())}))
    ['quantizers.0.weight', 'quantizers.0.bias', 'quantizers.1']
    """
    own = getattr(model, HOLDER, None)
    if isinstance(own, Tensor):
        found, wanted = f"a tensor named {HOLDER!r}", "no such tensor, because the model's quantizers have this name"
        raise CaptureError(where=f"model, attribute {HOLDER!r}", found=found, wanted=wanted, do="Rename the attribute.")
    if not isinstance(own, nn.Module):
        return []
    tensors = [name for name, _ in (*own.named_parameters(HOLDER), *own.named_buffers(HOLDER))]
    return [*tensors, *(name for name, m in own.named_modules(prefix=HOLDER) if not [*m.children()] and not m.state_dict())]


def quantizer_path(name: str, constant: bool) -> str:
    """Return the path of a tensor's quantizer in the model: "quantizers.conv1.weight", "quantizers.relu.output".

    A part that is an attribute of nn.Module, as for an op named "to", gets an underscore.
    """
    parts = [*name.split("."), *([] if constant else ["output"])]
    return ".".join([HOLDER, *(f"{p}_" if hasattr(nn.Module, p) else p for p in parts)])
