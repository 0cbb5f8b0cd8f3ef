"""Train torchvision's SSDlite on drawn shapes, deploy it up to decoded boxes to each runtime, and compare the boxes.

    pip install -c constraints.txt -e ".[zoo,openvino,litert,executorch,ncnn]"
    python benchmarks/ssdlite.py [steps]

`ssdlite320_mobilenet_v3_large` starts from random weights, and only its heads are trained: nothing is downloaded. The artifact
holds backbone, heads, anchors and their decoding; only the non-maximum suppression remains outside. The table is that of
docs/detector.md. It takes about four minutes on two cores.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision_ops import shim

import qfunc
from qfunc import targets

shim()

from torchvision.models.detection import ssdlite320_mobilenet_v3_large  # noqa: E402
from torchvision.models.detection.image_list import ImageList  # noqa: E402
from torchvision.ops.boxes import box_iou  # noqa: E402

SIZE = 320


def example() -> Any:
    """Return examples/detector.py: its drawn shapes, its suppression and its measures."""
    path = Path(__file__).parents[1] / "examples/detector.py"
    spec = importlib.util.spec_from_file_location("detector_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Boxes(nn.Module):
    """SSDlite up to its decoded boxes, by torchvision's own modules; scores are those of the classes but the background."""

    def __init__(self, ssd: Any) -> None:
        super().__init__()
        self.ssd = ssd

    def anchors(self, images: Tensor, levels: list[Tensor]) -> Tensor:
        """Return the anchors of one image as corners in pixels."""
        anchors: Tensor = self.ssd.anchor_generator(ImageList(images, [tuple(images.shape[-2:])]), levels)[0]
        return anchors

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """[N, 3, H, W] -> boxes [N, anchors, 4] as corners in pixels, scores [N, anchors, classes]."""
        levels = list(self.ssd.backbone(images).values())
        found, anchors = self.ssd.head(levels), self.anchors(images, levels)
        count, offsets = images.shape[0], found["bbox_regression"]
        boxes = self.ssd.box_coder.decode_single(offsets.reshape(-1, 4), anchors.repeat(count, 1))
        return {"boxes": boxes.reshape(count, -1, 4), "scores": found["cls_logits"].softmax(-1)[..., 1:]}


def drawn(shapes: Any, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images [N, 3, 320, 320], their boxes and their classes, from 1."""
    images, boxes, classes = shapes(count, seed)
    factor = SIZE // images.shape[-1]
    return F.interpolate(images, scale_factor=factor) * 2 - 1, boxes * factor, classes + 1


def train(model: Boxes, shapes: Any, steps: int) -> Boxes:
    """Train the heads on the features of a random backbone, whose BatchNorms have the statistics of the images.

    Adam, with torchvision's loss; the learning rate decays to zero along a cosine.
    """
    ssd, (images, boxes, classes) = model.ssd, drawn(shapes, 128, seed=1)
    for module in ssd.backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over the batches
    with torch.no_grad():
        ssd.backbone.train()
        for batch in images[:64].split(16):
            ssd.backbone(batch)
        ssd.backbone.eval()
        levels = [torch.cat(parts) for parts in zip(*(ssd.backbone(b).values() for b in images.split(16)), strict=True)]
        anchors = model.anchors(images, levels)
    optimizer = torch.optim.Adam(ssd.head.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(2)
    ssd.head.train()
    for module in ssd.head.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    for _ in range(steps):
        chosen = torch.randint(len(images), (16,), generator=generator)
        truth = [{"boxes": boxes[i], "labels": classes[i]} for i in chosen]
        matched = [ssd.proposal_matcher(box_iou(t["boxes"], anchors)) for t in truth]
        losses = ssd.compute_loss(truth, ssd.head([level[chosen] for level in levels]), [anchors] * len(chosen), matched)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def main(steps: int) -> None:
    """Train and print the table."""
    torch.manual_seed(0)
    tools, start = example(), time.perf_counter()
    ssd = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    model = train(Boxes(ssd), tools.shapes, steps)
    print(f"trained in {time.perf_counter() - start:.0f} s", flush=True)
    images, boxes, classes = drawn(tools.shapes, 16, seed=3)
    batches = list(drawn(tools.shapes, 32, seed=4)[0].split(8))
    with torch.no_grad():
        outputs = model(images)
    print("| runtime | box error, pixels | overlap | class | differ | largest |\n|---|---|---|---|---|---|")
    for name in tools.TARGETS:
        target = getattr(targets, name)
        if not tools.installed(target):
            print(f"{name} is not installed")
            continue
        calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target, example_inputs=(images[:2],))(model))
        run = target.runtime.runner.run(qfunc.deploy(target)(calibrated), [images])
        found = {key: torch.as_tensor(value) for key, value in zip(outputs, run, strict=True)}
        report = qfunc.verify(target)(calibrated, [images[:2]])
        largest = max(row.largest_lsb for row in (*report.of("codes"), *report.of("output")))
        cells = [*tools.compared(outputs, found), f"{report.mismatches / report.elements:.2%}", f"{largest:.1g} LSB"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    one_hot = F.one_hot(classes - 1, 3).double()
    truth = tools.compared({"boxes": boxes, "scores": one_hot}, tools.nearest(outputs, boxes))
    print(f"float network and drawn shapes: {truth[0]} pixels, overlap {truth[1]}, class {truth[2]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 80)
