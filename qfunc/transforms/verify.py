"""verify: is what was emulated what the runtime computes?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from attrs import evolve
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.analysis.gain import Gain
from qfunc.analysis.verification_report import Report
from qfunc.errors import CalibrationError, DeployError, VerifyError
from qfunc.execution.artifact_sizes import fixes_sizes, with_sizes_of
from qfunc.execution.batches import as_list, require_batches
from qfunc.execution.distributed import map_tensors
from qfunc.execution.feed import feed_all
from qfunc.execution.varying_sizes import axes_of
from qfunc.graph.copying import on_cpu
from qfunc.graph.record import record_of
from qfunc.graph.submodules import require_submodules
from qfunc.specs import Target
from qfunc.specs._check import misfit
from qfunc.specs.protocols import Runner
from qfunc.transforms.deploy import deploy
from qfunc.transforms.scores import Score, Scores
from qfunc.transforms.validate import describe, require_target, require_target_value
from qfunc.transforms.verification.check import Verification
from qfunc.transforms.verification.gains import Gains


def verify(
    target: Target, runtime: Any = None, *, score: Score | None = None, reference: Callable[..., Any] | None = None,
    latency: bool = True,
) -> Callable[[nn.Module, Iterable[Any]], Report]:  # fmt: skip
    """Return a function (calibrated, batches) -> `Report` that compares the artifact, run by the runtime, with the emulation.

    First it compares the runtime's own partition into integer and float units with the predicted one, unit by unit;
    then every tensor of codes, at full optimisation; then the outputs, also the simulation's. For a target
    without public arithmetic it compares the outputs with the simulation only. Each submodule that
    `quantize(submodules=)` quantized is verified on the inputs that it has in the whole model.

    The report also says what the file is worth: `report.sqnr` and `report.top1` compare the runtime's outputs with the
    float network, `report.latency.ratio` and `report.size_ratio` the file with the file of the float network for the same
    runtime. One example is timed, by turns, for at most 2 seconds.

    Args:
        target: The hardware that the model was quantized for.
        runtime: None for the target's own runner; or a runner; or a function run(artifact, inputs) -> outputs, such as a
            vendor's simulator. `inputs` are tensors, `outputs` are arrays in the model's order.
        score: A function (outputs, batch) -> one number per example, such as `outputs[0].argmax(1) == batch[1]` for
            batches of images and labels. The report has the means of the float network, the simulation, the emulation
            and the runtime.
        reference: The model with which the outputs are compared, in place of the float network that the calibrated model
            holds, such as the model before equalization or training. A quantized submodule is compared with its own float
            network in either case.
        latency: Whether to measure the latency.
    Raises:
        VerifyError: no runtime (the error lists those that can run), no batches, outputs of another shape, a reference in
            training mode, or a score for a model with quantized submodules.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> from qfunc.specs import edit
    >>> target = edit.weights(bits=7)(targets.onnxruntime)  # of 7 bits, so that any x86-64 computes the same
    >>> batches = [torch.randn(4, 3)]
    >>> calibrated = qfunc.calibrate(batches)(qfunc.quantize(target)(torch.nn.Linear(3, 2)))
    >>> verify(target)(calibrated, batches).verdict
    'bit-exact: 0 of 28 elements differ'
    """

    _require_reference(reference)
    choices = {"target": target, "runtime": runtime, "score": score, "reference": reference, "latency": latency}
    held = on_cpu(reference) if isinstance(reference, nn.Module) else reference
    return Transform(verify, choices, compared(target, runtime, score, partial(Gains, reference=held, timed=latency)))


def compared(
    target: Target, runtime: Any = None, score: Score | None = None, gains: Callable[..., Gains] | None = None
) -> Callable[[nn.Module, Iterable[Any]], Report]:
    """Return `verify` whose report says what the file is worth only if `gains` makes the `Gains` of a model."""
    require_target_value(target, "verify")
    if runtime is not None and not callable(runtime) and not isinstance(runtime, Runner):
        do = "Pass a function run(artifact, inputs) -> outputs, or leave it out for the target's own."
        raise VerifyError(where="verify, runtime", found=describe(runtime), wanted="a runner", do=do)
    if isinstance(runtime, Runner) and (bad := misfit(type(runtime), Runner)):
        found, wanted, do = bad
        raise VerifyError(where="verify, runtime", found=f"{describe(runtime)} with {found}", wanted=wanted, do=do)
    if score is not None and not callable(score):
        do = "Pass a function (outputs, batch) -> one number per example."
        raise VerifyError(where="verify, score", found=describe(score), wanted="a function", do=do)

    def transform(calibrated: nn.Module, batches: Iterable[Any]) -> Report:
        if isinstance(batches, nn.Module):
            do = "Write qfunc.verify(target)(calibrated, batches)."
            wanted = "the model first, and then the batches"
            raise CalibrationError(where="verify", found=describe(batches), wanted=wanted, do=do)
        require_batches(batches, "verify")
        require_submodules(calibrated, "calibrated", "verify")
        given, calibrated = calibrated, on_cpu(calibrated)  # a runtime computes there
        each = require_submodules(calibrated, "calibrated", "verify")
        for part in each.values():
            require_target(part, target, "verify")
        runner = target.runtime.runner if runtime is None else runtime
        if runner is None:
            found, do = "no runtime that can be run here", _runner_remedy(target, next(iter(each.values())))
            raise VerifyError(where=f"verify({target.name})", found=found, wanted="a runner", do=do)
        if score is not None and "" not in each:
            found, do = f"a model of quantized parts: {as_list(each)}", "Leave it out: the runtime has no outputs of the whole."
            raise VerifyError(where="verify, score", found=found, wanted="a model that is quantized as a whole", do=do)
        scores = None if score is None else Scores(score)
        settings = target, runner, scores, gains
        checks = {path: Verification(part, *settings) for path, part in each.items() if _of_known_shapes(part, target)}
        near = batches if given is calibrated else (map_tensors(batch, Tensor.cpu) for batch in batches)
        shown = near if scores is None else scores.watched(near)

        def check(path: str) -> Callable[[tuple[Any, ...], int], Any]:
            def add_batch(arguments: tuple[Any, ...], number: int) -> Any:
                if path not in checks:
                    sized = with_sizes_of(each[path], arguments, target)
                    checks[path] = Verification(sized, *settings)
                return checks[path].add(arguments, number)

            return add_batch

        if not feed_all(calibrated, {path: check(path) for path in each}, shown, "verify", progress=False):
            do = "Pass a non-empty iterable, not one already used up."
            raise VerifyError(where="verify", found="no batches", wanted="at least one", do=do)
        return _combined({path: checks[path].report() for path in each if path in checks})

    return transform


def _require_reference(reference: Any) -> None:
    do = "Pass the float model in evaluation mode: reference=model.eval()."
    if reference is not None and not callable(reference):
        raise VerifyError(where="verify, reference", found=describe(reference), wanted="a model", do=do)
    if isinstance(reference, nn.Module) and reference.training:
        raise VerifyError(where="verify, reference", found="a model in training mode", wanted="evaluation mode", do=do)


def _combined(reports: Mapping[str, Report]) -> Report:
    """Merge the reports of submodules, by path, into one; a report for "" covers the whole model and is returned as it is."""
    first = next(iter(reports.values()))
    if "" in reports:
        return first
    rows = ((path, row) for path, report in reports.items() for row in report.rows)
    return evolve(
        first,
        predicted=sum(r.predicted for r in reports.values()),
        rows=tuple(evolve(row, name=f"{path}, {row.name}") if " " in row.name else row for path, row in rows),
        disagreements=tuple(text for r in reports.values() for text in r.disagreements),
        float_units=tuple(unit for r in reports.values() for unit in r.float_units),
        incomparable=next((r.incomparable for r in reports.values() if r.incomparable), ""),
        skipped=tuple(pair for r in reports.values() for pair in r.skipped),
        unbounded=tuple(pair for r in reports.values() for pair in r.unbounded),
        products=sum(r.products for r in reports.values()),
        compared_products=sum(r.compared_products for r in reports.values()),
        rounded=sum(r.rounded for r in reports.values()),
        integer_products=sum(r.integer_products for r in reports.values()),
        bounded_products=sum(r.bounded_products for r in reports.values()),
        gain=_worst(reports),
    )


def _worst(reports: Mapping[str, Report]) -> Gain:
    # The outputs of all parts; the file whose latency is worst stands for the others.
    outputs = (evolve(o, name=f"{path}, {o.name}") for path, report in reports.items() for o in report.gain.outputs)
    slowest = max((r.gain for r in reports.values()), key=lambda gain: gain.latency.ratio or 0.0)
    losses = tuple((f"{path}.{name}", loss) for path, report in reports.items() for name, loss in report.gain.losses)
    simulated = min((r.gain.simulated for r in reports.values() if r.gain.simulated is not None), default=None)
    return evolve(slowest, outputs=tuple(outputs), losses=losses, simulated=simulated)


def _model_file(target: Target, part: fx.GraphModule) -> bytes:
    # The ONNX model of the artifact; none if a package that writes other files is missing.
    try:
        return bytes(deploy(target)(part).files.get("model.onnx", b""))
    except DeployError:
        return b""


def _of_known_shapes(part: fx.GraphModule, target: Target) -> bool:
    # What got its qparams from a state_dict has met no input yet. A file of one size gets that of the first batch.
    record = record_of(part)
    return record is not None and bool(record.inputs) and not fixes_sizes(target, axes_of(record, record.inputs))


def _runner_remedy(target: Target, part: fx.GraphModule) -> str:
    # ONNX Runtime evaluates Q/DQ as the operators are defined. Only the tools of vendors read tables of qparams.
    own = "runtime=run, where run(artifact, inputs) -> outputs."
    if not _of_known_shapes(part, target) or b"QuantizeLinear" not in _model_file(target, part):
        return f"Pass {own}"
    onnx = (
        "runtime=targets.runtimes.OnnxRuntimeRunner(optimise=False), which runs the Q/DQ of its model.onnx as ONNX defines them"
    )
    return f"Pass {onnx}; or {own}"
