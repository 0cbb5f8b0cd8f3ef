"""Single ops on a tensor of any rank: arithmetic, reductions, and moves of elements."""

from __future__ import annotations

from qfunc.testing.grammar.draft import Block, Draft

CURVES = (
    "{} ** 2", "{} * {}", "{}.pow(2)", "{} + 1", "1 + {}", "1 - {}", "{} * 0.5", "2 * {}", "{} / 2", "{} / 3.7", "-{}",
    "{}.abs()", "torch.exp(-{}.abs())", "torch.sqrt({}.abs() + 1e-5)", "torch.log1p({}.abs())", "{}.clamp(-1, 1)",
    "{}.clamp(max=0.5)", "torch.tanh({}) * 2", "torch.sin({})", "{}.square()", "torch.reciprocal({}.abs() + 1)", "{} - 0.5",
    "F.softplus({})", "F.threshold({}, 0.1, 0.0)", "{} / ({}.abs() + 1)", "torch.where({} > 0, {}, 0.1 * {})",
    "torch.maximum({}, -{})", "F.normalize({}, dim=1)", "{} - {}.mean(-1, keepdim=True)", "{} * {}.sigmoid()",
    "torch.log({}.abs() + 0.1)", "{}.erf()", "F.softmax({}, dim=1)", "F.log_softmax({}, dim=-1)", "{}.softmax(-1)",
    "torch.floor({})", "{}.sign()", "torch.min({}, -{})",
)  # fmt: skip
"""Formulas that keep the shape."""
MOVES = (
    "{}.detach()", "{}.contiguous()", "{}.clone()", "torch.roll({}, 1, 1)", "torch.roll({}, (1, -1), (1, 2))",
    "torch.flip({}, [-1])", "{}.transpose(1, 2)", "{}.transpose(-1, -2)", "{}[:, 1:]", "{}[:, :-1]", "{}[..., ::2]",
    "{}[:, [0, 0]]", "{}.repeat_interleave(2, 1)", "{}.unsqueeze(1).squeeze(1)", "torch.stack([{}, {}], 1).flatten(1, 2)",
    "torch.stack([{}, -{}], dim=-1).sum(-1)", "torch.cat([{}, {}], dim=1)", "torch.cat([{}, torch.zeros_like({})], 1)",
    "torch.cat([{}, {} * 0.1], -1)", "{}.flatten(1, 2)", "{}.narrow(1, 0, 2)", "torch.unbind({}, 1)[0]", "{}.select(1, 0)",
    "{}.chunk(2, 1)[1]", "torch.split({}, 2, dim=1)[0]", "{}.movedim(1, -1)", "{}.to(torch.float32)", "{}.type_as({})",
    "torch.tile({}, (1, 2) + (1,) * ({}.dim() - 2))",
)  # fmt: skip
"""Formulas that move elements."""
REDUCTIONS = (
    "{}.mean(1)", "{}.mean(-1)", "{}.mean(-1, keepdim=True)", "{}.sum(1)", "{}.sum(-1, keepdim=True)", "{}.amax(1)",
    "{}.amax(-1, keepdim=True)", "{}.max(1)[0]", "{}.max(-1).values", "{}.amin(1)", "torch.logsumexp({}, 1)", "{}.std(1)",
    "{}.var(-1, unbiased=False)", "{}.norm(dim=1)", "torch.linalg.vector_norm({}, dim=-1)", "{}.prod(1)", "{}.cumsum(1)",
)  # fmt: skip
"""Formulas over one axis."""


