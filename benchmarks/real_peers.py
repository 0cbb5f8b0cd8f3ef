"""What other tools make of the float file of a network, by their defaults, in the runtime that they write for."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleave import interleaved
from real_networks import Batch, Missing, Real
from torch import Tensor

import qfunc
from qfunc.specs import Everything, Target, edit

Arrays = list[Any]
Run = Callable[[Arrays], Any]


def inputs(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch."""
    return [batch] if isinstance(batch, Tensor) else list(batch)


def first(found: Any) -> Tensor:
    """Return the first output."""
    return found if isinstance(found, Tensor) else next(iter(found))


def sqnr(wanted: Tensor, found: Tensor) -> float:
    """Return 10 log10(sum(wanted^2) / sum((wanted - found)^2)), in dB."""
    return 10 * float(torch.log10(wanted.double().square().sum() / (wanted - found).double().square().sum()))


def float_file(target: Target, real: Real, name: str) -> bytes:
    """Return a file of the float network for a target's runtime."""
    plain = edit.skip(Everything())(target)
    calibrated = qfunc.calibrate(real.calibration[:1], progress=False)(qfunc.quantize(plain)(real.model))
    return qfunc.deploy(plain)(calibrated).files[name]


def arrays(batch: Batch) -> Arrays:
    """Return the inputs of a batch as NumPy arrays."""
    return [t.numpy() for t in inputs(batch)]


def row(tool: str, plain: Run, quantized: Run, real: Real, seconds: float) -> list[str]:
    """Return the row of a file whose function returns the first output for a batch."""
    given = arrays(real.test)
    with torch.no_grad():
        wanted = first(real.model(*inputs(real.test)))
    found = torch.as_tensor(np.array(quantized(given)))
    one = [a[:1] for a in given]
    times = interleaved({"float": lambda: plain(one), "int8": lambda: quantized(one)}, 40)
    score = "" if real.score is None else f"{real.score(found, wanted):.1f}"
    return [
        tool,
        f"{sqnr(wanted, found):.1f}",
        score,
        f"{min(times['int8']) / min(times['float']):.2f}",
        "",
        f"{seconds:.1f}",
        "",
    ]


def package(name: str) -> Any:
    """Return an imported package.

    Raises:
        Missing: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not installed") from error


def by_onnxruntime(real: Real) -> Iterator[list[str]]:
    """Yield the rows of onnxruntime.quantization: of static quantization with Q/DQ nodes, and of dynamic quantization."""
    import onnxruntime as ort
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3

    def run(path: str) -> Run:
        session = ort.InferenceSession(path, options)
        return lambda given: session.run(None, dict(zip(names, given, strict=True)))[0]

    with tempfile.TemporaryDirectory() as folder:
        plain, clean, static, dynamic = (str(Path(folder, f"{k}.onnx")) for k in range(4))
        Path(plain).write_bytes(float_file(qfunc.targets.onnxruntime, real, "model.onnx"))
        quant_pre_process(plain, clean)
        names = [i.name for i in ort.InferenceSession(plain, options).get_inputs()]
        rest = iter([dict(zip(names, arrays(b), strict=True)) for b in real.calibration])
        reader = type("Reader", (), {"get_next": lambda self: next(rest, None)})()
        start = time.perf_counter()
        quantize_static(clean, static, reader, quant_format=QuantFormat.QDQ, per_channel=True)
        middle = time.perf_counter()
        quantize_dynamic(clean, dynamic, per_channel=True, weight_type=QuantType.QInt8)
        taken = (middle - start, time.perf_counter() - middle)
        for tool, path, seconds in zip(("ort static", "ort dynamic"), (static, dynamic), taken, strict=True):
            yield row(tool, run(plain), run(path), real, seconds)


def by_nncf(real: Real) -> Iterator[list[str]]:
    """Yield the row of NNCF's post-training quantization in OpenVINO."""
    nncf, openvino = package("nncf"), package("openvino")
    logging.getLogger("nncf").setLevel(logging.ERROR)
    core = openvino.Core()

    def run(model: Any) -> Run:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = core.compile_model(model, "CPU", settings)
        return lambda given: compiled(given)[0]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(float_file(qfunc.targets.openvino, real, "model.onnx"))
        plain = core.read_model(path)
        sized(plain, real.test)
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            quantized = nncf.quantize(plain, nncf.Dataset(list(real.calibration), arrays))
        seconds = time.perf_counter() - start
        yield row("NNCF", run(plain), run(quantized), real, seconds)


