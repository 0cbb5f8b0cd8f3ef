"""Blocks in which two ops read one parameter, buffer or layer; each takes and returns the name of a tensor."""

from __future__ import annotations

from qfunc.testing.grammar.draft import Block, Draft

FACTORS = (
    "{x} * {p} + {p}", "({x} + {p}) * {p}", "{x} * {p} * {p}", "({x} * {p}).softmax(-1) * {p}", "F.relu({x} - {p}) + {p}",
    "F.gelu({x} * {p}) * {p}", "torch.maximum({x}, {p}) - {p}", "F.layer_norm({x}, {p}.shape, {p}) * {p}",
    "F.layer_norm({x} + {p}, {p}.shape, {p}, {p})", "torch.sigmoid({x} + {p}) * ({x} + {p})",
    "torch.cat([{x} * {p}, {x} + {p}], -1)", "{x} / ({p}.abs() + 1) + {p}", "{x} * {p}.exp() + {p}", "{x} * {p} + {x} * -{p}",
)  # fmt: skip
"""Formulas in which two ops read a vector p over the last axis."""
PRODUCTS = (
    "{x} @ {w} @ {w}", "F.linear(F.linear({x}, {w}), {w})", "F.linear(F.relu(F.linear({x}, {w})), {w}.t())",
    "({x} @ {w}).softmax(-1) @ {w}", "F.gelu({x} @ {w}) @ {w}.t()", "{x} @ {w} + F.linear({x}, {w})", "({x} @ {w}) * {w}[0]",
    "torch.tanh({x} @ {w}) @ {w}", "F.linear({x}, {w}, {w}[0])", "{x} @ {w}.softmax(-1) + {x} @ {w}",
)  # fmt: skip
"""Formulas in which two ops read a square matrix w."""
VALUES = ("torch.randn({})", "torch.randn({}) * 0.1", "torch.randn({}) * 20", "torch.rand({})", "torch.ones({})")
"""The values of a constant, as code."""


def _constant(d: Draft, size: str) -> str:
    code = d.pick(*VALUES).replace("{}", size)
    return d.buffer(code) if d.chance(0.4) else d.layer("shared", f"nn.Parameter({code})")


def two_readers(d: Draft, x: str) -> str:
    """Apply two ops to one vector or one matrix."""
    last = d.shape(x)[-1]
    if d.chance(0.5):
        return d.let(d.pick(*FACTORS).replace("{p}", _constant(d, str(last))).replace("{x}", x))
    return d.let(d.pick(*PRODUCTS).replace("{w}", _constant(d, f"{last}, {last}")).replace("{x}", x))


def distant_readers(d: Draft, x: str) -> str:
    """Read one vector before and after another layer."""
    last = d.shape(x)[-1]
    p = _constant(d, str(last))
    y = d.let(d.pick(f"{x} + {p}", f"{x} * {p}", f"F.layer_norm({x}, ({last},), {p})"))
    y = d.let(d.pick(f"{d.layer('fc', f'nn.Linear({last}, {last})')}({y})", f"F.softmax({y}, -1)", f"F.gelu({y})"))
    return d.let(d.pick(f"{y} * {p}", f"{y} + {p}", f"torch.minimum({y}, {p})", f"{p} - {y}"))


def tied_linear(d: Draft, x: str) -> str:
    """Apply a linear layer, and its weight once more: as a layer, a function or a matrix."""
    last = d.shape(x)[-1]
    fc = d.layer("fc", f"nn.Linear({last}, {last})")
    y = d.let(d.pick("F.relu({})", "F.gelu({})", "torch.tanh({})").format(f"{fc}({x})"))
    again = d.pick(f"{fc}({y})", f"F.linear({y}, {fc}.weight)", f"{y} @ {fc}.weight", f"{y} * {fc}.bias",
                   f"F.linear({y}, {fc}.weight.t(), {fc}.bias)", f"{y} + {fc}.bias")  # fmt: skip
    return d.let(again)


def _shared_norm(d: Draft, x: str) -> str:
    c, rank = d.shape(x)[1], len(d.shape(x))
    batch = {3: f"nn.BatchNorm1d({c})", 4: f"nn.BatchNorm2d({c})"}.get(rank, f"nn.GroupNorm(1, {c})")
    sizes = list(d.shape(x)[1:])
    made = d.pick(*[batch] * 6, f"nn.GroupNorm(1, {c})", f"nn.LayerNorm({sizes})" if rank > 2 else batch)
    return d.layer("norm", made)


def shared_norm(d: Draft, x: str) -> str:
    """Apply one norm at two places: in a loop, before and after an activation, or after one convolution of two."""
    c, norm = d.shape(x)[1], _shared_norm(d, x)
    act = d.pick("F.relu({})", "F.relu({})", "F.silu({})", "{}.tanh()")
    kinds = ("loop", "two", "sum", "branches") if len(d.shape(x)) == 4 else ("two", "sum")
    kind = d.pick(*kinds)
    if kind == "two":
        return d.let(act.format(f"{norm}({d.let(act.format(f'{norm}({x})'))})"))
    if kind == "sum":
        return d.let(f"{norm}({x}) + {norm}({act.format(x)})")
    conv = d.layer("conv", f"nn.Conv2d({c}, {c}, {d.pick('1', '3, padding=1')}{d.pick('', ', bias=False')})")
    if kind == "branches":
        other = d.pick(conv, d.layer("conv", f"nn.Conv2d({c}, {c}, 1)"))
        return d.let(f"{norm}({conv}({x})) + {norm}({d.pick(f'{other}({act.format(x)})', act.format(x))})")
    before = d.chance(0.5)
    for _ in range(2):
        y = f"{conv}({act.format(f'{norm}({x})')})" if before else f"{norm}({act.format(f'{conv}({x})')})"
        x = d.let(f"{x} + {y}" if d.chance(0.5) else y)
    return x


SHARING_BLOCKS: tuple[Block, ...] = (
    two_readers, two_readers, distant_readers, tied_linear, shared_norm, shared_norm, shared_norm, shared_norm,
)  # fmt: skip
"""The blocks of shared constants and layers, the common ones more than once."""
