"""Train a small detector on drawn shapes, deploy it to each runtime that is installed, and compare the boxes.

    python examples/detector.py [output directory]

The network ends in decoded boxes and scores, so that each artifact holds everything but the non-maximum suppression.
Training takes about half a minute and needs no download. `detections.png` shows the boxes of the float network as green lines,
and those of ONNX Runtime in int8 as magenta dashes on them. The picture of docs/detector.md is written by

    python examples/detector.py out && cp out/detections.png docs/static
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets

SIZE, STRIDES, CLASSES = 64, (8, 16), ("square", "disc", "triangle")
TARGETS = ("onnxruntime", "openvino", "litert", "executorch_xnnpack", "ncnn")


class Block(nn.Sequential):
    """A convolution, its norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU())


class Detector(nn.Module):
    """A pyramid of two levels with one head each; every cell of a level predicts a box and a score for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Block(3, 12, 2), Block(12, 24, 2))
        self.fine, self.coarse, self.mix = Block(24, 32, 2), Block(32, 32, 2), Block(64, 32)
        self.box_heads = nn.ModuleList(nn.Conv2d(32, 4, 1) for _ in STRIDES)
        self.class_heads = nn.ModuleList(nn.Conv2d(32, len(CLASSES), 1) for _ in STRIDES)
        for head in self.class_heads:
            nn.init.constant_(head.get_parameter("bias"), -4.0)  # most cells are background

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """[N, 3, H, W] -> boxes [N, cells, 4] as corners in pixels, scores [N, cells, classes]."""
        fine = self.fine(self.stem(image))
        coarse = self.coarse(fine)
        fine = self.mix(torch.cat([fine, F.interpolate(coarse, size=fine.shape[-2:])], 1))
        boxes, scores = [], []
        for level, stride, box_head, class_head in zip((fine, coarse), STRIDES, self.box_heads, self.class_heads, strict=True):
            offsets = box_head(level).flatten(2).transpose(1, 2)
            height, width = level.shape[-2:]
            y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            grid = torch.stack((x, y), -1).reshape(1, height * width, 2).to(image.dtype)
            centre = (offsets[..., :2].sigmoid() + grid) * stride
            half = offsets[..., 2:].exp() * stride / 2
            boxes.append(torch.cat([centre - half, centre + half], -1))
            scores.append(class_head(level).flatten(2).transpose(1, 2).sigmoid())
        # Boxes reach 64 and scores 1: in one tensor they would share one scale, of a quarter. As two outputs they do not.
        return {"boxes": torch.cat(boxes, 1), "scores": torch.cat(scores, 1)}


def shapes(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images [N, 3, 64, 64] with two shapes each, their boxes [N, 2, 4] and their classes [N, 2]."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.rand(size, generator=generator)

    half = 5 + 9 * draw(count, 2)
    centre = half[..., None] + draw(count, 2, 2) * (SIZE - 2 * half[..., None])
    classes = torch.randint(len(CLASSES), (count, 2), generator=generator)
    y, x = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
    images = 0.2 * draw(count, 3, SIZE, SIZE) + 0.4 * draw(count, 3, 1, 1)
    for i in range(2):
        r = half[:, i, None, None]
        dx, dy = x - centre[:, i, 0, None, None], y - centre[:, i, 1, None, None]
        square, disc = torch.maximum(dx.abs(), dy.abs()) <= r, dx**2 + dy**2 <= r**2
        inside = torch.stack([square, disc, square & (dx.abs() <= (dy + r) / 2)], 1)
        chosen = inside[torch.arange(count), classes[:, i]][:, None]
        images = torch.where(chosen, 0.4 + 0.6 * draw(count, 3, 1, 1), images)
    return images, torch.cat([centre - half[..., None], centre + half[..., None]], -1), classes


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of boxes as corners, elementwise over the leading axes."""
    common = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return common / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - common)


