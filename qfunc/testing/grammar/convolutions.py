"""Blocks of convolutional networks as model authors write them; each takes and returns the name of an image [N, C, H, W]."""

from __future__ import annotations

from qfunc.testing.grammar.draft import Block, Draft


def activation(d: Draft, x: str) -> str:
    """Apply an activation, as a module or as a function."""
    channels = d.shape(x)[1]
    common = ("nn.ReLU()", "nn.ReLU(inplace=True)", "nn.ReLU6()", "nn.SiLU()", "nn.GELU()", "nn.Hardswish()",
              "nn.LeakyReLU(0.1)", f"nn.PReLU({channels})")  # fmt: skip
    rare = ('nn.GELU("tanh")', "nn.ELU()", "nn.Mish()", "nn.Hardtanh(-1.0, 1.0)", "nn.Sigmoid()", "nn.Tanh()", "nn.Softplus()",
            "nn.Hardsigmoid()", "nn.SELU()")  # fmt: skip
    if d.chance(0.4):
        return d.let(f"{d.layer('act', d.pick(*(common if d.chance(0.85) else rare)))}({x})")
    function = d.pick("F.relu({})", "F.relu({})", "torch.relu({})", "{}.relu()", "F.relu6({})", "F.silu({})", "F.hardswish({})",
                      "F.gelu({})", "torch.sigmoid({})", "torch.clamp({}, 0, 1)", "{}.clamp(min=0)", "F.leaky_relu({}, 0.2)",
                      "{0} * torch.sigmoid({0})")  # fmt: skip
    return d.let(function.format(x))


def norm(d: Draft, x: str) -> str:
    """Apply a norm over channels."""
    c, h, w = d.shape(x)[1:]
    groups = d.pick(1, *(g for g in (2, 4, 8) if c % g == 0))
    kind = d.pick(*["batch"] * 14, "group", "group", "instance", "layer")
    made = {
        "batch": f"nn.BatchNorm2d({c})", "group": f"nn.GroupNorm({groups}, {c})", "instance": f"nn.InstanceNorm2d({c})",
        "layer": f"nn.LayerNorm([{c}, {h}, {w}])",
    }[kind]  # fmt: skip
    return d.let(f"{d.layer('norm', made)}({x})")


def conv(d: Draft, x: str, out: int = 0, kernel: int = 0, stride: int = 1, groups: int = 1) -> str:
    """Apply a convolution that keeps the size divided by the stride."""
    channels = d.shape(x)[1]
    out, kernel = out or d.pick(4, 8, 8, 12, 16), kernel or d.pick(1, 3, 3, 5)
    dilation = d.pick(1, 1, 1, 2) if kernel == 3 else 1
    options = f"padding={dilation * (kernel // 2)}"
    options += f", stride={stride}" if stride > 1 else ""
    options += f", dilation={dilation}" if dilation > 1 else ""
    options += f", groups={groups}" if groups > 1 else ""
    options += ", bias=False" if d.chance(0.3) else ""
    mode = d.pick("reflect", "replicate", "circular")
    options += f', padding_mode="{mode}"' if kernel > 1 and d.chance(0.04) else ""
    return d.let(f"{d.layer('conv', f'nn.Conv2d({channels}, {out}, {kernel}, {options})')}({x})")


def stage(d: Draft, x: str) -> str:
    """Convolution, norm, activation, the three as one Sequential at times."""
    if d.chance(0.3):
        c, out, stride = d.shape(x)[1], d.pick(4, 8, 16), d.pick(1, 1, 2)
        parts = f"nn.Conv2d({c}, {out}, 3, {stride}, 1, bias=False), nn.BatchNorm2d({out}), {d.pick('nn.ReLU()', 'nn.SiLU()')}"
        return d.let(f"{d.layer('stage', f'nn.Sequential({parts})')}({x})")
    x = conv(d, x, stride=d.pick(1, 1, 1, 2))
    x = norm(d, x) if d.chance(0.6) else x
    return activation(d, x) if d.chance(0.8) else x


def residual(d: Draft, x: str) -> str:
    """Add a block of one or two convolutions to its input."""
    c = d.shape(x)[1]
    y = conv(d, x, c, 3)
    if d.chance(0.5):
        y = conv(d, activation(d, norm(d, y)), c, 3)
    y = norm(d, y) if d.chance(0.7) else y
    if d.chance(0.2):
        y = squeeze_excitation(d, y)
    z = d.let(d.pick(f"{x} + {y}", f"{y} + {x}", f"torch.add({x}, {y})", f"{x} + {y} * 0.5", f"{x} - {y}"))
    return activation(d, z) if d.chance(0.7) else z