SIZED = (
    "{} / {}.size(-1)", "{} * {}.size(-1) ** -0.5", "{} / math.sqrt({}.size(1))", "{} * ({}.shape[1] // 2)", "{}.size(1) - {}",
    "{}.shape[1] / ({}.abs() + 1)", "{}.softmax({}.dim() - 1)", "{}.mean({}.ndim - 1, keepdim=True)", "{}.sum(1) / {}.shape[1]",
    "{}[..., : {}.size(-1) // 2]", "{}[:, {}.size(1) // 2 :]", "{}.narrow(1, 0, {}.size(1) // 2)",
    "torch.roll({}, {}.size(-1) // 2, -1)", "F.pad({}, (0, {}.shape[-1] // 2))", "F.layer_norm({}, {}.shape[1:])",
    "{}.flatten({}.dim() - 2)", "{}.transpose({}.dim() - 1, 1)", "{} + torch.arange({}.size(-1)) / {}.size(-1)",
    "{}.split({}.size(1) // 2, 1)[0]", "{}.clamp(-1 / {}.size(1), 1)", "{} ** ({}.dim() - 1)",
    "F.leaky_relu({}, 1 / {}.size(1))",
    "torch.cat([{}, {}.tile((1,) * {}.dim())], {}.dim() - 1)", "{}.view({}.size(0), -1) * math.log({}.size(1) + 1)",
)  # fmt: skip
"""Formulas with numbers that Python computes from sizes."""


def curve(d: Draft, x: str) -> str:
    """Apply a formula to each element."""
    return _formula(d, x, d.pick(*CURVES))


def move(d: Draft, x: str) -> str:
    """Move elements."""
    return _formula(d, x, d.pick(*MOVES))


def size_formula(d: Draft, x: str) -> str:
    """Compute with numbers from the tensor's own sizes."""
    return _formula(d, x, d.pick(*SIZED))


def reduction(d: Draft, x: str) -> str:
    """Reduce over one axis of at least two."""
    return _formula(d, x, d.pick(*REDUCTIONS)) if len(d.shape(x)) > 2 else curve(d, x)


def _formula(d: Draft, x: str, formula: str) -> str:
    return d.let(formula.replace("{}", x))


def repeat(d: Draft, x: str) -> str:
    """Repeat along an axis, by repeat or by expand."""
    ones = ", 1" * (len(d.shape(x)) - 2)
    kept = ", -1" * (len(d.shape(x)) - 1)
    return d.let(d.pick(f"{x}.repeat(1, 2{ones})", f"{x}.unsqueeze(1).expand(-1, 2{kept}).flatten(1, 2)"))


def own_sizes(d: Draft, x: str) -> str:
    """Reshape by sizes of the tensor itself."""
    if len(d.shape(x)) == 4:
        b, c, h, w = d.unpack(4, f"{x}.shape")
        return d.let(d.pick(f"{x}.view({b}, {c}, {h} * {w})", f"{x}.reshape({b}, {c}, -1)", f"{x}.view({b}, -1, {w})",
                            f"{x}.reshape({b}, {h} * {w}, {c})"))  # fmt: skip
    return d.let(
        d.pick(f"{x}.view({x}.size(0), -1, {x}.size(-1))", f"{x}.reshape({x}.shape[0], -1, 1)", f"{x}.reshape({x}.shape)")
    )


def constant(d: Draft, x: str) -> str:
    """Combine with a parameter or a buffer over the last axis."""
    last = d.shape(x)[-1]
    value = d.pick(f"torch.randn({last})", f"torch.ones({last})", f"torch.linspace(-1, 1, {last})", "torch.tensor(0.3)")
    table = d.buffer(value) if d.chance(0.5) else d.layer("bias", f"nn.Parameter({value})")
    return d.let(d.pick(f"{x} + {table}", f"{x} * {table}", f"{x} - {table}", f"{table} - {x}", f"torch.minimum({x}, {table})"))


def combine(d: Draft, x: str) -> str:
    """Combine with an earlier value of the same shape, or with itself."""
    same = [n for n in d.names if n[0] in "xyz" and n != x and d.is_tensor(n) and d.shape(n) == d.shape(x)] or [x]
    y = d.pick(*same)
    return d.let(d.pick(f"{x} + {y}", f"{x} * {y}", f"{x} - {y}", f"torch.cat([{x}, {y}], 1)", f"torch.maximum({x}, {y})",
                        f"torch.stack([{x}, {y}], 0).mean(0)", f"({x} + {y}) / 2", f"{x} / ({y}.abs() + 1)"))  # fmt: skip


SINGLE_OPS: tuple[Block, ...] = (curve, curve, curve, move, move, reduction, repeat, own_sizes, constant, combine)
"""Single ops, the common ones more than once."""
