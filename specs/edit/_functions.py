"""The functions of `specs.edit` that return edits of algorithms, schemes, fusions and lowerings, and `pipe`."""

from __future__ import annotations

from typing import Any, Never, Unpack

from attrs import fields, frozen

from qfunc.errors import SpecError, a_or_an
from qfunc.specs._values import short
from qfunc.specs.arithmetic.kernel import Kernel
from qfunc.specs.arithmetic.requantization import Copy
from qfunc.specs.cpus import Cpu, named
from qfunc.specs.edit._keywords import ActivationProperties, WeightProperties
from qfunc.specs.edit._rewrites import (
    ChangeSlots, Edit, PutBehind, PutInFront, SchemeChange, SetAlgorithm, SetCpu, SetLowering, SetSlower, known_keys,
    require_change,
)  # fmt: skip
from qfunc.specs.edit._rules import add, inputs, outputs, skip
from qfunc.specs.edit._selectors import module, name, op, where
from qfunc.specs.number_format import Int
from qfunc.specs.op_kind import OpKind
from qfunc.specs.placement import Fusion, SameQParams, Tie
from qfunc.specs.protocols import Estimator, Function, Lowering
from qfunc.specs.scheme import Scheme, ZeroPoint
from qfunc.specs.selectors import Everything, Op, Selector, require_selector
from qfunc.specs.target import Override, Slower, Target

_ALGORITHM = ("estimator", "function")


def pipe(target: Target, *edits: Edit) -> Target:
    """Apply the edits in order and return the new target; the given target does not change.

    Args:
        target: The target to start from.
        edits: Functions from a target to a target: those that `edit.weights(...)` and the others return, or your own.
    Raises:
        SpecError: `target` is not a target, or an edit is not a function of a target, such as `edit.weights` itself.

    >>> from qfunc import targets
    >>> pipe(targets.onnxruntime, weights(bits=4), skip(name("head.*"))).rules[0]
    Rule(Name('head.*'), input=KeepFloat(), weight=KeepFloat(), bias=KeepFloat(), output=KeepFloat())
    """
    if not isinstance(target, Target):
        do = "Write edit.pipe(target, edit.weights(bits=4), ...)."
        raise SpecError(where="edit.pipe", found=short(target), wanted="a Target first", do=do)
    for edit in edits:
        if not callable(edit) or isinstance(edit, type | Target) or edit in _FACTORIES:
            called = getattr(edit, "__name__", "")
            do = (
                f"Call it: edit.{called}(...)."
                if edit in _FACTORIES
                else "Use edit.weights(...), edit.skip(...) and the others."
            )
            raise SpecError(where="edit.pipe", found=short(edit), wanted="a function target -> target", do=do)
        edited: Any = edit(target)
        if not isinstance(edited, Target):
            raise SpecError(
                where=f"edit.pipe, {short(edit)}", found=short(edited), wanted="a Target back", do="Return the target."
            )
        target = edited
    return target


@frozen
class _Then:
    edits: tuple[Edit, ...]

    def __call__(self, target: Target) -> Target:
        return pipe(target, *self.edits)


def weights(
    *,
    bits: int | None = None,
    estimator: Estimator | None = None,
    function: Function | None = None,
    **scheme: Unpack[WeightProperties],
) -> Edit:
    """Return an edit of all weights: narrower codes, another estimator or function, or another scheme.

    Args:
        bits: The width of the codes. The hardware still stores its own format, because weights are written offline.
        estimator: Finds the qparams.
        function: The quantize function.
        scheme: Properties of other hardware: `signed`, `symmetric`, `granularity`, `power_of_two`, `rounding` and
            `division` (see `SchemeChange`).
    Raises:
        SpecError: bits outside [2, 16], an unknown property, or a value that it cannot have; on a target, a
            property that none of its schemes of weights has.

    >>> from qfunc import targets
    >>> weights(bits=4)(targets.tensorrt).overrides
    (Override(Everything(), role='weight', bits=4),)
    """
    known_keys("edit.weights", scheme, ("bits", *_ALGORITHM, *(k for k in _PROPERTIES if k != "bits")))
    require_change("edit.weights", bits, estimator, function, *scheme)
    edits: list[Edit] = [SetAlgorithm("weight", estimator, function)]
    if scheme:
        edits.append(ChangeSlots(("weight",), SchemeChange(**scheme)))
    if bits is not None:
        edits.append(PutBehind((Override(Everything(), "weight", bits=bits),)))
    return _Then(tuple(edits))


