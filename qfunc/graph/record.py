"""What a captured model knows about itself besides its graph: a frozen value that travels with it."""

from __future__ import annotations

from typing import Any

from attrs import evolve, field, frozen
from torch import fx

from qfunc.specs import Target


@frozen
class NodeInfo:
    """The origin of a node: its path in the user's model, the classes around it, its source line.

    `whole` is True if its tensor has an integer or boolean type.
    """

    path: str
    modules: tuple[str, ...] = ()
    source: str = ""
    whole: bool = False


@frozen
class TensorInfo:
    """Shape and dtype of an input of the model, as calibration met it first."""

    shape: tuple[int, ...]
    dtype: str


@frozen
class Argument:
    """An argument of the forward that was captured; the value to which it is `fixed`; whether the graph has an input for it."""

    name: str
    fixed: bool = False
    value: Any = field(default=None, eq=False)
    taken: bool = True


@frozen
class Record:
    """The facts of the nodes by name; after `quantize` the target; after `calibrate` the inputs.

    `stage` is "captured", "quantized" or "calibrated".  `rank_two` names linear layers that took in a
    BatchNorm1d, which is right for values of rank 2 only; calibration sees whether they are.
    `unfolded` holds (op, step, why) for what almost folded, `unmatched` (op, rewrite, why) for what a rewrite almost
    matched.  `within` is the model's path in the outer module of which it is a part, or ""; the paths of `facts` are the
    model's own, those that users see are the outer module's.
    `around` names the classes of the modules around it.  `bare` is the own path of the op that such a part ends in if it
    is one module of torch.nn: users know the op by the module's path.
    `axes` names the axes of each input that torch.export left dynamic, None for the others.  `evaluated` says what was
    exported in evaluation mode and cannot train, or "".  `arguments` are those of the forward, () of an ExportedProgram.
    `batch` is the size of the first input's first axis if torch.export fixed it.  `sizes` has the name and the sizes of each
    input of a program of the user's own, None for those that vary.
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

    def path(self, own: str) -> str:
        """A path of the model's as the user knows it."""
        if not self.within or (self.bare and own == self.bare):
            return self.within or own
        return f"{self.within}.{own}"

    def own(self, path: str) -> str:
        """The opposite: a user's path, or one "@" another, without that of the outer module.

        >>> Record({}, within="head").own("head.conv.weight@head.conv")
        'conv.weight@conv'
        >>> Record({}, within="head", bare="linear").own("head.weight@head")
        'weight@linear'
        """
        if not self.within:
            return path
        parts = path.split("@")
        return "@".join(self.bare if self.bare and p == self.within else p.removeprefix(f"{self.within}.") for p in parts)


def attach(model: fx.GraphModule, record: Record) -> fx.GraphModule:
    """Gives the (new) model its record."""
    model.meta["qfunc"] = record  # survives copy.deepcopy
    model.qfunc_record = record  # type: ignore[assignment]  # survives torch.save
    return model


def within_module(model: fx.GraphModule, classes: tuple[str, ...]) -> fx.GraphModule:
    """The (new) model, each of whose ops says that modules of these classes are around it, the outermost first."""
    record = record_of(model)
    assert record is not None
    ops = {n.name for n in model.graph.nodes if n.op.startswith("call")}
    facts = {k: evolve(v, modules=(*classes, *v.modules)) if k in ops else v for k, v in record.facts.items()}
    return attach(model, evolve(record, facts=facts))


def record_of(model: object) -> Record | None:
    """The record of a captured model, or None."""
    found = getattr(model, "meta", {}).get("qfunc") if isinstance(getattr(model, "meta", None), dict) else None
    return found or getattr(model, "qfunc_record", None)


def path_of(model: fx.GraphModule, node: fx.Node) -> str:
    """The user's path of a node: "layer1.0.conv1"."""
    record = record_of(model)
    fact = record.facts.get(node.name) if record else None
    own = fact.path if fact else str(node.target) if node.op == "get_attr" else node.name
    return record.path(own) if record else own
