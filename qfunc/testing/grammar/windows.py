"""Pools, pads and resizes of images with many options; each takes and returns the name of an image [N, C, H, W]."""

from __future__ import annotations

from qfunc.testing.grammar.draft import Block, Draft


def max_pool(d: Draft, x: str) -> str:
    """Apply a maximum over windows."""
    kernel, stride = d.pick(2, 3, (3, 2)), d.pick(1, 2)
    options = f"{kernel}, {stride}"
    options += ", padding=1" if d.chance(0.3) else ""
    options += ", dilation=2" if d.chance(0.1) else ""
    options += ", ceil_mode=True" if d.chance(0.3) else ""
    if d.chance(0.5):
        return d.let(f"{d.layer('pool', f'nn.MaxPool2d({options})')}({x})")
    return d.let(f"F.max_pool2d({x}, {options})")


def avg_pool(d: Draft, x: str) -> str:
    """Apply a mean over windows."""
    options = f"{d.pick(2, 3, (2, 3))}, {d.pick(1, 2)}"
    options += ", padding=1" if d.chance(0.4) else ""
    options += ", ceil_mode=True" if d.chance(0.2) else ""
    options += ", count_include_pad=False" if d.chance(0.3) else ""
    options += ", divisor_override=3" if d.chance(0.05) else ""
    if d.chance(0.5):
        return d.let(f"{d.layer('pool', f'nn.AvgPool2d({options})')}({x})")
    return d.let(f"F.avg_pool2d({x}, {options})")


def own_size_pool(d: Draft, x: str) -> str:
    """Apply a pool whose window is a size of its input."""
    return d.let(d.pick(f"F.avg_pool2d({x}, {x}.shape[-1])", f"F.avg_pool2d({x}, {x}.size()[2:])",
                        f"F.max_pool2d({x}, kernel_size={x}.size(2))",
                        f"F.avg_pool2d({x}, ({x}.size(2) // 2, {x}.size(3)))"))  # fmt: skip


def adaptive_pool(d: Draft, x: str) -> str:
    """Apply an adaptive pool, also to sizes that do not divide."""
    size = d.pick("1", "(1, 1)", "2", "4", "(2, None)", "3", "(1, 2)", "7")
    kind = d.pick("avg", "avg", "max")
    if d.chance(0.5):
        return d.let(f"{d.layer('pool', f'nn.Adaptive{kind.title()}Pool2d({size})')}({x})")
    return d.let(f"F.adaptive_{kind}_pool2d({x}, {size})")


def pad(d: Draft, x: str) -> str:
    """Pad or crop by F.pad or a padding module."""
    amounts = d.pick("(1, 1, 1, 1)", "(0, 1, 0, 1)", "(1, 2)", "(-1, 0, 0, -1)", "(-1, -1, -1, -1)", "(2, -1, 0, 1)",
                     "(0, 0, 0, 0, 1, 2)", "(1, 0)")  # fmt: skip
    more = d.pick("", "", "", ", value=0.5", ", value=-1.0")
    if not more and len(amounts.split(",")) == 4 and "-" not in amounts and d.chance(0.4):
        more = d.pick(', mode="reflect"', ', mode="replicate"', ', mode="circular"')
    if amounts == "(0, 1, 0, 1)" and not more and d.chance(0.5):
        kind = d.pick("ZeroPad2d", "ReflectionPad2d")
        return d.let(f"{d.layer('pad', f'nn.{kind}({amounts})')}({x})")
    return d.let(f"F.pad({x}, {amounts}{more})")


def resize(d: Draft, x: str) -> str:
    """Resize by a factor or to a size."""
    size = d.pick("scale_factor=2", "scale_factor=2", "scale_factor=0.5", "size=(7, 9)", f"size={d.image(x)[2] * 2}",
                  f"size=({x}.shape[2] * 2, {x}.shape[3] * 2)", "scale_factor=1.5", "scale_factor=(2, 1)")  # fmt: skip
    common = ("", 'mode="nearest"', 'mode="bilinear"', 'mode="bilinear", align_corners=False',
              'mode="bilinear", align_corners=True')  # fmt: skip
    mode = d.pick(*common) if d.chance(0.9) else d.pick('mode="nearest-exact"', 'mode="bicubic"', 'mode="area"')
    options = f"{size}, {mode}" if mode else size
    if d.chance(0.3) and "area" not in mode and "shape" not in size:
        return d.let(f"{d.layer('up', f'nn.Upsample({options})')}({x})")
    return d.let(f"F.interpolate({x}, {options})")


def shuffle(d: Draft, x: str) -> str:
    """Move channels to pixels or pixels to channels."""
    return d.let(d.pick(f"F.pixel_shuffle({x}, 2)", f"{d.layer('shuffle', 'nn.PixelShuffle(2)')}({x})",
                        f"F.pixel_unshuffle({x}, 2)", f"F.channel_shuffle({x}, 2)"))  # fmt: skip


def focus(d: Draft, x: str) -> str:
    """Join every second pixel as channels (YOLO's focus)."""
    return d.let(f"torch.cat([{x}[..., ::2, ::2], {x}[..., 1::2, ::2], {x}[..., ::2, 1::2], {x}[..., 1::2, 1::2]], 1)")


def coordinates(d: Draft, x: str) -> str:
    """Join a grid of positions to the channels (CoordConv), or add it."""
    h, w = d.unpack(2, f"{x}.shape[-2:]") if d.chance(0.5) else map(str, d.image(x)[2:])
    rows, columns = d.unpack(2, f'torch.meshgrid(torch.arange({h}), torch.arange({w}), indexing="ij")')
    if d.chance(0.5):
        grid = d.let(f"torch.stack([{rows}, {columns}], 0).{d.pick(f'to({x}.dtype)', 'float()', f'type_as({x})')}")
        return d.let(f"torch.cat([{x}, {grid}.unsqueeze(0).expand({x}.shape[0], -1, -1, -1)], 1)")
    return d.let(f"{x} + ({rows} + {columns}).to({x}.dtype) / {d.pick('8', '16.0', w)}")


WINDOW_BLOCKS: tuple[Block, ...] = (
    max_pool, max_pool, avg_pool, avg_pool, own_size_pool, adaptive_pool, pad, pad, resize, resize, shuffle, focus, coordinates,
)  # fmt: skip
"""The blocks of an image, the common ones more than once."""