def activations(
    *, estimator: Estimator | None = None, function: Function | None = None, **scheme: Unpack[ActivationProperties]
) -> Edit:
    """Return an edit of all activations: another estimator or function, or another scheme, which is other hardware.

    Qparams that the hardware fixes, such as the scale of a softmax, stay, and so do schemes that a kernel computes at run time.

    Args:
        estimator: Finds the qparams.
        function: The quantize function.
        scheme: Properties of other hardware: `bits`, `signed`, `symmetric`, `granularity`, `power_of_two`, `rounding`
            and `division` (see `SchemeChange`).
    Raises:
        SpecError: an unknown property, or a value that it cannot have; on a target, a property that none of its
            schemes of activations has.

    >>> from qfunc import targets
    >>> activations(bits=4)(targets.onnxruntime).rules[0].input.format
    Int(4, signed=False)
    """
    known_keys("edit.activations", scheme, _PROPERTIES)
    require_change("edit.activations", estimator, function, *scheme)
    edits: list[Edit] = [SetAlgorithm("activation", estimator, function)]
    if scheme:
        edits.append(ChangeSlots(("input", "output"), SchemeChange(**scheme)))
    return _Then(tuple(edits))


def override(
    selector: Selector, *, weights: dict[str, Any] | None = None, activations: dict[str, Any] | None = None, **other: Never
) -> Edit:
    """Return an edit of the selected ops only: `override(name("head"), weights=dict(bits=8))`.

    Args:
        selector: The ops.
        weights, activations: Dicts with the keys `bits`, `estimator` and `function`, as the fields of `specs.Override`.
        other: Must be empty; another keyword is refused by name.
    Raises:
        SpecError: no selector, another keyword, a key that is not a field of `specs.Override`, or nothing to change.

    >>> from qfunc import targets
    >>> override(name("layer4.*"), weights=dict(bits=8))(targets.tensorrt).overrides
    (Override(Name('layer4.*'), role='weight', bits=8),)
    """
    require_selector("edit.override", selector)
    known_keys("edit.override", other, ("weights", "activations"))
    made = []
    for role, keys in (("weight", weights), ("activation", activations)):
        if keys is not None and not isinstance(keys, dict):
            raise SpecError(where=f"edit.override, {role}s", found=short(keys), wanted="a dict", do="Write e.g. dict(bits=8).")
        if keys:
            known_keys(f"edit.override, {role}s", keys, ("bits", *_ALGORITHM))
            made.append(Override(selector, role, **keys))
    if not made:
        raise SpecError(where="edit.override", found="nothing to change", wanted="weights or activations", do="Give one.")
    return PutBehind(tuple(made))


def fuse(fusion: Fusion, *ops: OpKind) -> Edit:
    """Return an edit that adds a fusion before all others, and definitions of user-defined ops.

    A user's own fold function is the `fold` of a `FusionStep`. It computes one weight and one bias from those of the
    root and the step, before anything is quantized.

    Args:
        fusion: The fusion.
        ops: Definitions of the user-defined ops that it names.
    Raises:
        SpecError: `fusion` is not a Fusion, or an op is not an OpKind.

    >>> from qfunc import targets
    >>> from qfunc.specs import FusionStep
    >>> len(fuse(Fusion(op("conv"), FusionStep(op("my_act"))), OpKind("my_act", "mine.act"))(targets.onnxruntime).ops)
    1
    """
    for kind, values in ((Fusion, (fusion,)), (OpKind, ops)):
        for value in values:
            if type(value) is not kind:
                wanted, do = a_or_an(kind), f"Write specs.{kind.__name__}(...)."
                raise SpecError(where="edit.fuse", found=short(value), wanted=wanted, do=do)
    return _Then((PutInFront("fusions", (fusion,)), PutInFront("ops", ops)))


