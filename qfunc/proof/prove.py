"""prove: an artifact that another machine can check, without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from qfunc import specs
from qfunc._transform import Transform
from qfunc.errors import DeployError, VerifyError
from qfunc.execution.artifact_sizes import with_sizes_of
from qfunc.execution.batches import Binder, tensors_of
from qfunc.execution.distributed import map_tensors
from qfunc.graph.copying import on_cpu
from qfunc.graph.stages import require_stage
from qfunc.lowering.artifact import Artifact
from qfunc.lowering.checked_runtime import CheckedRunner, CheckedRuntime
from qfunc.proof.expected import expected_tensors
from qfunc.proof.package import with_proof
from qfunc.specs import Target
from qfunc.transforms.deploy import deployment, require_whole, write_artifact
from qfunc.transforms.validate import describe, require_public, require_target, require_target_value


def prove(
    target: Target, *, artifact: Artifact | None = None, onnxruntime_web: str = "./"
) -> Callable[[fx.GraphModule, Any], Artifact]:
    """Return a function (calibrated, batch) -> `Artifact`: the artifact, and what a machine without torch needs to check it.

    The package has five more files. "proof.json" and "proof.safetensors" hold the batch, the codes of each tensor that the
    runtime shows, and the outputs, as the emulation computes them. "check.py" needs NumPy and the runtime alone: it runs the
    model, prints a row for each tensor, and names the first that differs. "index.html", for ONNX Runtime, does the same in a
    browser. Tensors after ops in float that the emulation does not compute bit for bit are shown, and do not count.

    Args:
        target: The hardware that the model was quantized for, on the processor of the machine: `edit.cpu("arm64-dotprod")`.
        artifact: The model's artifact, as `deploy` with other names returned it; by default it is deployed.
        onnxruntime_web: The folder with the files of onnxruntime-web, relative to the page, or a URL that ends with "/".
    Raises:
        VerifyError: another runtime than ONNX Runtime, LiteRT, ncnn or OpenVINO, or state in codes.
        EmulationError: the arithmetic of the target is not public.
        DeployError: the artifact of another target or model.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> from qfunc.specs import edit
    >>> phone, batch = edit.cpu("arm64-dotprod")(targets.onnxruntime), torch.randn(4, 3)
    >>> calibrated = qfunc.calibrate([batch])(qfunc.quantize(phone)(torch.nn.Linear(3, 2)))
    >>> sorted(prove(phone)(calibrated, batch).files)
    ['check.py', 'index.html', 'model.onnx', 'proof.json', 'proof.safetensors', 'qfunc.json']
    """

    require_target_value(target, "prove")
    runtime = _runtime_of(target)
    if artifact is not None and not isinstance(artifact, Artifact):
        do = "Pass the result of deploy(target)(calibrated), or leave it out."
        raise VerifyError(where="prove, artifact", found=describe(artifact), wanted="an Artifact", do=do)
    if not isinstance(onnxruntime_web, str) or not onnxruntime_web.endswith("/"):
        do = "Write './' for the folder of the page, or a URL."
        found = describe(onnxruntime_web) if not isinstance(onnxruntime_web, str) else repr(onnxruntime_web)
        raise VerifyError(where="prove, onnxruntime_web", found=found, wanted="a folder that ends with '/'", do=do)

    def transform(calibrated: fx.GraphModule, batch: Any) -> Artifact:
        require_whole(calibrated, "prove")
        require_stage(calibrated, "calibrated", "prove")
        require_target(calibrated, target, "prove")
        require_public(target)
        calibrated, batch = on_cpu(calibrated), map_tensors(batch, Tensor.cpu)
        arguments = Binder(calibrated)(batch, "prove")
        deployed = deployment(with_sizes_of(calibrated, arguments, target), target)
        files = write_artifact(deployed) if artifact is None else artifact
        if artifact is not None:
            _require_own(artifact, write_artifact(deployed), target)
        _require_real_ends(files)
        leaves = tensors_of(arguments)
        expected = expected_tensors(deployed.partition, leaves, frozenset(runtime.shown(files)))
        return with_proof(files, runtime, target, leaves, expected, onnxruntime_web)

    return Transform(prove, {"target": target, "artifact": artifact, "onnxruntime_web": onnxruntime_web}, transform)


def _runtime_of(target: Target) -> CheckedRuntime:
    runner: Any = target.runtime.runner
    if not isinstance(runner, CheckedRunner):
        wanted, do = "ONNX Runtime, LiteRT, ncnn or OpenVINO", "Compare it by qfunc.verify(target, runtime=run)."
        name = target.runtime.name or "none"
        raise VerifyError(where=f"prove({target.name})", found=f"the runtime {name}", wanted=wanted, do=do)
    found, cpu = runner.checked(), target.runtime.cpu
    if cpu is not None and cpu.architecture == "wasm" and not found.page:
        wanted = "ONNX Runtime, which the page runs"
        do = f"Compare it by qfunc.verify(target, {type(runner).__name__}(machine=Browser()))."
        raise VerifyError(where=f"prove({target.name})", found=f"{target.runtime.name} on {cpu}", wanted=wanted, do=do)
    return found


def _require_real_ends(artifact: Artifact) -> None:
    from qfunc.lowering.coded_state.ends import coded_ends

    found = [name for file, content in artifact.files.items() if file.endswith(".onnx") for name in coded_ends(content)]
    if found:
        do, wanted = "Prove the model of a target without edit.state().", "real inputs and outputs, as check.py passes them"
        raise VerifyError(where="prove", found=f"codes at {', '.join(found)}", wanted=wanted, do=do)


def _require_own(artifact: Artifact, own: Artifact, target: Target) -> None:
    found, wanted = artifact.report, own.report
    if found.get("target") != json.loads(specs.to_json(target)):
        do = "Deploy the model for the target of prove."
        raise DeployError(where="prove, artifact", found="another target in its report", wanted=target.name, do=do)
    qparams = [[(t["role"], t["scale"], t["zero_point"]) for t in report.get("tensors", ())] for report in (found, wanted)]
    if qparams[0] != qparams[1]:
        do = "Pass the artifact of the calibrated model, or leave it out."
        raise DeployError(where="prove, artifact", found="other qparams in its report", wanted="the model's qparams", do=do)
