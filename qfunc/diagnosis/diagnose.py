"""diagnose: why a quantized model loses accuracy, and what its target can do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from qfunc._transform import Transform
from qfunc.diagnosis.latency import Latency
from qfunc.diagnosis.plan import Setting
from qfunc.diagnosis.report import Diagnosis
from qfunc.diagnosis.scoring import Metric
from qfunc.diagnosis.study import Study
from qfunc.errors import SpecError
from qfunc.execution.batches import require_repeatable, require_some
from qfunc.execution.distributed import require_one_process
from qfunc.specs import Target
from qfunc.transforms.validate import describe, require_target_value


def diagnose(
    target: Target,
    batches: Iterable[Any],
    progress: bool = True,
    *,
    metric: Metric | None = None,
    calibration: Iterable[Any] | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    latency: Latency | None = None,
) -> Callable[[nn.Module | ExportedProgram], Diagnosis]:
    """Return a function from a float model to a `Diagnosis`: why it loses accuracy on a target, and what recovers it.

    It quantizes and calibrates the model, and looks for causes in the ranges and channels of its tensors: batches of the
    calibration that are unlike the evaluated ones, clipped values, tied tensors of unlike ranges, channels of unlike
    ranges under one scale, biases that do not fit, and the rounding of all other tensors. The share of a cause is

        (L(all) - L(without it) + L(it alone)) / (2 L(all)),

    where L is the loss of the network with some quantizers: all, all but those that the cause names, or only these. The
    loss is the float network's metric less the simulation's; without a metric, noise / signal of the outputs. Where two
    causes each suffice to spoil the network, removing one of them gains nothing, and only its loss alone shows it.
    For each cause it then measures the plans that may remove it, each with the loss that it recovers, the share of
    multiply-accumulates that stay on integers and the size of the weights. Plans that the target refuses are listed with
    its reason. The best plans are joined as long as they recover more. If that does not recover 90 % of the loss, the ops
    that are then the most sensitive are kept in float, too.

    Args:
        target: The hardware.
        batches: The evaluated batches; they are iterated many times.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        metric: A function (outputs, batch) -> one number per example, higher is better, such as
            `outputs[0].argmax(1) == batch[1]`. The outputs are the list of the model's output tensors, those of a dict in
            its order. The batch may have labels behind the inputs of a tuple, or under other keys of a dict.
        calibration: The batches for `calibrate`; None for the evaluated ones.
        example_inputs: As for `quantize`.
        latency: A function (artifacts, inputs) -> seconds of each, such as `RunTime(target.runtime.runner)`. Each plan is then
            deployed, and measured on the first batch.
    Raises:
        CalibrationError: no batches, batches that can be iterated only once, or a metric that returns no numbers.
        SpecError: the target refuses the model; `metric` or `latency` is not a function; or there is a default process group
            of several processes.

    >>> import qfunc
    >>> from qfunc import targets
    >>> from qfunc.specs import PerTensor, edit
    >>> coarse = edit.weights(granularity=PerTensor())(targets.onnxruntime)
    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU6(), nn.Linear(64, 4))
    >>> _ = model[0].weight.data[0].mul_(300)
    >>> report = diagnose(coarse, [torch.randn(64, 8)], progress=False)(model)
    >>> report.causes[0].kind, report.choose().recovered > 0.5
    ('channels of weights', True)
    """
    require_one_process("diagnose", _ALONE)
    require_target_value(target, "diagnose")
    for name, given in (("batches", batches), ("calibration", calibration)):
        if given is not None:
            require_repeatable(given, "diagnose", name, progress, "qfunc.diagnose(target, batches)(model)")
            require_some(given, "diagnose", name)
    if metric is not None and not callable(metric):
        do = "Pass a function (outputs, batch) -> one number per example."
        raise SpecError(where="diagnose, metric", found=describe(metric), wanted="a function", do=do)
    if latency is not None and not callable(latency):
        wanted, do = (
            "a function (artifacts, inputs) -> seconds of each",
            "Write latency=qfunc.diagnosis.RunTime(target.runtime.runner).",
        )
        raise SpecError(where="diagnose, latency", found=describe(latency), wanted=wanted, do=do)
    setting = Setting(target, batches, batches if calibration is None else calibration, example_inputs)

    def transform(model: nn.Module | ExportedProgram) -> Diagnosis:
        require_one_process("diagnose", _ALONE)
        with torch.inference_mode(False):
            given = setting if metric is None else setting.without_labels(model)
            return Study(given, batches, metric, latency, model, progress).diagnosis()

    arguments = {
        "target": target, "batches": batches, "progress": progress, "metric": metric, "calibration": calibration,
        "example_inputs": example_inputs, "latency": latency,
    }  # fmt: skip
    return Transform(diagnose, arguments, transform)


_ALONE = "Call it in one process, before init_process_group."
