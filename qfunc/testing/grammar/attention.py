"""Blocks of transformers as model authors write them; each takes and returns the name of tokens [N, T, C]."""

from __future__ import annotations

from qfunc.testing.grammar.draft import Block, Draft


def token_norm(d: Draft, x: str) -> str:
    """Normalize over the last axis: LayerNorm, or RMSNorm by formula or by module."""
    c = d.shape(x)[-1]
    kind = d.pick("layer", "layer", "layer", "plain", "rms", "formula")
    if kind == "formula":
        weight = d.layer("weight", f"nn.Parameter(torch.ones({c}))")
        power = d.pick(f"{x}.pow(2)", f"{x} ** 2", f"{x} * {x}")
        y = d.let(f"({power}).mean(-1, keepdim=True)")
        return d.let(f"{x} * torch.rsqrt({y} + 1e-6) * {weight}")
    made = {
        "layer": f"nn.LayerNorm({c})", "plain": f"nn.LayerNorm({c}, elementwise_affine=False)",
        "rms": f"nn.RMSNorm({c}, eps=1e-5)",
    }[kind]  # fmt: skip
    return d.let(f"{d.layer('norm', made)}({x})")


def _heads(d: Draft, x: str) -> tuple[list[str], int]:
    # Names of q, k, v of shape [N, heads, T, C / heads].
    c = d.shape(x)[-1]
    heads = d.pick(*(h for h in (1, 2, 4) if c % h == 0))
    n, t, channels = d.unpack(3, f"{x}.shape") if d.chance(0.6) else (f"{x}.size(0)", f"{x}.size(1)", str(c))
    bias = d.pick("", ", bias=False")
    if d.chance(0.5):
        y = d.let(f"{d.layer('qkv', f'nn.Linear({c}, {3 * c}{bias})')}({x})")
        y = d.let(f"{y}.{d.pick('view', 'reshape')}({n}, {t}, 3, {heads}, {channels} // {heads}).permute(2, 0, 3, 1, 4)")
        q, k, v = d.unpack(3, d.pick(f"{y}.unbind(0)", f"({y}[0], {y}[1], {y}[2])", f"torch.unbind({y}, 0)"))
        return [q, k, v], heads
    each = []
    for name in "qkv":
        y = d.let(f"{d.layer(name, f'nn.Linear({c}, {c}{bias})')}({x})")
        each.append(d.let(f"{y}.view({n}, -1, {heads}, {channels} // {heads}).transpose(1, 2)"))
    return each, heads


def attention(d: Draft, x: str) -> str:
    """Apply self-attention, by formula or by scaled_dot_product_attention."""
    (q, k, v), heads = _heads(d, x)
    c, t = d.shape(x)[-1], d.shape(x)[1]
    if d.chance(0.4):
        options = d.pick("", "", ", scale=1.0", ", is_causal=True", ", dropout_p=0.0", f", scale={(c // heads) ** -0.5}")
        y = d.let(f"F.scaled_dot_product_attention({q}, {k}, {v}{options})")
    else:
        scale = d.pick(f"{q}.size(-1) ** -0.5", f"{(c // heads) ** -0.5}", f"({c} // {heads}) ** -0.5",
                       f"(1.0 / math.sqrt({q}.size(-1)))", "1.0")  # fmt: skip
        transposed = d.pick(f"{k}.transpose(-2, -1)", f"{k}.transpose(2, 3)", f"{k}.permute(0, 1, 3, 2)")
        divided = f"({q} @ {transposed}) / math.sqrt({q}.size(-1))"
        y = d.let(d.pick(f"({q} * {scale}) @ {transposed}", f"({q} @ {transposed}) * {scale}", divided,
                         f"torch.matmul({q}, {transposed}) * {scale}",
                         f'torch.einsum("bhid,bhjd->bhij", {q}, {k}) * {scale}'))  # fmt: skip
        if d.chance(0.2):
            y = d.let(f"{y} + {d.layer('bias', f'nn.Parameter(torch.randn(1, {heads}, {t}, {t}) * 0.1)')}")
        if d.chance(0.15):
            mask = d.buffer(f"torch.ones({t}, {t}).tril() == 0")
            value = d.pick("-1e9", 'float("-inf")', "-100.0")
            y = d.let(f"{y}.masked_fill({mask}, {value})")
        y = d.let(d.pick(f"{y}.softmax(-1)", f"F.softmax({y}, dim=-1)", f"torch.softmax({y}, -1)"))
        y = d.let(d.pick(f"{y} @ {v}", f"torch.matmul({y}, {v})"))
    joined = d.pick(f"{y}.transpose(1, 2).reshape({x}.shape)", f"{y}.transpose(1, 2).flatten(2)",
                    f"{y}.transpose(1, 2).contiguous().view({x}.size(0), {x}.size(1), {c})",
                    f"{y}.permute(0, 2, 1, 3).reshape({x}.shape[0], -1, {c})")  # fmt: skip
    return d.let(f"{d.layer('out', f'nn.Linear({c}, {c})')}({joined})")


def module_attention(d: Draft, x: str) -> str:
    """Apply nn.MultiheadAttention."""
    c = d.shape(x)[-1]
    layer = d.layer("attention", f"nn.MultiheadAttention({c}, {d.pick(1, 2)}, batch_first=True)")
    return d.let(f"{layer}({x}, {x}, {x}, need_weights=False)[0]")


