"""Estimators, functions and lowerings with one mistake each, as vendors make them."""

from __future__ import annotations

import json
import uuid

import numpy as np
import onnx
import torch
from attrs import frozen

from qfunc.estimators import MinMax
from qfunc.functions import Fixed


@frozen
class Scaled:
    """The range's scale times a factor, whatever the scheme says."""

    factor: float

    init, update = MinMax().init, MinMax().update

    def finalize(self, state, scheme):
        found = MinMax().finalize(state, scheme)
        return found._replace(scale=found.scale * self.factor)


@frozen
class Failing:
    """Wants more values than there are."""

    init, update = MinMax().init, MinMax().update

    def finalize(self, state, scheme):
        raise ValueError("quantile() input tensor is too small")


@frozen
class HalfZeroPoint:
    """A zero point between two codes."""

    init, update = MinMax().init, MinMax().update

    def finalize(self, state, scheme):
        found = MinMax().finalize(state, scheme)
        return found._replace(zero_point=found.zero_point + 0.5)


@frozen
class Clamping:
    """Clips what it is shown, in place."""

    init, finalize = MinMax().init, MinMax().finalize

    def update(self, state, x, scheme):
        return MinMax().update(state, x.clamp_(-0.5, 0.5), scheme)


@frozen
class Forgetful:
    """Loses its field in pickles."""

    bins: int = 0

    init, update, finalize = MinMax().init, MinMax().update, MinMax().finalize

    def __reduce__(self):
        return Forgetful, ()

    def __deepcopy__(self, memo):
        return self


@frozen
class Shifted:
    """Codes for deployment that are not those of the simulation."""

    init, apply = Fixed().init, Fixed().apply

    def export(self, params, x, scheme):
        codes, qparams = Fixed().export(params, x, scheme)
        return (codes + 1).clamp(scheme.format.qmin, scheme.format.qmax), qparams


@frozen
class MidRise:
    """Values between the codes, so that there is no 0."""

    init, export = Fixed().init, Fixed().export

    def apply(self, params, x, scheme):
        return Fixed().apply(params, x, scheme) + params.scale / 2


@frozen
class Unclipped:
    """Rounds and does not clip: beyond the codes' ends it simulates what no code holds."""

    init, export = Fixed().init, Fixed().export

    def apply(self, params, x, scheme):
        return torch.round(x / params.scale) * params.scale


def arrays(model):
    return {i.name: i for i in model.graph.initializer}


def replace(initializer, change):
    value = onnx.numpy_helper.to_array(initializer)
    initializer.CopyFrom(onnx.numpy_helper.from_array(np.asarray(change(value), value.dtype), initializer.name))


def copied(model):
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


@frozen
class Edited:
    """Model.onnx after a change: of a copy, or of the very model that it is given."""

    what: str

    def lower(self, program):
        made = program.model if self.what == "the given model" else copied(program.model)
        for name, held in arrays(made).items():
            if self.what == "codes" and name.endswith(".codes"):
                replace(held, lambda v: v // 2 * 2)
            if self.what == "zero points" and name.endswith(".zero_point"):
                replace(held, lambda v: 0 * v)
        if self.what == "checker":
            made.graph.node[0].op_type = "QuantiseLinear"
        if self.what == "random":
            made.producer_name = str(uuid.uuid4())
        if self.what == "the given model":
            made.producer_name = "vendor"
        return {"model.onnx": made.SerializeToString(deterministic=True)}


@frozen
class Ranges:
    """A float model and a range for each tensor, by the names that `wrong` says."""

    wrong: str = ""
    text: bool = False

    def lower(self, program):
        from qfunc.lowering.onnx.remove_quantizers import float_model

        made = float_model(program.model, program.tensors)
        if self.wrong == "weights":
            for name, held in arrays(made).items():
                if name.endswith(".weight"):
                    replace(held, lambda v: v * np.float32(1.001))
        if self.wrong == "unnamed weights":
            for node in made.graph.node:
                node.input[:] = [f"{i}_folded" if i in arrays(made) else i for i in node.input]
            for held in arrays(made).values():
                replace(held, lambda v: v * np.float32(1.001) if v.dtype == np.float32 else v)
                held.name += "_folded"
        table = {self._name(t, i): t.maximum[0] for i, t in enumerate(t for t in program.tensors if t.role == "activation")}
        table |= {"": float("nan")} if self.wrong == "nan" else {}
        if self.wrong == "values":
            table = {name: 1.01 * value for name, value in table.items()}
        if self.wrong == "another's":
            table = dict(zip(table, [*list(table.values())[1:], 1.0], strict=True))
        files = {"model.onnx": made.SerializeToString(deterministic=True)}
        if not self.text:
            return files | {"ranges.json": json.dumps({"ranges": table}).encode()}
        rows = "".join(f"{name}: {value!r}\n" for name, value in table.items())
        first = next(n.name for n in made.graph.node)
        notes = f"Ranges of the chip.\n\n{first} has 3 channels, and\n2 outputs.\n"
        return files | {"ranges.txt": f"# name: range\n{rows}".encode(), "notes.txt": notes.encode()}

    def _name(self, site, index):
        if self.wrong == "one name" and index == 1:
            return site.places[0].real
        return f"blob{index}" if self.wrong == "every name" else site.tensors[0]
