"""A model loaded into ncnn.

`machines.worker` also runs this file in a Python that has NumPy and ncnn alone.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

FILES = ("model.ncnn.param", "model.ncnn.bin")
_OFF = (
    "use_vulkan_compute", "use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed", "use_bf16_storage",
    "use_packing_layout",
)  # fmt: skip
"""Options that change the results: float16 and bfloat16 round the values between layers, the Vulkan kernels and the packed
layout add in another order, and packed depthwise convolutions take 1/(s_x s_w) from rcpps, whose bits differ by CPU."""


class Session:
    """A model in ncnn; `facts` has the codes that it returns for both files, 0 for a file that it takes."""

    saved = b""

    def __init__(self, param: bytes, weights: bytes, *, threads: int) -> None:
        self.ncnn: Any = importlib.import_module("ncnn")
        self.net = self.ncnn.Net()
        for option in _OFF:
            setattr(self.net.opt, option, False)
        self.net.opt.num_threads = threads
        with tempfile.TemporaryDirectory() as place:
            for name, content in zip(FILES, (param, weights), strict=True):
                Path(place, name).write_bytes(content)
            paths = [str(Path(place, name)) for name in FILES]
            self.facts = {"codes": [self.net.load_param(paths[0]), self.net.load_model(paths[1])]}

    def run(self, inputs: Sequence[Any], *, names: Sequence[str], blobs: Sequence[Sequence[Any]]) -> list[Any]:
        """Return blobs for one batch, one example after the other.

        Args:
            inputs: One array an input.
            names: The blobs of the inputs.
            blobs: (blob, 1 for its codes and 0 for real values, axis of the examples, True if a blob has this axis).
        """
        found = []
        for place in range(len(inputs[0])):
            extractor = self.net.create_extractor()
            extractor.set_light_mode(False)
            for name, batch in zip(names, inputs, strict=True):
                array = np.ascontiguousarray(batch[place] if batch.ndim > 1 else batch[place : place + 1])
                # The layers assume channels that begin at multiples of 16 bytes. A clone has this layout.
                extractor.input(name, self.ncnn.Mat(array).clone())
            found.append([np.array(extractor.extract(name, kind)[1]) for name, kind, *_ in blobs])
        joined = zip(zip(*found, strict=True), blobs, strict=True)
        return [np.concatenate(each, blob[2]) if blob[3] else np.stack(each, blob[2]) for each, blob in joined]