def loss(found: dict[str, Tensor], boxes: Tensor, classes: Tensor) -> Tensor:
    """Return the loss: each shape belongs to the cell of its centre, in the level of its size."""
    counts = [SIZE // stride for stride in STRIDES]
    centre, large = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2] - boxes[..., 0] > 18
    cells = [(centre[..., 1] // s).long() * n + (centre[..., 0] // s).long() for s, n in zip(STRIDES, counts, strict=True)]
    cell, example = torch.where(large, cells[1] + counts[0] ** 2, cells[0]), torch.arange(len(boxes))[:, None]
    wanted = torch.zeros_like(found["scores"])
    wanted[example, cell, classes] = 1.0
    p = found["scores"].clamp(1e-6, 1 - 1e-6)
    focal = -(wanted * (1 - p) ** 2 * p.log() + (1 - wanted) * p**2 * (1 - p).log()).sum() / wanted.sum()
    predicted = found["boxes"][example, cell]
    return focal + (1 - overlap(predicted, boxes)).mean() + 0.02 * (predicted - boxes).abs().mean()


def train(model: Detector, steps: int = 400) -> Detector:
    """Train by Adam; the learning rate decays to zero along a cosine."""
    images, boxes, classes = shapes(2048, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        chosen = torch.randint(len(images), (32,), generator=generator)
        optimizer.zero_grad()
        loss(model(images[chosen]), boxes[chosen], classes[chosen]).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def kept(boxes: Tensor, scores: Tensor, least: float = 0.3, most: float = 0.5) -> list[int]:
    """Return the cells of one image that a non-maximum suppression keeps, the surest first: this runs outside."""
    best, found = scores.max(-1).values, list[int]()
    for cell in best.argsort(descending=True).tolist():
        if best[cell] < least:
            break
        if all(overlap(boxes[cell], boxes[other]) < most for other in found):
            found.append(cell)
    return found


def compared(float_outputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> tuple[str, str, str]:
    """Return mean box error in pixels, mean overlap and class agreement, at the float network's detections."""
    cells = [(i, cell) for i, pair in enumerate(zip(*float_outputs.values(), strict=True)) for cell in kept(*pair)]
    index = tuple(torch.tensor(axis) for axis in zip(*cells, strict=True))
    (a, p), (b, q) = ((o["boxes"][index], o["scores"][index]) for o in (float_outputs, outputs))
    agree = (p.argmax(-1) == q.argmax(-1)).double().mean()
    return f"{(a - b).abs().mean():.2f}", f"{overlap(a, b).mean():.4f}", f"{agree:.1%}"


def picture(image: Tensor, *layers: tuple[Tensor, tuple[int, int, int], int], scale: int = 5) -> Tensor:
    """Return the image, enlarged, as bytes [H, W, 3], with the boxes of each layer in its colour.

    The lines of a layer are solid, or dashes of the given length if it is not 0.
    """
    pixels = (image.clamp(0, 1) * 255).byte().permute(1, 2, 0)
    pixels = pixels.repeat_interleave(scale, 0).repeat_interleave(scale, 1).contiguous()
    y, x = torch.meshgrid(torch.arange(pixels.shape[0]), torch.arange(pixels.shape[1]), indexing="ij")
    for boxes, colour, dash in layers:
        shown = (x + y) % (2 * dash) < dash if dash else torch.ones_like(x, dtype=torch.bool)
        for x0, y0, x1, y1 in (boxes * scale).round().int().tolist():
            outer = (x >= x0 - 1) & (x <= x1 + 1) & (y >= y0 - 1) & (y <= y1 + 1)
            inner = (x > x0 + 1) & (x < x1 - 1) & (y > y0 + 1) & (y < y1 - 1)
            pixels[outer & ~inner & shown] = torch.tensor(colour, dtype=torch.uint8)
    return pixels


def png(pixels: Tensor) -> bytes:
    """Return bytes [H, W, 3] as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)
    chunks = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
    packed = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def installed(target: Any) -> bool:
    """Return True if the target's runtime can run here."""
    missing: Callable[[], str] | None = getattr(target.runtime.runner, "missing", None)
    return missing is None or not missing()


def main(directory: Path, steps: int = 400) -> None:
    """Train, deploy to each runtime, print a table of the boxes, and write the picture."""
    torch.manual_seed(0)
    model = train(Detector(), steps)
    images, boxes, classes = shapes(64, seed=3)
    batches = list(shapes(64, seed=4)[0].split(16))
    with torch.no_grad():
        float_outputs = model(images)
    print(f"{'':<20}{'box error':>10}{'overlap':>9}{'class':>8}{'differ':>9}{'largest':>12}")
    for name in TARGETS:
        target = getattr(targets, name)
        if not installed(target):
            print(f"{name:<20} is not installed")
            continue
        calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model))
        artifact = qfunc.deploy(target)(calibrated)
        artifact.save(directory / name)
        found = target.runtime.runner.run(artifact, [images])
        outputs = {key: torch.as_tensor(value) for key, value in zip(float_outputs, found, strict=True)}
        report = qfunc.verify(target)(calibrated, [images[:8]])
        largest = max(row.largest_lsb for row in (*report.of("codes"), *report.of("output")))
        cells = compared(float_outputs, outputs)
        columns = f"{cells[0]:>10}{cells[1]:>9}{cells[2]:>8}"
        print(f"{name:<20}{columns}{report.mismatches / report.elements:>9.2%}{largest:>8.1g} LSB")
        if name == "onnxruntime":
            shown = [picture(images[i], *layers(i, float_outputs, outputs)) for i in range(4)]
            (directory / "detections.png").write_bytes(png(torch.cat(shown, 1)))
    truth = compared({"boxes": boxes, "scores": F.one_hot(classes, len(CLASSES)).double()}, nearest(float_outputs, boxes))
    print(f"float network and drawn shapes: {truth[0]} pixels, overlap {truth[1]}, class {truth[2]}")


def nearest(outputs: dict[str, Tensor], boxes: Tensor) -> dict[str, Tensor]:
    """Return for each drawn box the predicted box that overlaps most, of those with a score above 0.3."""
    sure = outputs["scores"].max(-1).values > 0.3
    shared = overlap(boxes[:, :, None], outputs["boxes"][:, None]).masked_fill(~sure[:, None], -1)
    cell, example = shared.argmax(-1), torch.arange(len(boxes))[:, None]
    return {"boxes": outputs["boxes"][example, cell], "scores": outputs["scores"][example, cell]}


def layers(image: int, *outputs: dict[str, Tensor]) -> list[tuple[Tensor, tuple[int, int, int], int]]:
    """Return the boxes of one image that the suppression keeps: of the float network, and of the runtime as dashes."""
    drawn = []
    for (boxes, scores), colour, dash in zip((o.values() for o in outputs), ((0, 200, 0), (230, 0, 230)), (0, 8), strict=True):
        drawn.append((boxes[image][kept(boxes[image], scores[image])], colour, dash))
    return drawn


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
