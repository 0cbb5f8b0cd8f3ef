"""The record of a captured model: facts that its graph does not have, as a frozen value that copies and pickles keep."""

from __future__ import annotations

from typing import Any

from attrs import evolve, field, frozen
from torch import fx

from qfunc.specs import Target


@frozen
class NodeInfo:
    """The origin of a node: its path in the user's model, the classes around it, its source line.

    `is_integer` is True if its tensor has an integer or boolean type.
    """

    path: str
    modules: tuple[str, ...] = ()
    source: str = ""
    is_integer: bool = False


@frozen
class TensorInfo:
    """Shape and dtype of an input of the model in the first batch of calibration."""

    shape: tuple[int, ...]
    dtype: str


@frozen
class Argument:
    """An argument of the captured forward: whether it is `fixed`, to which value, and whether it is an input of the graph."""

    name: str
    fixed: bool = False
    value: Any = field(default=None, eq=False)
    is_input: bool = True


@frozen
class Record:
    """The facts of the nodes by name; after `quantize` the target; after `calibrate` the inputs.

    `stage` is "captured", "quantized" or "calibrated".  `rank_two` names linear layers with a folded
    BatchNorm1d, which is correct for values of rank 2 only; calibration checks the rank.
    `unfolded` has (op, step, reason) for each op that almost folded, `unmatched` (op, rewrite, reason) for each op that
    a rewrite almost matched.  `within` is the path of the model in its outer module, or ""; the paths in `facts` are
    relative to the model, and users see paths relative to the outer module.
    `around` names the classes of the modules around the model.  If the model is one module of torch.nn, `bare` is the
    path of its last op in the model; in the outer module, that op has the path of the module.
    `axes` names the axes of each input that torch.export left dynamic, None for the others.  `evaluated` describes the
    part that was exported in evaluation mode and cannot train, or is "".  `arguments` are those of the forward, () for an
    ExportedProgram.  `batch` is the size of the first input's first axis if torch.export fixed it.  `sizes` has the name
    and the sizes of each input of the user's ExportedProgram, None for sizes that vary.
    """

    facts: dict[str, NodeInfo] = field(hash=False)
    target: Target | None = None
    inputs: tuple[TensorInfo, ...] = ()
    stage: str = "captured"
    rank_two: tuple[str, ...] = ()
    unfolded: tuple[tuple[str, str, str], ...] = ()
    unmatched: tuple[tuple[str, str, str], ...] = ()
    within: str = ""
    around: tuple[str, ...] = ()
    bare: str = ""
    axes: tuple[tuple[str | None, ...], ...] = ()
    evaluated: str = ""
    arguments: tuple[Argument, ...] = ()
    batch: int | None = None
    sizes: tuple[tuple[str, tuple[int | None, ...]], ...] = ()

    def path(self, path: str) -> str:
        """Return a path in the outer module for a path in the model."""
        if not self.within or (self.bare and path == self.bare):
            return self.within or path
        return f"{self.within}.{path}"

    def inner_path(self, path: str) -> str:
        """Return a path in the model for a path in the outer module, or for two paths joined by "@".

        >>> Record({}, within="head").inner_path("head.conv.weight@head.conv")
        'conv.weight@conv'
        >>> Record({}, within="head", bare="linear").inner_path("head.weight@head")
        'weight@linear'
        """
        if not self.within:
            return path
        parts = path.split("@")
        return "@".join(self.bare if self.bare and p == self.within else p.removeprefix(f"{self.within}.") for p in parts)


def attach(model: fx.GraphModule, record: Record) -> fx.GraphModule:
    """Set the record of a new model, in place, and return the model."""
    model.meta["qfunc"] = record  # survives copy.deepcopy
    model.qfunc_record = record  # type: ignore[assignment]  # survives torch.save
    return model


def within_module(model: fx.GraphModule, classes: tuple[str, ...]) -> fx.GraphModule:
    """Record in each op of a new model that modules of these classes are around it, outermost first; return the model."""
    record = record_of(model)
    assert record is not None
    ops = {n.name for n in model.graph.nodes if n.op.startswith("call")}
    facts = {k: evolve(v, modules=(*classes, *v.modules)) if k in ops else v for k, v in record.facts.items()}
    return attach(model, evolve(record, facts=facts))


def record_of(model: object) -> Record | None:
    """Return the record of a captured model, or None."""
    found = getattr(model, "meta", {}).get("qfunc") if isinstance(getattr(model, "meta", None), dict) else None
    return found or getattr(model, "qfunc_record", None)


def path_of(model: fx.GraphModule, node: fx.Node) -> str:
    """Return the user's path of a node, such as "layer1.0.conv1"."""
    record = record_of(model)
    fact = record.facts.get(node.name) if record else None
    path = fact.path if fact else str(node.target) if node.op == "get_attr" else node.name
    return record.path(path) if record else path
