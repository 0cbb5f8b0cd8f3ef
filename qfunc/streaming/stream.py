"""stream: from the shards of a language model to its packed file, one layer at a time."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qfunc import specs
from qfunc._collection import older_objects_skipped
from qfunc._transform import Transform
from qfunc.errors import CalibrationError, CaptureError, DeployError, SpecError, a_or_an
from qfunc.execution.batches import infos, require_batches, tensors_of
from qfunc.execution.distributed import gather_counts, ranks
from qfunc.execution.progress import Progress
from qfunc.files.part import Part
from qfunc.graph.view import QuantizedModel
from qfunc.placement.legality.constraints import violations
from qfunc.placement.legality.violation import raise_violations
from qfunc.placement.without_effect.unused_rules import require_used
from qfunc.specs import Target
from qfunc.specs.protocols import PartwiseLowering
from qfunc.streaming.network import Call, Network
from qfunc.streaming.parts import Parts
from qfunc.streaming.piece import Inputs, Rounding, calibrate_piece, export_piece, part_of, place_pieces, results, so_far
from qfunc.streaming.states import States, StatesInMemory, StatesOnDisk
from qfunc.streaming.weights import Weights
from qfunc.transforms.deploy import report_of
from qfunc.transforms.validate import require_directory, require_target_value


def stream(
    target: Target,
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    batches: Iterable[Any],
    progress: bool = True,
    *,
    rounding: Rounding | None = None,
    states: StatesInMemory | StatesOnDisk = StatesInMemory(),
    layers: str = "model.layers",
) -> Callable[[nn.Module], Path]:
    """Return a function that quantizes a language model of any size layer by layer, and writes the files of its artifact.

    The model has no weights: it is on the meta device.  Each layer gets its own from the checkpoint when it is due, in
    float32, and is quantized, calibrated on what the layers before it compute, rounded, checked and packed as by
    `compose(quantize(target), calibrate(batches), rounding(batches))` and `deploy`; then its weights are dropped.  The files
    are those that `deploy` writes for the whole model, byte for byte.

    Memory: about 4 times the float32 weights of a layer, or of what is outside of the layers, and the inputs of a layer for
    all batches.
    Disk: the finished layers are in the folder OUTPUT.parts until the files are complete, so twice the size of the files.
    The same call after a kill goes on behind the last finished layer.
    In a group of torch.distributed, each process has its own OUTPUT and its own batches, all of one size or of several sizes in
    each process. All write the files of one process that has the batches of all.

    Args:
        target: The hardware, whose lowering writes its files from parts: `targets.compressed_tensors`, or `targets.gguf`
            with a decoder.
        checkpoint: A folder with model.safetensors, or with shards and model.safetensors.index.json.
        output: A new or empty folder.
        batches: As for `calibrate`, of any sizes; all of them are in memory.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        rounding: A function (batches, float_batches=) -> transform: `qfunc.gptq`, or `functools.partial(qfunc.gptq, passes=1)`.
            A layer gets what it reads in the quantized network, and what it reads in the float network.
        states: Where the inputs of the next layer are kept.  With a rounding, only `StatesOnDisk()` goes on after a kill.
        layers: The path of the layers, a ModuleList or Sequential.  Each passes its first tensor on to the next.
    Raises:
        SpecError: a selector of the target matches nothing.
        CaptureError: the model is not on the meta device, or a layer cannot be exported.
        CalibrationError: no batches, or processes that would begin at unlike layers.
        FileError: the checkpoint is damaged, or has no tensor for a parameter.
        DeployError: the target's files are not written from parts, or a folder has other files.

    >>> import qfunc, safetensors.torch, tempfile
    >>> def network():
    ...     return nn.Sequential(nn.Embedding(9, 32), nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)), nn.Linear(32, 9))
    >>> folder = Path(tempfile.mkdtemp())
    >>> safetensors.torch.save_file(network().state_dict(), folder / "model.safetensors")
    >>> with torch.device("meta"):
    ...     model = network()
    >>> ids = torch.ones(2, 4, dtype=torch.int64)
    >>> made = stream(qfunc.targets.compressed_tensors("FP8_DYNAMIC"), folder, folder / "out", [ids], layers="1")(model)
    >>> sorted(path.name for path in made.iterdir())
    ['config.json', 'model.safetensors', 'qfunc.json']
    """
    require_target_value(target, "stream")
    require_batches(batches, "stream", progress, "qfunc.stream(target, checkpoint, output, batches)(model)")
    require_directory(checkpoint, "stream")
    require_directory(output, "stream")
    _require_arguments(rounding, states, layers)
    if not isinstance(target.lowering, PartwiseLowering):
        do = "Use targets.compressed_tensors, or targets.gguf(kind, targets.runtimes.decoder_config(config))."
        found = f"{type(target.lowering).__name__}, which writes a whole model"
        raise DeployError(where=f"stream({target.name})", found=found, wanted="a lowering that joins parts", do=do)

    def write(model: nn.Module) -> Path:
        if not isinstance(model, nn.Module):
            do = 'Build it by: with torch.device("meta"): model = ...'
            raise CaptureError(where="stream", found=a_or_an(type(model)), wanted="a language model", do=do)
        given = list(batches)
        if not given:
            do = "Pass a non-empty iterable, not one already used up."
            raise CalibrationError(where="stream", found="no batches", wanted="at least one", do=do)
        weights = Weights(Path(checkpoint))
        network = Network(model, layers, weights)
        parts = Parts(Path(output).absolute(), {
            "target": specs.to_json(target), "checkpoint": weights.identity, "batches": _digest(given),
            "rounding": _described(rounding), "model": repr(model),
        })  # fmt: skip
        with torch.inference_mode(False), torch.no_grad(), older_objects_skipped():
            return _Stream(target, network, parts, rounding, states).run(given, progress)

    return Transform(
        stream,
        {
            "target": target, "checkpoint": checkpoint, "output": output, "batches": batches, "progress": progress,
            "rounding": rounding, "states": states, "layers": layers,
        },
        write,
    )  # fmt: skip


class _Stream:
    def __init__(
        self, target: Target, network: Network, parts: Parts, rounding: Rounding | None, states: StatesInMemory | StatesOnDisk
    ) -> None:
        self.target, self.network, self.parts, self.rounding, self.states = target, network, parts, rounding, states
        self.count = network.count

    def run(self, batches: list[Any], progress: bool) -> Path:
        """Write all parts that are not finished, and then the files."""
        calls, finished = self.network.enter(batches), self.parts.finished()
        _require_same(f"{finished} finished parts", self.parts.folder)
        if finished <= self.count:
            self._require_placeable(calls)
            position, first, states = self._start(finished, calls)
            _require_same(f"a start at layer {position}", self.parts.folder)
            with Progress("stream", self.count + 1 - position, "part", progress) as bar:
                for i in range(position, self.count + 1):
                    bar.describe(f"stream, layer {i}" if i < self.count else "stream, outside of the layers")
                    states = self._piece(i, calls, states) if i >= first else self._in_float(i, calls, states)
                    gc.collect()  # graphs are circles of references
                    bar.advance()
        return self._join(calls)

    def _start(self, finished: int, calls: list[Call]) -> tuple[int, int, States]:
        # The layer at which to begin, the first of which the part is not finished, and the inputs of the former.
        for layer in (finished, finished - 1):  # a kill may come between a part and the inputs of the next
            if kept := self.states.kept(self.parts.folder, layer):
                return layer, layer, kept
        states, before = {"float": [call.entering for call in calls]}, self.network.before()
        if self.rounding is not None:
            inputs = self._inputs(self.count, calls, states["float"])
            states["rounded"] = so_far(export_piece(before, inputs), self.target, inputs)
        del before
        gc.collect()
        return 0, 0 if self.rounding else finished, states

    def _inputs(self, i: int, calls: list[Call], states: Sequence[Tensor]) -> Inputs:
        others = (call.others[i] if i < self.count else call.values for call in calls)
        return [(x, *rest) for x, rest in zip(states, others, strict=True)]

    def _loaded(self, i: int) -> nn.Module:
        return self.network.load(self.network.layer(i) if i < self.count else self.network.outside())

    def _in_float(self, i: int, calls: list[Call], states: States) -> States:
        inputs = self._inputs(i, calls, states["float"])
        network = place_pieces({"": export_piece(self._loaded(i), inputs)}, self.target)[""].network
        return {"float": results(network, inputs)}

    def _piece(self, i: int, calls: list[Call], states: States) -> States:
        each = {name: self._inputs(i, calls, values) for name, values in states.items()}
        load = partial(self._loaded, i)
        model = calibrate_piece(load, self.target, each["float"], self.rounding, each.get("rounded", ()))
        part, following = part_of(model, self.target), dict[str, Sequence[Tensor]]()
        if i < self.count:
            following["float"] = results(QuantizedModel(model).float_network, each["float"])
            if self.rounding is not None:
                following["rounded"] = results(model, each["rounded"])
            self.parts.add(i, Part(part.tensors, part.notes, report=part.report))
            self.states.keep(self.parts.folder, i + 1, following)
        else:  # the first output enters the layers
            self.parts.add(i, Part(part.tensors, part.notes, self.network.arguments, part.outputs[1:], part.report))
        return following

    def _require_placeable(self, calls: list[Call]) -> None:
        # As `quantize` does, before any weight is read: what the target selects must be in one of the pieces, and be allowed.
        with torch.device("meta"):
            pieces = [*(self.network.layer(i) for i in range(self.count)), self.network.outside()]
            entering = [call.entering for call in calls]
            programs = {str(i): export_piece(p, _on_meta(self._inputs(i, calls, entering))) for i, p in enumerate(pieces)}
            found = place_pieces(programs, self.target).values()
        require_used(self.target, [p.plan for p in found], [p.before for p in found])
        raise_violations([v for p in found for v in violations(p.plan, self.target)], self.target)

    def _join(self, calls: list[Call]) -> Path:
        found, lowering = self.parts.read(self.count + 1), self.target.lowering
        assert isinstance(lowering, PartwiseLowering)
        report = report_of(self.target, infos(calls[0].values), (), ())
        report |= {name: [entry for part in found for entry in part.report[name]] for name in ("tensors", "units")}
        return self.parts.finish(lowering.join(found), report)


def _require_same(found: str, folder: Path) -> None:
    # All processes must run the same layers, because each of these is calibrated with the others.
    each, _ = gather_counts(found, 1, [], ranks(None), "stream")
    if len(set(each)) > 1:
        rank = next(i for i, other in enumerate(each) if other != each[0])
        do = f"Delete the folders of finished parts, such as {folder}, and start again."
        where, wanted = f"stream, ranks 0 and {rank}", "the same in all processes"
        raise CalibrationError(where=where, found=f"{each[0]} and {each[rank]}", wanted=wanted, do=do)


def _require_arguments(rounding: Any, states: Any, layers: Any) -> None:
    if isinstance(rounding, Transform) or not (rounding is None or callable(rounding)):
        do, wanted = "Write rounding=qfunc.gptq, without its batches.", "a function from batches to a transform"
        raise SpecError(where="stream, rounding", found=repr(rounding), wanted=wanted, do=do)
    if not isinstance(states, StatesInMemory | StatesOnDisk):
        do = "Write states=qfunc.StatesOnDisk()."
        raise SpecError(where="stream, states", found=repr(states), wanted="StatesInMemory() or StatesOnDisk()", do=do)
    if not isinstance(layers, str):
        do = "Write layers='model.layers'."
        raise SpecError(where="stream, layers", found=repr(layers), wanted="the path of a ModuleList or Sequential", do=do)


def _on_meta(inputs: Inputs) -> Inputs:
    return [tuple(t.to("meta") for t in given) for given in inputs]


def _digest(value: Any) -> str:
    """Return a digest of tensors in dicts, tuples and lists."""
    digest = hashlib.sha256()
    for tensor in tensors_of(value):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _described(rounding: Any) -> str:
    """Return a text of a function that is the same in each process."""
    if isinstance(rounding, partial):
        given = [*map(repr, rounding.args), *(f"{k}={v!r}" for k, v in rounding.keywords.items())]
        return f"{_described(rounding.func)}({', '.join(given)})"
    return str(getattr(rounding, "__qualname__", type(rounding).__qualname__))
