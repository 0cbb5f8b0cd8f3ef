"""Witnesses: two targets that differ in one field of one spec, and an observation that the field changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import attrs
import torch
from attrs import evolve, frozen
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.specs import Accumulator, DerivedQParams, Int, Kernel, Op, PerChannel, Rule, Scale, Scheme, Target

Observation = Callable[[Target, nn.Module, tuple[Tensor, ...]], Any]


@frozen(eq=False)
class Witness:
    """Targets that differ in one field.

    Args:
        before, after: The targets.
        net: The model, a module or a program.
        inputs: Its inputs, for calibration too.
        see: What is observed of a target: `codes`, `files`, `refusal` or `report`.
    """

    before: Target
    after: Target
    net: Any
    inputs: tuple[Tensor, ...]
    see: Observation


def drawn(*shape: int) -> Tensor:
    """Random numbers of about one."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def seeded(net: nn.Module) -> nn.Module:
    """The model with weights that are the same in each run, in evaluation."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.uniform_(-0.5, 0.6, generator=generator)
    return net.eval()


def calibrated(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The calibrated model."""
    batch = inputs[0] if len(inputs) == 1 else inputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # at a fixed scale a whole softmax rounds to 0
        return qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(net))


def codes(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """What the emulation returns."""
    with torch.no_grad():
        result = qfunc.emulate(target)(calibrated(target, net, inputs))(*inputs)
    return b"".join(t.numpy().tobytes() for t in (result if isinstance(result, tuple) else (result,)))


def values(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """What the simulation returns, of formats that no emulation has."""
    with torch.no_grad():
        return calibrated(target, net, inputs)(*inputs).numpy().tobytes()


def files(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The files of the artifact but the one that repeats the target."""
    artifact = qfunc.deploy(target)(calibrated(target, net, inputs))
    return {name: content for name, content in artifact.files.items() if name != "qfunc.json"}


def sizes(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """Whether calibration accepts the model."""
    calibrated(target, net, inputs)
    return "accepted"


def refusal(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """Whether `quantize` accepts the model."""
    qfunc.quantize(target)(net)
    return "accepted"


def report(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The explanation of the calibrated model."""
    return str(qfunc.explain(calibrated(target, net, inputs)))


def verdict(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """What `verify` says."""
    batch = inputs[0] if len(inputs) == 1 else inputs
    return qfunc.verify(target)(calibrated(target, net, inputs), [batch]).verdict


def printed(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The target as people read it."""
    return str(target)


def observed(witness: Witness, target: Target) -> tuple[str, Any]:
    """What a target gives, and whether it is a value or an error."""
    return _seen(witness.see, target, witness.net, witness.inputs)


@cache  # many witnesses change one target
def _seen(see: Observation, target: Target, net: Any, inputs: tuple[Tensor, ...]) -> tuple[str, Any]:
    try:
        return "value", see(target, net, inputs)
    except QfuncError as error:
        return "error", str(error)


MESSAGES = ("because", "do", "reason", "nearest")
"""Fields that are sentences of an error: two errors may show that they differ."""


def changes(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Each place where two values differ: the fields that lead to it, as Class.field, and the values there."""
    if type(before) is type(after) and attrs.has(type(before)):
        for field in attrs.fields(type(before)):
            if field.init:
                here = (*path, f"{type(before).__name__}.{field.name}")
                yield from changes(getattr(before, field.name), getattr(after, field.name), here)
    elif isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from changes(one, other, path)
    elif before != after:
        held = [Accumulator(v) if type(v) is int and path[-1].endswith(".accumulator") else v for v in (before, after)]
        yield path, *held


def holds(value: Any, kind: str) -> bool:
    """Return True if a value is of the class of this name, or contains one."""
    if type(value).__name__ == kind:
        return True
    if isinstance(value, tuple):
        return any(holds(v, kind) for v in value)
    return attrs.has(type(value)) and any(holds(getattr(value, f.name), kind) for f in attrs.fields(type(value)))


def replaced(value: Any, old: Any, new: Any) -> Any:
    """The value with another in place of each spec that equals `old`."""
    if type(value) is type(old) and value == old:
        return new
    if isinstance(value, tuple):
        return tuple(replaced(v, old, new) for v in value)
    if not attrs.has(type(value)) or not type(value).__module__.startswith("qfunc.specs"):
        return value
    fields = {f.name: getattr(value, f.name) for f in attrs.fields(type(value)) if f.init}
    other = {name: replaced(v, old, new) for name, v in fields.items()}
    return value if all(other[n] is fields[n] or other[n] == fields[n] for n in fields) else evolve(value, **other)


BYTE, NARROW = Int(8), Int(8, low=-127)
ACTIVATION = Scheme(BYTE)
WEIGHT = Scheme(NARROW, Scale(PerChannel()))
CONV = Op("conv")


def chip(*kernels: Kernel, rules: Any = (), **changes: Any) -> Target:
    """An own chip: convolutions with symmetric codes, by default computed in float."""
    first = Rule(CONV, input=ACTIVATION, weight=WEIGHT, bias=DerivedQParams(), output=ACTIVATION)
    same = {"fusions": (), "ties": (), "legality": (), "commuting": (), "lowering": None, "rules": rules or (first,)}
    return evolve(targets.qdq, name="chip", kernels=kernels, **{**same, **changes})


def witness(before: Target, old: Any, new: Any, net: Any, *inputs: Tensor, see: Observation = codes) -> Witness:
    """The target, and the one with `new` in place of `old`."""
    return Witness(before, replaced(before, old, new), net, inputs, see)
