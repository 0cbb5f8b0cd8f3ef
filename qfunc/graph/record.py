"""What a captured model knows about itself besides its graph: a frozen value that travels with it."""

from __future__ import annotations

from attrs import field, frozen
from torch import fx

from qfunc.specs import Target


@frozen
class Fact:
    """Where a node comes from: its path in the user's model, the classes around it, its source line.

    `whole` says that its tensor is of an integer or boolean type.
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
class Record:
    """The facts of the nodes by name; after `quantize` the target; after `calibrate` the inputs.

    `stage` is "captured", "quantized" or "calibrated".  `rank_two` names linear layers that took in a
    BatchNorm1d, which is right for values of rank 2 only; calibration sees whether they are.
    `unfolded` holds (op, step, why) for what almost folded.  `within` is the model's path in the outer module of
    which it is a part, or ""; the paths of `facts` are the model's own, those that users see are the outer module's.
    `axes` names the axes of each input that torch.export left dynamic, None for the others.  `evaluated` says what was
    exported in evaluation mode and cannot train, or "".
    """

    facts: dict[str, Fact] = field(hash=False)
    target: Target | None = None
    inputs: tuple[TensorInfo, ...] = ()
    stage: str = "captured"
    rank_two: tuple[str, ...] = ()
    unfolded: tuple[tuple[str, str, str], ...] = ()
    within: str = ""
    axes: tuple[tuple[str | None, ...], ...] = ()
    evaluated: str = ""

    def path(self, own: str) -> str:
        """A path of the model's as the user knows it."""
        return f"{self.within}.{own}" if self.within else own

    def own(self, path: str) -> str:
        """The opposite: a user's path, or one "@" another, without that of the outer module.

        >>> Record({}, within="head").own("head.conv.weight@head.conv")
        'conv.weight@conv'
        """
        parts = (part.removeprefix(f"{self.within}.") if self.within else part for part in path.split("@"))
        return "@".join(parts)


def attach(model: fx.GraphModule, record: Record) -> fx.GraphModule:
    """Gives the (new) model its record."""
    model.meta["qfunc"] = record  # survives copy.deepcopy
    model.qfunc_record = record  # type: ignore[assignment]  # survives torch.save
    return model


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
