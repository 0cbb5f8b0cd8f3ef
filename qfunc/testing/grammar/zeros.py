"""Tensors that are zero whatever the input is, and layers whose weights are zero."""

from __future__ import annotations

from qfunc.testing.grammar.draft import Block, Draft

ZEROS = (
    "{} - {}", "{} * 0", "F.relu(-{}.abs())", "torch.zeros_like({})", "{}.clamp(0, 0)", "torch.minimum({}.abs(), {} * 0)",
    "{}.abs().clamp(max=0)", "0 * {} + {} * 0.0",
)  # fmt: skip
"""Formulas whose value is zero."""
READERS = (
    "{z}", "{x} + {z}", "{z} + {x}", "{x} * {z}", "torch.cat([{x}, {z}], 1)", "torch.cat([{z}, {z}], 1)", "{x} - {z}",
    "torch.maximum({x}, {z})", "{z}.softmax(-1)", "torch.sigmoid({z}) * {x}", "torch.stack([{x}, {z}], 1).sum(1)",
    "{z}.mean(-1)", "F.normalize({z} + 1e-3, dim=1)", "F.gelu({z}) + {x}", "{x} @ {z}.transpose(-1, -2)",
    "{x}.softmax(-1) + {z}",
)  # fmt: skip
"""Formulas that read a zero z and another value x."""


def zero_value(d: Draft, x: str) -> str:
    """Compute a zero, and an op that reads it."""
    return d.let(d.pick(*READERS).replace("{z}", d.let(d.pick(*ZEROS).replace("{}", x))).replace("{x}", x))


def zero_constant(d: Draft, x: str) -> str:
    """Read a parameter or a buffer of zeros."""
    size = d.pick(str(d.shape(x)[-1]), "1", ", ".join(map(str, (1, *d.shape(x)[1:]))))
    code = d.pick(f"torch.zeros({size})", f"torch.zeros({size})", f"torch.full(({size},), -0.0)", "torch.tensor(0.0)")
    zero = d.buffer(code) if d.chance(0.5) else d.layer("zero", f"nn.Parameter({code})")
    fitting = [f for f in READERS if "{x}" in f and not any(word in f for word in ("transpose", "cat(", "stack("))]
    return d.let(d.pick(*fitting).replace("{z}", zero).replace("{x}", x))


def zero_layer(d: Draft, x: str) -> str:
    """Apply a layer whose weights are zero (zero-initialized branches and adapters)."""
    c, last = d.shape(x)[1], d.shape(x)[-1]
    if len(d.shape(x)) == 4 and d.chance(0.5):
        y = d.let(f"F.conv2d({x}, {d.layer('zero', f'nn.Parameter(torch.zeros({c}, {c}, 1, 1))')})")
    else:
        y = d.let(f"F.linear({x}, {d.layer('zero', f'nn.Parameter(torch.zeros({last}, {last}))')})")
    return d.let(f"{x} + {y}") if d.chance(0.6) else y


ZERO_BLOCKS: tuple[Block, ...] = (zero_value, zero_value, zero_constant, zero_layer)
"""The blocks of zeros, the common ones more than once."""

__all__ = ["ZERO_BLOCKS"]
