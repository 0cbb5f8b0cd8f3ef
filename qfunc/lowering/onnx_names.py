"""The names that the user gives to an artifact: its files, the inputs and outputs of its ONNX model, and their axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from qfunc.errors import DeployError
from qfunc.files.folder import is_plain_name
from qfunc.graph.constants import UniqueNames
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import Place, QuantizedTensor
from qfunc.specs.file_format import format_of

STEM = "model"
"""The stem of the files of an artifact without a name."""

_OWN = f"{STEM}.", f"{STEM}_"
"""How the names of files with the stem begin."""


def _frozen_names(names: Any) -> Any:
    return names if isinstance(names, str | Mapping) else tuple(names)


def _frozen_axes(axes: Any) -> Any:
    if axes == ():
        return ()
    if not isinstance(axes, Mapping) or not all(isinstance(a, Mapping) for a in axes.values()):
        do = f"Write dynamic_axes={_named_axes(axes)!r}."
        raise DeployError(where="deploy, dynamic_axes", found=repr(axes), wanted="a dict of dicts", do=do)
    return tuple((name, tuple(by_axis.items())) for name, by_axis in axes.items())


def _named_axes(axes: Any) -> dict[str, dict[int, str]]:
    # torch.onnx.export also takes lists of axes, to which it gives names.
    if not isinstance(axes, Mapping) or not all(isinstance(a, Mapping | list | tuple) for a in axes.values()):
        return {"x": {0: "batch"}}
    return {n: {**a} if isinstance(a, Mapping) else {i: f"{n}_{i}" for i in a} for n, a in axes.items()}


@frozen
class Names:
    """The names of an artifact; those that are empty stay the model's own.

    Attributes:
        stem: Replaces "model" in the names of the files, and names the graph.
        inputs, outputs: The names of all inputs and of all outputs, in the model's order.
        axes: For inputs, the names of axes whose sizes vary.
        own: The names that the forward gives to its outputs, "" for one without; used if `outputs` is empty.
    """

    stem: str = STEM
    inputs: tuple[str, ...] = field(default=(), converter=_frozen_names)
    outputs: tuple[str, ...] = field(default=(), converter=_frozen_names)
    axes: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = field(default=(), converter=_frozen_axes)
    own: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not is_plain_name(self.stem):
            do = "Choose a name without folders."
            raise DeployError(where="deploy, name", found=repr(self.stem), wanted="the name of a file", do=do)
        given = {"input_names": self.inputs, "output_names": self.outputs}
        for where, names in given.items():
            if isinstance(names, str | Mapping) or not all(isinstance(n, str) and n for n in names):
                do = f"Write {where}=('a', 'b')."
                raise DeployError(where=f"deploy, {where}", found=repr(names), wanted="a tuple of names", do=do)
        every = [(where, name) for where, names in given.items() for name in names]
        for index, (where, name) in enumerate(every):
            if name in [n for _, n in every[:index]]:
                do = "Choose another name."
                raise DeployError(where=f"deploy, {where}", found=f"{name!r} twice", wanted="one name a tensor", do=do)

    def with_own(self, own: tuple[str, ...]) -> Names:
        """Return these names with those that the forward gives to its outputs."""
        return Names(self.stem, self.inputs, self.outputs, {name: dict(axes) for name, axes in self.axes}, own)

    @property
    def renames_tensors(self) -> bool:
        """True if an input, an output or an axis has a name."""
        return bool(self.inputs or self.outputs or self.axes)

    def apply(self, program: Program) -> Program:
        """Return a program whose tensors have these names; the given one does not change.

        An output of codes gets the name of its float tensor here, and `finish` gives it to the output of the file.
        """
        named = type(program.model)()
        named.CopyFrom(program.model)
        graph = named.graph
        graph.name = self.stem
        inputs, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
        renamed = dict(zip(inputs, _counted("input_names", self.inputs, inputs), strict=True))
        float_tensors = {p.real: p.tensor for s in program.tensors for p in s.places}
        for old, new in zip(outputs, self._outputs(outputs, list(renamed.values())), strict=True):
            base = float_tensors.get(old, old)
            if old == new:
                continue
            if base in renamed or base in outputs:
                base = old
            renamed[base] = new
            if base != old:
                renamed[old] = f"{new}.real"
                if not self.outputs:
                    renamed[f"{base}.codes"] = f"{new}.codes"
        if not self.outputs:
            renamed = _without_clashes(graph, {old: new for old, new in renamed.items() if old in _tensors(graph)})
        _rename(graph, {old: new for old, new in renamed.items() if old != new})
        self._name_axes(graph)
        return evolve(program, model=named, tensors=(_renamed(tensor, renamed) for tensor in program.tensors))

    def finish(self, files: Mapping[str, bytes], lowering: Any) -> dict[str, bytes]:
        """Return the files with the stem, and the ONNX model among them with its outputs' names, unless the files have names.

        Raises:
            DeployError: names of tensors for files without an ONNX model, or of an axis whose size the file fixes.
        """
        finished, named = dict(files), format_of(lowering).names
        given: dict[str, Any] = {} if named else {"input_names": self.inputs, "output_names": self.outputs}
        given["dynamic_axes"] = self.axes
        if any(given.values()) and f"{STEM}.onnx" not in finished:
            raise _no_names_error(next(name for name, value in given.items() if value), finished, lowering)
        if not named and (self.renames_tensors or any(self.own)):
            models = [n for n in finished if n.startswith(_OWN) and n.endswith(".onnx")]
            finished |= {n: self._finished(finished[n], lowering) for n in models}
        return {self.file(name): content for name, content in finished.items()}

    def of_files(self, program: Program) -> Program:
        """Return a program with these names for files that have names beside their tensors.

        Raises:
            DeployError: other numbers of names than the model has inputs and outputs.
        """
        graph = program.model.graph
        inputs = _counted("input_names", self.inputs, [i.name for i in graph.input])
        outputs = [o.name for o in graph.output]
        kept = self.own if len(self.own) == len(outputs) else ("",) * len(outputs)
        chosen = _counted("output_names", self.outputs, outputs, kept) if self.outputs else _free(kept, inputs)
        return evolve(program, inputs=tuple(inputs), outputs=tuple(chosen))

    def file(self, name: str) -> str:
        """Return the name of a file with the stem.

        Raises:
            DeployError: the stem has the file's ending already.
        """
        if not name.startswith(_OWN):
            return name
        ending = name.removeprefix(STEM)
        if self.stem.endswith(ending):
            found, do = repr(self.stem), f"Write name={self.stem.removesuffix(ending)!r}."
            raise DeployError(where="deploy, name", found=found, wanted=f"a name without {ending!r}", do=do)
        return self.stem + ending

    def _finished(self, content: bytes, lowering: Any) -> bytes:
        import onnx

        model = onnx.load_from_string(content)
        graph = model.graph
        own = self._outputs([o.name for o in graph.output], [i.name for i in graph.input])
        for output, new in zip(graph.output, own, strict=True):
            if output.name != new:
                _rename(graph, {new: f"{new}.float", output.name: new})
        for name, axes in self.axes:
            found = next(i for i in graph.input if i.name == name).type.tensor_type.shape.dim
            for axis, label in axes:
                if found[axis].dim_param != label:
                    raise _fixed_axis_error(name, axis, found[axis].dim_value, lowering)
        return bytes(model.SerializeToString(deterministic=True))

    def _outputs(self, now: list[str], inputs: Iterable[str]) -> Sequence[str]:
        # The names of the outputs; of the forward's names, those that are free.
        if self.outputs or len(self.own) != len(now):
            return _counted("output_names", self.outputs, now, self.own)
        return [new or old for old, new in zip(now, _free(self.own, inputs), strict=True)]

    def _name_axes(self, graph: Any) -> None:
        shapes = {i.name: i.type.tensor_type.shape.dim for i in graph.input}
        labels: dict[str, str] = {}
        for name, axes in self.axes:
            if name not in shapes:
                do = f"Use one of: {', '.join(shapes)}. Outputs have the names of the axes that they get from inputs."
                raise DeployError(where="deploy, dynamic_axes", found=repr(name), wanted="an input of the model", do=do)
            for axis, label in axes:
                if not isinstance(axis, int) or not 0 <= axis < len(shapes[name]) or not isinstance(label, str) or not label:
                    found, wanted = f"{axis!r}: {label!r}", f"an axis below {len(shapes[name])}, and its name"
                    rank = len(shapes[name])
                    positive = axis % rank if isinstance(axis, int) and -rank <= axis < 0 else 0
                    do = f"Write dynamic_axes={ {name: {positive: label if isinstance(label, str) and label else 'batch'}}!r}."
                    raise DeployError(where=f"deploy, dynamic_axes, {name!r}", found=found, wanted=wanted, do=do)
                dim = shapes[name][axis]
                if not dim.dim_param:
                    raise _fixed_axis_error(name, axis, dim.dim_value)
                if labels.setdefault(dim.dim_param, label) != label:
                    found = f"{label!r} and {labels[dim.dim_param]!r} for axes that always have one size"
                    do = "Give both the same name."
                    raise DeployError(where=f"deploy, dynamic_axes, {name!r}", found=found, wanted="one name", do=do)
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in labels:
                    dim.dim_param = labels[dim.dim_param]


def _renamed(tensor: QuantizedTensor, names: Mapping[str, str]) -> QuantizedTensor:
    places = (Place(names.get(p.tensor, p.tensor), names.get(p.real, p.real)) for p in tensor.places)
    return evolve(tensor, places=tuple(places))


def _fixed_axis_error(name: str, axis: int, size: int, lowering: Any = None) -> DeployError:
    if lowering is None:
        of, do = "", "Calibrate on batches with several sizes of this axis, without example_inputs of deploy, or leave it out."
    else:
        of, do = f" of {lowering!r}", "Leave it out."
    where, found = f"deploy, dynamic_axes, {name!r}", f"axis {axis} of size {size}"
    return DeployError(where=where, found=found, wanted=f"an axis{of} whose size varies", do=do)


def _no_names_error(where: str, files: Iterable[str], lowering: Any) -> DeployError:
    found, wanted = f"names for {lowering!r}", f"none, because {' + '.join(files)} has no such names"
    order = "the order of the inputs and outputs is the model's"
    do = "Leave it out: the file fixes all sizes but the batch." if where == "dynamic_axes" else f"Leave out {where}: {order}."
    return DeployError(where=f"deploy, {where}", found=found, wanted=wanted, do=do)


def _free(names: Sequence[str], inputs: Iterable[str]) -> list[str]:
    # An output that has the name of an input, or of an output before it, gets another one; "" stays.
    taken, found = UniqueNames({*inputs}), []
    for name in names:
        plain = re.sub(r"[^\w.\-]", "_", name)
        found.append(taken.fresh(f"{plain}.output" if plain in taken else plain) if plain else "")
    return found


def _without_clashes(graph: Any, renamed: Mapping[str, str]) -> dict[str, str]:
    # Tensors inside the model whose names become those of outputs get other names.
    taken = UniqueNames(_tensors(graph) | set(renamed.values()))
    clashes = [new for new in renamed.values() if new in _tensors(graph) and new not in renamed]
    return {**renamed, **{name: taken.fresh(f"{name}.inner") for name in clashes}}


def _counted(where: str, names: tuple[str, ...], own: list[str], forward: Sequence[str] = ()) -> Sequence[str]:
    if names and len(names) != len(own):
        shown = [f or o for f, o in zip(forward, own, strict=True)] if len(forward) == len(own) else own
        found, do = repr(names), f"Name each of: {', '.join(shown)}."
        raise DeployError(where=f"deploy, {where}", found=found, wanted=f"{len(own)} names", do=do)
    return names or own


def _tensors(graph: Any) -> set[str]:
    return {v.name for v in (*graph.input, *graph.output, *graph.initializer)} | {o for n in graph.node for o in n.output}


def _rename(graph: Any, renamed: Mapping[str, str]) -> None:
    # Rename tensors, in place.
    tensors = _tensors(graph)
    for old, new in renamed.items():
        if new in tensors and new not in renamed:
            do = "Choose another name."
            raise DeployError(
                where=f"deploy, the name of {old!r}", found=f"{new!r}, another tensor", wanted="a new name", do=do
            )
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [renamed.get(n, n) for n in node.input]
        node.output[:] = [renamed.get(n, n) for n in node.output]
    for note in graph.quantization_annotation:
        note.tensor_name = renamed.get(note.tensor_name, note.tensor_name)
        for parameter in note.quant_parameter_tensor_names:
            parameter.value = renamed.get(parameter.value, parameter.value)
