"""What `stream` refuses: whole messages, before any layer is quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, CaptureError, DeployError, FileError, SpecError
from qfunc.specs import edit
from tests.lowering.gguf.decoders import decoder
from tests.streaming.checkpoints import Shape, target_of

SHAPE = Shape(decoder("llama", blocks=1), shards=1, lengths=(5,))
TARGET = target_of("W4A16", SHAPE)


def message(folder: Path, model: Any = None, **changes: Any) -> str:
    """The message of a call with some other arguments."""
    arguments: dict[str, Any] = {
        "target": TARGET, "checkpoint": folder / "shards", "output": folder / "out", "batches": SHAPE.batches,
        "progress": False,
    }  # fmt: skip
    if not (folder / "shards").exists():
        SHAPE.write(folder / "shards")
    with pytest.raises((CalibrationError, CaptureError, DeployError, FileError, SpecError)) as caught:
        qfunc.stream(**arguments | changes)(SHAPE.on_meta() if model is None else model)
    return str(caught.value).replace(str(folder), "FOLDER")


def test_arguments(tmp_path: Path) -> None:
    def refusal(**changes: Any) -> str:
        return message(tmp_path, **changes)

    assert refusal(target=targets.executorch_8da4w(32)) == (
        "stream(executorch_8da4w_b32): found XnnpackLowering, which writes a whole model, wanted a lowering that joins "
        "parts. Use targets.compressed_tensors, or targets.gguf(kind, targets.runtimes.decoder_config(config))."
    )
    assert refusal(rounding=qfunc.gptq([torch.ones(1)])).endswith(
        "wanted a function from batches to a transform. Write rounding=qfunc.gptq, without its batches."
    )
    assert refusal(states="disk") == (
        "stream, states: found 'disk', wanted StatesInMemory() or StatesOnDisk(). Write states=qfunc.StatesOnDisk()."
    )
    assert refusal(layers=3) == (
        "stream, layers: found 3, wanted the path of a ModuleList or Sequential. Write layers='model.layers'."
    )
    assert refusal(batches=[]) == (
        "stream: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    )


def test_models(tmp_path: Path) -> None:
    assert message(tmp_path, model="llama") == (
        'stream: found a str, wanted a language model. Build it by: with torch.device("meta"): model = ...'
    )
    assert message(tmp_path, model=SHAPE.whole()) == (
        "stream, Network: found 'model.embed_tokens.weight' in memory, wanted a model on the meta device. "
        'Build it by: with torch.device("meta"): model = ...'
    )
    assert message(tmp_path, layers="blocks") == (
        "stream, Network: found no layers at 'blocks', wanted a ModuleList or Sequential. Name them: layers='model.layers'."
    )


class Network(nn.Module):
    """An embedding, layers that a subclass calls, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(96, 32), nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)])


class Cached(Network):
    """Gives its layers a cache."""

    def forward(self, ids: Tensor) -> Tensor:
        for layer in self.layers:
            layer(self.embed(ids), cache=object())
        return ids


class First(Network):
    """Calls only its first layer."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers[0](self.embed(ids))


class Lost(Network):
    """Reads a buffer that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.ones(32), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](self.embed(ids) * self.angles))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Cached, "stream, Cached, a layer's arguments: found an object, wanted tensors, numbers and None. "
                 "Build the model without a cache: config.use_cache = False."),
        (First, "stream, First: found calls of 1 of 2 layers, wanted one call of each layer. "
                "Name the layers that the model calls one after the other."),
        (Lost, "stream, Lost: found buffer 'angles' on the meta device, wanted one in the checkpoint. "
               "Compute it in the forward, or make it persistent."),
    ],
)  # fmt: skip
def test_networks_without_a_chain_of_layers(kind: Any, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    save_file(dict(kind().state_dict()), tmp_path / "shards" / "model.safetensors")
    with torch.device("meta"):
        model = kind()

    assert message(tmp_path, model, layers="layers") == wanted


def test_batches(tmp_path: Path) -> None:
    ids = SHAPE.batches[0]
    assert message(tmp_path, batches=[{"tokens": ids}]) == (
        "stream, Network, batch: found TypeError: missing a required argument: 'ids', wanted its arguments. "
        "Pass tensors, tuples or dicts of the arguments of the model's forward."
    )
    assert message(tmp_path, batches=[(3,)]) == (
        "stream, Network, batch: found an int for 'ids', wanted tensors. Set what is no tensor in the model's config."
    )
    assert message(tmp_path, batches=[ids + 1000]) == (
        "stream, Network: found IndexError: index out of range in self, wanted a model that runs. "
        "Pass batches with the arguments of the model's forward."
    )


def test_checkpoints(tmp_path: Path) -> None:
    file = SHAPE.write(tmp_path / "shards") / "model.safetensors"
    tensors = load_file(file)
    save_file({n: t for n, t in tensors.items() if n != "model.embed_tokens.weight"}, file)
    assert message(tmp_path) == (
        "FOLDER/shards, tensor 'model.embed_tokens.weight': found no such tensor among lm_head.weight, "
        "model.layers.0.input_layernorm.weight, model.layers.0.mlp.down_proj.weight, ..., wanted one of shape (96, 64). "
        "Build the model from the checkpoint's own config."
    )
    save_file(tensors | {"model.embed_tokens.weight": torch.zeros(96, 64, dtype=torch.uint8)}, file)
    assert message(tmp_path) == (
        "FOLDER/shards, tensor 'model.embed_tokens.weight': found U8 of shape (96, 64), wanted floats of shape (96, 64). "
        "Build the model from the checkpoint's own config, and take a checkpoint that is not quantized."
    )
    file.write_bytes(b"")
    assert "model.safetensors: found 0 bytes, wanted a header and its tensors" in message(tmp_path)
    file.unlink()
    assert message(tmp_path) == (
        "FOLDER/shards/model.safetensors: found no such file or directory, wanted a file. "
        "Write the checkpoint again, with all its files."
    )
    (file.parent / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": 3}}))
    assert "model.safetensors.index.json: weight_map['x']: found 3, wanted a text" in message(tmp_path)
    for name in ("../model.safetensors", str(file), ""):
        (file.parent / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
        assert message(tmp_path) == (
            f"FOLDER/shards/model.safetensors.index.json: found the file {name!r}, wanted names without folders. "
            "Take an index whose shards are in its own folder."
        ).replace(str(tmp_path), "FOLDER")


def test_what_the_target_selects_must_exist_before_a_layer_is_quantized(tmp_path: Path) -> None:
    target = edit.skip(edit.name("model.layers.0.mlp.gate", "lm_hed"))(TARGET)

    assert message(tmp_path, target=target).startswith("target 'compressed_tensors_w4a16_b32', rules: found Name('")
    assert list((tmp_path / "out.parts").glob("part-*")) == []


def test_folders(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert message(tmp_path) == (
        "stream, output 'FOLDER/out': found files, wanted an empty folder. Choose a new or empty folder."
    )
    (out / "notes.txt").unlink()
    parts = tmp_path / "out.parts"
    parts.mkdir()
    (parts / "notes.txt").write_text("mine")
    assert message(tmp_path) == (
        "stream, 'FOLDER/out.parts': found other files (notes.txt), wanted an empty folder, or the parts of this stream. "
        "Delete that folder, or choose another output."
    )
    (parts / "notes.txt").unlink()
    (parts / "stream.json").write_text("{}")
    (parts / "part-00000.safetensors").write_bytes(b"")
    assert message(tmp_path) == (
        "stream, 'FOLDER/out.parts': found parts of another stream, by its target, wanted the parts of this one. "
        "Delete that folder, or choose another output."
    )