def perceptron(d: Draft, x: str) -> str:
    """Apply two linear layers with an activation or a gate between them."""
    c = d.shape(x)[-1]
    wide = c * d.pick(2, 4)
    kind = d.pick("plain", "plain", "chunk", "glu", "gated")
    y = d.let(f"{d.layer('fc', f'nn.Linear({c}, {wide})')}({x})")
    if kind == "plain":
        y = d.let(d.pick(f"F.gelu({y})", f'F.gelu({y}, approximate="tanh")', f"F.relu({y})", f"F.silu({y})",
                         f"F.relu({y}) ** 2", f"F.relu({y}).square()"))  # fmt: skip
    elif kind == "chunk":
        a, b = d.unpack(2, f"{y}.chunk(2, dim=-1)")
        y = d.let(d.pick(f"F.silu({a}) * {b}", f"{a} * F.gelu({b})", f"{a} * torch.sigmoid({b})"))
    elif kind == "glu":
        y = d.let(d.pick(f"F.glu({y})", f"F.glu({y}, dim=-1)", f"{d.layer('glu', 'nn.GLU()')}({y})"))
    else:
        y = d.let(f"F.gelu({y}) * {d.layer('gate', f'nn.Linear({c}, {wide})')}({x})")
    return d.let(f"{d.layer('fc', f'nn.Linear({d.shape(y)[-1]}, {c})')}({y})")


def encoder_block(d: Draft, x: str) -> str:
    """Add attention and a perceptron to the tokens, each after a norm or before one."""
    part = module_attention if d.chance(0.15) else attention
    if d.chance(0.7):
        x = d.let(f"{x} + {part(d, token_norm(d, x))}")
        y = perceptron(d, token_norm(d, x))
        scaled = f" * {d.layer('gamma', f'nn.Parameter(torch.full(({d.shape(x)[-1]},), 0.1))')}" if d.chance(0.2) else ""
        return d.let(f"{x} + {y}{scaled}")
    x = token_norm(d, d.let(f"{x} + {part(d, x)}"))
    return token_norm(d, d.let(f"{x} + {perceptron(d, x)}"))


def window_block(d: Draft, x: str) -> str:
    """Attend inside shifted windows (Swin): tokens to an image, roll, partition, attend, and back."""
    t, c = d.shape(x)[1:]
    side = round(t**0.5)
    half = max(side // 2, 1)
    y = d.let(f"{token_norm(d, x)}.view(-1, {side}, {side}, {c})")
    shifted = d.chance(0.5)
    y = d.let(f"torch.roll({y}, shifts=(-1, -1), dims=(1, 2))") if shifted else y
    y = d.let(f"{y}.view(-1, {side // half}, {half}, {side // half}, {half}, {c}).permute(0, 1, 3, 2, 4, 5)")
    y = attention(d, d.let(f"{y}.reshape(-1, {half * half}, {c})"))
    y = d.let(f"{y}.view(-1, {side // half}, {side // half}, {half}, {half}, {c}).permute(0, 1, 3, 2, 4, 5)")
    y = d.let(f"{y}.reshape(-1, {side}, {side}, {c})")
    y = d.let(f"torch.roll({y}, shifts=(1, 1), dims=(1, 2))") if shifted else y
    return d.let(f"{x} + {y}.view({x}.shape)" if d.chance(0.5) else f"{x} + {y}.flatten(1, 2)")


def merge_patches(d: Draft, x: str) -> str:
    """Join each 2x2 tokens into one of twice the width (Swin)."""
    t, c = d.shape(x)[1:]
    side = round(t**0.5)
    y = d.let(f"{x}.view({x}.shape[0], {side}, {side}, {c})")
    corners = ", ".join(f"{y}[:, {i}::2, {j}::2, :]" for j in (0, 1) for i in (0, 1))
    y = d.let(f"torch.cat([{corners}], -1).flatten(1, 2)")
    return d.let(f"{d.layer('merge', f'nn.Linear({4 * c}, {2 * c}, bias=False)')}({y})")


def rotary(d: Draft, x: str) -> str:
    """Rotate halves of the channels by the position (RoPE)."""
    t, c = d.shape(x)[1:]
    sine, cosine = (d.buffer(f"torch.{f}(torch.arange({t})[:, None] / torch.arange(1, {c} + 1))") for f in ("sin", "cos"))
    a, b = d.unpack(2, f"{x}.chunk(2, -1)")
    return d.let(f"{x} * {cosine} + torch.cat((-{b}, {a}), -1) * {sine}")


def mixer(d: Draft, x: str) -> str:
    """Mix tokens by a linear layer over them (MLP-Mixer)."""
    t = d.shape(x)[1]
    y = d.let(f"F.gelu({d.layer('mix', f'nn.Linear({t}, {t})')}({token_norm(d, x)}.transpose(1, 2)))")
    return d.let(f"{x} + {y}.transpose(1, 2)")


TOKEN_BLOCKS: tuple[Block, ...] = (
    encoder_block,
    encoder_block,
    encoder_block,
    window_block,
    merge_patches,
    rotary,
    mixer,
    perceptron,
)
"""The blocks of tokens, the common ones more than once."""
