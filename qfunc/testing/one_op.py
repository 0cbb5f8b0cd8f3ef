"""Networks of one op of a kind, so that a difference is that of the kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from qfunc.errors import SpecError
from qfunc.ops.definition import Trait
from qfunc.ops.opset import OPS
from qfunc.testing.small_models import Block, SmallNet, activate

_PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}
_LAYERS = {"conv": "conv", "linear": "dense", "avg_pool": "avg_pool", "max_pool": "max_pool", "global_avg_pool": "adaptive"}
"""Kind -> the kind of a block."""
_CURVES = {
    op.kind: op.example
    for op in OPS
    if op.parameters[:1] == ("input",) and not set(op.slots) - {"input"} and op.example is not None
    and (Trait.ACTIVATION in op.traits or op.kind == "softmax")
}  # fmt: skip
"""Kind -> an op of one tensor."""

KINDS = tuple(sorted({*_PAIRS, *_LAYERS, *_CURVES}))
"""The kinds that have networks of one op."""


class OneOp(nn.Module):
    """One op of one tensor, as in the example of its record.

    >>> OneOp("sigmoid")(torch.zeros(2)).tolist()
    [0.5, 0.5]
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Return op(x)."""
        value: Tensor = _CURVES[self.kind](x)
        return value

    def __repr__(self) -> str:
        return f"OneOp({self.kind!r})"


class OnePair(nn.Module):
    """One op of two tensors, and an activation.

    >>> OnePair("sub", act="relu")(torch.tensor([3.0]), torch.tensor([5.0])).tolist()
    [0.0]
    """

    def __init__(self, kind: str, act: str | None = None) -> None:
        super().__init__()
        self.kind, self.act = kind, act

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return act(op(x, y))."""
        return activate(_PAIRS[self.kind](x, y), self.act)

    def __repr__(self) -> str:
        return f"OnePair({self.kind!r}, act={self.act!r})"


@st.composite
def networks_of(
    draw: st.DrawFn, *, kind: str, acts: Sequence[str | None] = (None,)
) -> tuple[nn.Module, Tensor | tuple[Tensor, ...]]:
    """Draw (network, input) of one op of a kind: "conv", "linear", "add", ...; shrinks to few channels and no activation.

    Args:
        kind: One of `one_op.KINDS`.
        acts: The activations after it: None, "relu" or "relu6".
    Raises:
        SpecError: a kind without networks of one op.
    """
    require_kind(kind)
    act, seed, channels = draw(st.sampled_from(list(acts))), draw(st.integers(0, 999)), draw(st.integers(1, 4))
    scale, offset = draw(st.sampled_from((1.0, 0.1, 30.0))), draw(st.sampled_from((0.0, 0.5, -0.5)))
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 16 * channels) if kind == "linear" else (2, channels, 11, 13)
    x, y = (torch.randn(shape, generator=generator) * scale + offset * scale for _ in range(2))
    if kind in _PAIRS:
        return OnePair(kind, act).eval(), (x, y * draw(st.sampled_from((1.0, 0.25, 3.0))))
    if kind in _CURVES:
        return OneOp(kind).eval(), x
    out, kernel, stride = draw(st.integers(1, 16)), draw(st.sampled_from((1, 3))), draw(st.sampled_from((1, 2)))
    match kind:
        case "conv":
            block = Block("conv", channels, out, kernel, stride, act=act)
        case "linear":
            block = Block("dense", 16 * channels, out, act=act)
        case "global_avg_pool":
            block = Block("adaptive")
        case _:
            block = Block(kind, kernel=draw(st.sampled_from((2, 3))), stride=stride)
    return SmallNet((block,), seed), x


def network_of(kind: str) -> nn.Module:
    """Return a small network of one op of a kind, without an activation.

    >>> network_of("add"), network_of("sigmoid")
    (OnePair('add', act=None), OneOp('sigmoid'))
    """
    if kind in _PAIRS:
        return OnePair(kind).eval()
    if kind in _CURVES:
        return OneOp(kind).eval()
    return SmallNet((Block(_LAYERS[kind], 3, 4, 3),))


def require_kind(kind: str) -> None:
    """Refuse a kind of ops without networks of one op.

    Raises:
        SpecError: another kind.
    """
    if kind not in KINDS:
        do = "Give check_target models= of your own."
        raise SpecError(where="testing.strategies.networks_of", found=repr(kind), wanted=", ".join(KINDS), do=do)