def state(scheme: Scheme = Scheme(Int(8, signed=False), zero_point=ZeroPoint())) -> Edit:
    """Return an edit that holds state in codes: what a model writes at positions, such as a cache of keys and values.

    The input, the entries that are written into it and the result share qparams.  In files of ONNX Runtime the inputs and
    outputs of such state have the type of the codes; a cache in uint8 takes a quarter of the memory.

    Args:
        scheme: The format of the codes, with one static scale.
    Raises:
        SpecError: no scheme.

    >>> from qfunc import targets
    >>> state()(targets.onnxruntime).ties
    (Tie(Op('index_put'), slots=('input', 'output'), leader='union'),)
    """
    if not isinstance(scheme, Scheme):
        do = "Write edit.state(), or edit.state(Scheme(Int(8)))."
        raise SpecError(where="edit.state", found=short(scheme), wanted="a Scheme", do=do)
    written = Op("index_put")
    formats = (("input", (scheme.format,)), ("output", (scheme.format,)))
    kernel = Kernel(written, Copy(), integer_if=(SameQParams(),), formats=formats)
    return _Then((
        add(written, input=scheme, output=scheme),
        PutInFront("ties", (Tie(written, ("input", "output"), "union"),)),
        PutInFront("kernels", (kernel,)),
    ))  # fmt: skip


def deploy(lowering: Lowering) -> Edit:
    """Return an edit that replaces the lowering, and so the files that `qfunc.deploy` writes.

    Args:
        lowering: A lowering of `qfunc.lowering`, or your own.
    Raises:
        SpecError: not a frozen value with a method `lower`.

    >>> from qfunc import lowering, targets
    >>> deploy(lowering.PackInt4())(targets.onnxruntime).lowering
    PackInt4()
    """
    return SetLowering(lowering)


def cpu(processor: Cpu | str) -> Edit:
    """Return an edit that describes the runtime on another processor: what its kernels there compute otherwise.

    Args:
        processor: One of `specs.cpus`, or its name: "x86-64-vnni", "x86-64-avxvnni", "x86-64-avx2", "x86-64-sse4", "arm64",
            "arm64-dotprod", "arm64-i8mm" or "wasm-simd".
    Raises:
        SpecError: another name; on a target, a runtime without a build for this processor.

    >>> from qfunc import targets
    >>> str(cpu("arm64-dotprod")(targets.onnxruntime).runtime.cpu)
    'arm64-dotprod'
    """
    if isinstance(processor, Cpu):
        return SetCpu(processor)
    if not isinstance(processor, str):
        do = "Write edit.cpu('arm64-dotprod')."
        raise SpecError(where="edit.cpu", found=short(processor), wanted="one of specs.cpus, or its name", do=do)
    return SetCpu(named(processor))


def slower(*rows: Slower) -> Edit:
    """Return an edit that replaces what the processor of the target computes slower on integers than in float.

    `edit.slower()` puts all ops on integers for which the target has rules.

    Args:
        rows: What to leave in float.
    Raises:
        SpecError: a value that is no `specs.Slower`; on a target, a runtime without builds.

    >>> from qfunc import targets
    >>> slower()(targets.litert).runtime.slower
    ()
    """
    for row in rows:
        if not isinstance(row, Slower):
            do = 'Write edit.slower(Slower(edit.op("prelu"), 3.8, "measured")).'
            raise SpecError(where="edit.slower", found=short(row), wanted="a Slower", do=do)
    return SetSlower(rows)


_PROPERTIES = tuple(f.name for f in fields(SchemeChange))
_FACTORIES = (
    weights,
    activations,
    override,
    skip,
    add,
    inputs,
    outputs,
    fuse,
    state,
    deploy,
    cpu,
    slower,
    name,
    op,
    module,
    where,
    pipe,
)
