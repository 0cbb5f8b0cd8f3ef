"""Let torchvision be imported without its C++ extension."""

from __future__ import annotations

import torch

_LIBRARY: list[torch.library.Library] = []


def shim() -> None:
    """Declare two ops, so that torchvision imports without its C++ extension (with a torch without CUDA)."""
    if not _LIBRARY and not hasattr(torch.ops.torchvision, "nms"):
        _LIBRARY.append(torch.library.Library("torchvision", "DEF"))
        for op in ("nms", "qnms"):
            _LIBRARY[0].define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
