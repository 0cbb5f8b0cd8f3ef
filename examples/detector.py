"""Train a small detector on drawn shapes, deploy it to each runtime that is installed, and compare the boxes.

    python examples/detector.py [output directory]

The network ends as YOLOv8 does, in one tensor of decoded boxes and scores, so that each artifact holds everything but the
non-maximum suppression.
Training takes about a minute and needs no download. `detections.png` shows the boxes of the float network as green lines,
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
from qfunc.specs import edit

SIZE, STRIDES, CLASSES, BINS = 64, (8, 16), ("square", "disc", "triangle"), 8
TARGETS = ("onnxruntime", "openvino", "litert", "executorch_xnnpack", "ncnn")


class Block(nn.Sequential):
    """A convolution, its norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU())


class Detector(nn.Module):
    """A pyramid of two levels with the head of YOLOv8; every cell predicts a box and a score for each class.

    A distance from the cell to an edge of its box is the mean of `BINS` places, of which a softmax gives the shares.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Block(3, 12, 2), Block(12, 24, 2))
        self.fine, self.coarse, self.mix = Block(24, 32, 2), Block(32, 32, 2), Block(64, 32)
        self.box_heads = nn.ModuleList(nn.Conv2d(32, 4 * BINS, 1) for _ in STRIDES)
        self.class_heads = nn.ModuleList(nn.Conv2d(32, len(CLASSES), 1) for _ in STRIDES)
        for head in self.class_heads:
            nn.init.constant_(head.get_parameter("bias"), -4.0)  # most cells are background
        self.places = nn.Conv2d(BINS, 1, 1, bias=False).requires_grad_(False)
        self.places.weight.copy_(torch.arange(BINS).view(1, BINS, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, 4 + classes, cells]: the centre and the size of each box in pixels, and its scores."""
        fine = self.fine(self.stem(image))
        coarse = self.coarse(fine)
        fine = self.mix(torch.cat([fine, F.interpolate(coarse, size=fine.shape[-2:])], 1))
        found, cells, strides = [], [], []
        for level, stride, box_head, class_head in zip((fine, coarse), STRIDES, self.box_heads, self.class_heads, strict=True):
            found.append(torch.cat([box_head(level), class_head(level)], 1).flatten(2))
            height, width = level.shape[-2:]
            y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
            cells.append(torch.stack((x, y)).reshape(2, height * width))
            strides.append(torch.full((height * width,), float(stride)))
        boxes, scores = torch.cat(found, 2).split((4 * BINS, len(CLASSES)), 1)
        shares = boxes.reshape(image.shape[0], 4, BINS, -1).transpose(1, 2).softmax(1)
        before, after = self.places(shares).reshape(image.shape[0], 4, -1).chunk(2, 1)
        cell = torch.cat(cells, 1)
        low, high = cell - before, cell + after
        boxes = torch.cat([(low + high) / 2, high - low], 1) * torch.cat(strides)
        return torch.cat([boxes, scores.sigmoid()], 1)


def parted(joined: Tensor) -> dict[str, Tensor]:
    """Return boxes [N, cells, 4] as corners, and scores [N, cells, classes], of the network's output."""
    centre, size, scores = joined.transpose(1, 2).split((2, 2, len(CLASSES)), -1)
    return {"boxes": torch.cat([centre - size / 2, centre + size / 2], -1), "scores": scores}


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


def train(model: Detector, steps: int = 800) -> Detector:
    """Train by Adam; the learning rate decays to zero along a cosine."""
    images, boxes, classes = shapes(2048, seed=1)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        chosen = torch.randint(len(images), (32,), generator=generator)
        optimizer.zero_grad()
        loss(parted(model(images[chosen])), boxes[chosen], classes[chosen]).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def kept(boxes: Tensor, scores: Tensor, least: float = 0.3, most: float = 0.5) -> list[int]:
    """Return the cells of one image that a non-maximum suppression keeps, the surest first: this runs outside."""
    best, found = scores.max(-1).values, list[int]()
    for cell in best.argsort(descending=True).tolist():
        if best[cell] < least:
            break
        if bool((overlap(boxes[cell], boxes[found]) < most).all()):
            found.append(cell)
    return found


def mean_average_precision(outputs: dict[str, Tensor], boxes: Tensor, classes: Tensor) -> float:
    """Return the mean area under precision over recall: over the classes, and overlaps of 0.5, 0.55, ..., 0.95."""
    found = list[tuple[float, int, int, Tensor]]()
    for i, pair in enumerate(zip(outputs["boxes"], outputs["scores"], strict=True)):
        found += [(*(v.item() for v in pair[1][cell].max(-1)), i, pair[0][cell]) for cell in kept(*pair, least=0.01)]
    found.sort(key=lambda detection: -detection[0])
    areas = []
    for kind in range(len(CLASSES)):
        of_kind, total = [(i, box) for _, k, i, box in found if k == kind], int((classes == kind).sum())
        for least in torch.arange(0.5, 1.0, 0.05).tolist():
            free, right = classes == kind, []
            for i, box in of_kind:
                shared = overlap(box, boxes[i]).masked_fill(~free[i], -1)
                best = int(shared.argmax())
                right.append(float(shared[best] >= least))
                free[i, best] &= not right[-1]
            hits = torch.tensor(right).cumsum(0)
            precision = hits / torch.arange(1, len(right) + 1)
            envelope = precision.flip(0).cummax(0).values.flip(0)  # the best precision at this recall or a larger one
            areas.append(float((envelope * torch.tensor(right)).sum() / total))
    return sum(areas) / len(areas)


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


def main(directory: Path, steps: int = 800) -> None:
    """Train, deploy to each runtime, print a table of the boxes, and write the picture."""
    torch.manual_seed(0)
    model = train(Detector(), steps)
    images, boxes, classes = shapes(64, seed=3)
    batches = list(shapes(64, seed=4)[0].split(16))
    with torch.no_grad():
        float_outputs = parted(model(images))
    print(f"{'':<34}{'mAP':>7}{'box error':>11}{'overlap':>9}{'class':>8}{'differ':>9}{'largest':>12}")
    print(f"{'float':<34}{mean_average_precision(float_outputs, boxes, classes):>7.1%}")
    rows, remarks = [(name, getattr(targets, name)) for name in TARGETS], list[str]()
    for name, target in rows:  # which grows
        if not installed(target):
            print(f"{name:<34} is not installed")
            continue
        calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model))
        artifact = qfunc.deploy(target)(calibrated)
        artifact.save(directory / name)
        (found,) = target.runtime.runner.run(artifact, [images])
        outputs = parted(torch.as_tensor(found))
        report = qfunc.verify(target, latency=False)(calibrated, [images[:8]])
        largest = max(row.largest_lsb for row in (*report.of("codes"), *report.of("output")))
        cells = compared(float_outputs, outputs)
        columns = f"{mean_average_precision(outputs, boxes, classes):>7.1%}{cells[0]:>11}{cells[1]:>9}{cells[2]:>8}"
        print(f"{name:<34}{columns}{report.mismatches / report.elements:>9.2%}{largest:>8.1g} LSB")
        remarks += [f"{name}: {remark}" for remark in report.gain.remarks]
        if report.verdict.startswith("not comparable") and ", " not in name:  # sums that saturate lose more than a bit
            rows.append((f"{name}, 7-bit weights", edit.weights(bits=7)(target)))
        if name.startswith("onnxruntime"):
            shown = [picture(images[i], *layers(i, float_outputs, outputs)) for i in range(4)]
            (directory / "detections.png").write_bytes(png(torch.cat(shown, 1)))
    for remark in remarks:
        print(remark)
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