def sized(model: Any, batch: Batch) -> None:
    """Fix each size of OpenVINO's inputs that varies, the batch apart, as OpenVINO computes more in float without it."""
    sizes = {
        port: [-1 if k == 0 else n for k, n in enumerate(t.shape)] for port, t in zip(model.inputs, inputs(batch), strict=True)
    }
    model.reshape(
        {port: [-1, *shape[1:]] if port.partial_shape[0].is_dynamic else port.partial_shape for port, shape in sizes.items()}
    )


def by_ai_edge(real: Real) -> Iterator[list[str]]:
    """Yield the rows of ai-edge-quantizer in LiteRT: static with int8 activations, and dynamic."""
    recipe, tool = package("ai_edge_quantizer.recipe"), package("ai_edge_quantizer.quantizer")
    from ai_edge_litert.interpreter import Interpreter

    def run(path: str) -> Run:
        loaded = Interpreter(path, num_threads=1)
        signature = loaded.get_signature_runner()
        ends = signature.get_input_details(), signature.get_output_details()

        def call(given: Arrays) -> Any:
            results = signature(**{n: coded(a, ends[0][n]) for n, a in zip(names, given, strict=True)})
            return reals(results[outputs[0]], ends[1][outputs[0]])

        return call

    with tempfile.TemporaryDirectory() as folder:
        plain = str(Path(folder, "plain.tflite"))
        Path(plain).write_bytes(float_file(qfunc.targets.litert, real, "model.tflite"))
        names, outputs = keys(Interpreter(plain))
        given = [dict(zip(names, arrays(b), strict=True)) for b in real.calibration]
        for kind, chosen in (("ai-edge static", recipe.static_wi8_ai8()), ("ai-edge dynamic", recipe.dynamic_wi8_afp32())):
            path = str(Path(folder, f"{kind}.tflite"))
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                quantizer = tool.Quantizer(plain)
                quantizer.load_quantization_recipe(chosen)
                found = quantizer.calibrate({"serving_default": given}) if "static" in kind else None
                quantizer.quantize(found).export_model(path)
            yield row(kind, run(plain), run(path), real, time.perf_counter() - start)


def keys(file: Any) -> tuple[list[str], list[str]]:
    """Return the signature's names of the inputs and of the outputs, in the order of the model; a signature sorts them."""
    signature, found = file.get_signature_runner(), []
    for ends, details in (
        (file.get_input_details(), signature.get_input_details()),
        (file.get_output_details(), signature.get_output_details()),
    ):
        places = [end["index"] for end in ends]
        found.append(sorted(details, key=lambda name: places.index(details[name]["index"])))
    return found[0], found[1]


def coded(values: Any, details: dict[str, Any]) -> Any:
    """Return reals as the codes of an input of a file; values of the input's own type as they are."""
    scale, zero = details["quantization"]
    if details["dtype"] == values.dtype or not scale:
        return values
    ends = np.iinfo(details["dtype"])
    return np.clip(np.rint(values / scale) + zero, ends.min, ends.max).astype(details["dtype"])


def reals(codes: Any, details: dict[str, Any]) -> Any:
    """Return the reals of an output's codes."""
    scale, zero = details["quantization"]
    return codes if codes.dtype == np.float32 or not scale else ((codes.astype(np.float32) - zero) * scale).astype(np.float32)


PEERS: dict[str, Callable[[Real], Iterator[Sequence[str]]]] = {
    "onnxruntime": by_onnxruntime, "openvino": by_nncf, "litert": by_ai_edge,
}  # fmt: skip
"""The other tools of each runtime."""
