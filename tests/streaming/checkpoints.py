"""Small decoders as shards on disk, and what `deploy` writes for them whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from safetensors.torch import save_file
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.specs import DecoderConfig, Target, edit
from tests.lowering.gguf.decoders import Network, decoder, tokens

GGUF = ("Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1", "Q4_K_M")
SCHEMES = ("W4A16", "W4A16_ASYM", "W8A8", "FP8", "FP8_CHANNEL", "FP8_DYNAMIC", "MXFP4A16", "NVFP4A16")


@frozen
class Shape:
    """A decoder, whether its head is tied, and how its checkpoint is stored."""

    decoder: DecoderConfig = field(factory=lambda: decoder("llama"))
    tied: bool = False
    dtype: torch.dtype = torch.bfloat16
    shards: int = 2
    lengths: tuple[int, ...] = (7, 9)

    @property
    def batches(self) -> list[Tensor]:
        """Token ids of several lengths."""
        return [tokens(2, length, self.decoder) for length in self.lengths]

    def on_meta(self) -> Network:
        """The model without weights."""
        with torch.device("meta"):
            return Network(self.decoder, self.tied).eval()

    def whole(self) -> Network:
        """The model, its weights rounded to the checkpoint's dtype."""
        model = Network(self.decoder, self.tied).eval()
        for parameter in model.parameters():
            parameter.data = parameter.data.to(self.dtype).float()
        return model

    def write(self, folder: Path) -> Path:
        """Write the checkpoint: shards and their index, or one file."""
        folder.mkdir()
        tensors = {name: p.to(self.dtype) for name, p in self.whole().named_parameters()}  # a tied head once
        if self.shards == 1:
            save_file(tensors, folder / "model.safetensors")
            return folder
        places: dict[str, str] = {}
        for i in range(self.shards):
            file = f"model-{i + 1:05}-of-{self.shards:05}.safetensors"
            part = {name: tensors[name] for name in list(tensors)[i :: self.shards]}
            save_file(part, folder / file)
            places |= dict.fromkeys(part, file)
        index = {"metadata": {"total_size": 0}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder


def target_of(kind: str, shape: Shape) -> Target:
    """The target of a type of GGUF or of a scheme of compressed-tensors; a tied head stays in float there."""
    if kind in GGUF:
        return targets.gguf(kind, shape.decoder)
    target = targets.compressed_tensors(kind, 32)
    return edit.skip(edit.name("lm_head"))(target) if shape.tied else target


@cache
def exported(shape: Shape) -> torch.export.ExportedProgram:
    """The program of the whole model, for any length."""
    vary = ({1: torch.export.Dim.AUTO},)
    return torch.export.export(shape.whole(), (shape.batches[-1],), dynamic_shapes=vary, strict=False)


def deployed(target: Target, shape: Shape, rounding: Callable[[Any], Any] | None = None) -> Mapping[str, bytes]:
    """The files of the whole model, without the report."""
    batches = shape.batches
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(exported(shape)))
    model = model if rounding is None else rounding(batches)(model)
    return {name: content for name, content in qfunc.deploy(target)(model).files.items() if name != "qfunc.json"}


def files(folder: Path) -> Mapping[str, bytes]:
    """The files of a folder, without the report."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "qfunc.json"}