def depthwise(d: Draft, x: str) -> str:
    """Apply a depthwise convolution, then a pointwise one."""
    c = d.shape(x)[1]
    x = conv(d, x, c * d.pick(1, 1, 2), 3, d.pick(1, 1, 2), groups=c)
    x = activation(d, norm(d, x)) if d.chance(0.7) else x
    return conv(d, x, kernel=1)


def inverted_residual(d: Draft, x: str) -> str:
    """Apply an inverted residual: widen, depthwise, a gate at times, narrow, add."""
    c = d.shape(x)[1]
    wide = c * d.pick(2, 3, 4)
    y = activation(d, norm(d, conv(d, x, wide, 1)))
    y = activation(d, norm(d, conv(d, y, wide, d.pick(3, 5), groups=wide)))
    y = squeeze_excitation(d, y) if d.chance(0.5) else y
    return d.let(f"{x} + {norm(d, conv(d, y, c, 1))}")


def squeeze_excitation(d: Draft, x: str) -> str:
    """Gate channels by a squeeze-and-excitation block."""
    c = d.shape(x)[1]
    few, gate = max(c // 4, 1), d.pick("torch.sigmoid({})", "{}.sigmoid()", "F.hardsigmoid({})", "torch.tanh({}) + 1")
    if d.chance(0.4):  # by linear layers
        n, channels = d.unpack(2, f"{x}.shape[:2]") if d.chance(0.3) else (f"{x}.size(0)", f"{x}.size(1)")
        y = d.let(d.pick(f"{x}.mean((2, 3))", f"F.adaptive_avg_pool2d({x}, 1).view({n}, {channels})",
                         f"F.adaptive_avg_pool2d({x}, 1).flatten(1)"))  # fmt: skip
        y = d.let(f"F.relu({d.layer('reduce', f'nn.Linear({c}, {few})')}({y}))")
        y = d.let(gate.format(f"{d.layer('expand', f'nn.Linear({few}, {c})')}({y})"))
        view = d.pick(f"{y}.view({n}, {channels}, 1, 1)", f"{y}[:, :, None, None]", f"{y}.unsqueeze(-1).unsqueeze(-1)")
        return d.let(f"{x} * {view}" + d.pick("", f".expand_as({x})"))
    y = d.let(d.pick(f"{x}.mean((2, 3), keepdim=True)", f"F.adaptive_avg_pool2d({x}, 1)",
                     f"F.avg_pool2d({x}, {x}.shape[2:])"))  # fmt: skip
    y = d.let(f"{d.layer('reduce', f'nn.Conv2d({c}, {few}, 1)')}({y})")
    y = d.let(d.pick(f"F.relu({y})", f"F.silu({y})"))
    y = d.let(gate.format(f"{d.layer('expand', f'nn.Conv2d({few}, {c}, 1)')}({y})"))
    return d.let(d.pick(f"{x} * {y}", f"{y} * {x}"))


def spatial_gate(d: Draft, x: str) -> str:
    """Gate positions by mean and maximum over channels (CBAM)."""
    largest = d.pick(
        f"{x}.amax(1, keepdim=True)", f"{x}.max(1, keepdim=True)[0]", f"torch.max({x}, dim=1, keepdim=True).values"
    )
    y = d.let(f"torch.cat([{x}.mean(1, keepdim=True), {largest}], 1)")
    kernel = d.pick(3, 7)
    gate = d.layer("gate", f"nn.Conv2d(2, 1, {kernel}, padding={kernel // 2})")
    return d.let(f"{x} * torch.sigmoid({gate}({y}))")


def channel_gate(d: Draft, x: str) -> str:
    """Gate channels by a shared network of mean and maximum (CBAM)."""
    c = d.shape(x)[1]
    few = max(c // 2, 1)
    shared = d.layer("shared", f"nn.Sequential(nn.Conv2d({c}, {few}, 1), nn.ReLU(), nn.Conv2d({few}, {c}, 1))")
    y = d.let(f"{shared}(F.adaptive_avg_pool2d({x}, 1)) + {shared}(F.adaptive_max_pool2d({x}, 1))")
    return d.let(f"{x} * torch.sigmoid({y})")


def dense_block(d: Draft, x: str) -> str:
    """Concatenate the outputs of convolutions with their inputs."""
    for _ in range(d.pick(1, 2, 3)):
        y = conv(d, norm(d, x) if d.chance(0.5) else x, 4, 3)
        x = d.let(d.pick(f"torch.cat([{x}, F.relu({y})], 1)", f"torch.cat(({y}, {x}), dim=1)"))
    return x


def split_stage(d: Draft, x: str) -> str:
    """Split channels, convolve one part, join (CSP, ShuffleNet)."""
    c = d.shape(x)[1]
    a, b = d.unpack(2, d.pick(f"{x}.chunk(2, 1)", f"torch.split({x}, {(c + 1) // 2}, dim=1)", f"torch.chunk({x}, 2, dim=1)"))
    y = d.let(f"torch.cat([{a}, {activation(d, conv(d, b, d.shape(b)[1], 3))}], 1)")
    if d.chance(0.5) and c % 2 == 0:
        n, channels, h, w = d.unpack(4, f"{y}.shape") if d.chance(0.5) else d.unpack(4, f"{y}.size()")
        y = d.let(f"{y}.view({n}, 2, {channels} // 2, {h}, {w}).transpose(1, 2).reshape({n}, {channels}, {h}, {w})")
    return y


def pyramid(d: Draft, x: str) -> str:
    """Make three scales and add them top down (FPN)."""
    one = conv(d, x, 8, 3)
    two = conv(d, activation(d, one), 8, 3, 2)
    three = conv(d, activation(d, two), 8, 3, 2)
    mode = d.pick("nearest", "nearest", "bilinear")
    corners = ", align_corners=False" if mode == "bilinear" and d.chance(0.5) else ""
    for lower in (two, one):
        lateral = d.let(f"{d.layer('lateral', 'nn.Conv2d(8, 8, 1)')}({lower})")
        size = d.pick(f"size={lateral}.shape[-2:]", f"size=({d.shape(lower)[2]}, {d.shape(lower)[3]})", "scale_factor=2")
        three = d.let(f'{lateral} + F.interpolate({three}, {size}, mode="{mode}"{corners})')
    return three


def u_net(d: Draft, x: str) -> str:
    """Go one scale down and up again, and concatenate (U-Net)."""
    down = d.let(d.pick(f"F.max_pool2d({x}, 2)", f"F.avg_pool2d({x}, 2)", f"{d.layer('pool', 'nn.MaxPool2d(2)')}({x})"))
    y = activation(d, conv(d, down, 8, 3))
    up = d.pick("nn.ConvTranspose2d(8, 8, 2, stride=2)", "nn.Upsample(scale_factor=2)", "nn.ConvTranspose2d(8, 8, 4, 2, 1)",
                'nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)',
                "nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1)", "nn.ConvTranspose2d(8, 8, 2, 2, groups=8)")  # fmt: skip
    y = d.let(f"{d.layer('up', up)}({y})")
    return conv(d, d.let(f"torch.cat([{x}, {y}], dim=1)"), 8)


def pooled_context(d: Draft, x: str) -> str:
    """Join dilated convolutions and a pooled image of its size (ASPP)."""
    c = d.shape(x)[1]
    far = d.let(f"{d.layer('far', f'nn.Conv2d({c}, 4, 3, padding=2, dilation=2)')}({x})")
    near = conv(d, x, 4, 1)
    whole = conv(d, d.let(f"F.adaptive_avg_pool2d({x}, 1)"), 4, 1)
    mode = d.pick('mode="bilinear", align_corners=False', 'mode="nearest"')
    whole = d.let(f"F.interpolate({whole}, size={x}.shape[2:], {mode})" if d.chance(0.6) else f"{whole}.expand_as({near})")
    return d.let(f"torch.cat([{far}, {near}, {whole}], 1)")


IMAGE_BLOCKS: tuple[Block, ...] = (
    stage, stage, stage, residual, residual, depthwise, inverted_residual, squeeze_excitation, spatial_gate, channel_gate,
    dense_block, split_stage, pyramid, u_net, pooled_context, activation, norm,
)  # fmt: skip
"""The blocks of an image, the common ones more than once."""
