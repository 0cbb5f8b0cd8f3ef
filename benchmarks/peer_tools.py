"""Quantize a float network by qfunc's targets and by other tools, each with its defaults, and load the result."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from artifacts import runnable
from conformance_places import PLACES
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import Everything, edit

Run = Callable[[Tensor], Any]


class Shipped(NamedTuple):
    """A quantized network.

    Attributes:
        run: Compute the first output for a batch by the runtime that the tool deploys to.
        plain: The same for the float network in the same runtime.
        predictions: What the tool says that the runtime computes: "simulated" in float, "emulated" in integers.
        size: Bytes of the files that ship.
        plain_size: Bytes of the float network's files.
    """

    run: Run
    plain: Run
    predictions: dict[str, Run]
    size: int
    plain_size: int


def by_qfunc(name: str, model: nn.Module, batches: Sequence[Tensor]) -> Shipped:
    """Ranges are minima and maxima, and biases are corrected on the same images."""
    target = runnable(getattr(targets, name))
    calibrated = qfunc.correct_bias(batches)(qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model)))
    (run, size), (plain, plain_size) = _loaded(name, target, calibrated), float_file(name, model, batches)[:2]
    return Shipped(run, plain, {"simulated": calibrated, "emulated": qfunc.emulate(target)(calibrated)}, size, plain_size)


def _loaded(name: str, target: Any, model: Any) -> tuple[Run, int]:
    files = qfunc.deploy(target)(model).files
    call = PLACES[name].load(target.runtime.runner, files)
    shipped = {k: v for k, v in files.items() if not k.endswith(".json")}
    return (lambda x: next(iter(_values(call([x]))))), sum(map(len, shipped.values()))


def _values(found: Any) -> Any:
    return found.values() if hasattr(found, "values") else found


def float_file(name: str, model: nn.Module, batches: Sequence[Tensor]) -> tuple[Run, int, bytes]:
    """Return the float network in a target's runtime, the size of its files, and the largest file."""
    target = edit.skip(Everything())(runnable(getattr(targets, name)))
    plain = qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(target)(model))
    files = qfunc.deploy(target)(plain).files
    return *_loaded(name, target, plain), max((v for k, v in files.items() if not k.endswith(".json")), key=len)


def by_onnxruntime(model: nn.Module, batches: Sequence[Tensor]) -> Shipped:
    """`quantize_static` with Q/DQ nodes and weights per channel, after `quant_pre_process`.

    The file itself says what it computes, in float between its Q/DQ nodes: a session without optimisation.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, plain_size, file = float_file("onnxruntime", model, batches)
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{k}.onnx") for k in range(3)]
        Path(paths[0]).write_bytes(file)
        quant_pre_process(paths[0], paths[1])
        name = _input_name(file)

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            """The calibration batches as the tool reads them."""

            def __init__(self) -> None:
                self.rest = iter(batches)

            def get_next(self) -> Any:
                """Return the next batch, or None."""
                batch = next(self.rest, None)
                return None if batch is None else {name: batch.numpy()}

        quantize_static(paths[1], paths[2], Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
        quantized = Path(paths[2]).read_bytes()
    optimised, literal = (_session(quantized, full) for full in (True, False))
    return Shipped(optimised, plain, {"simulated": literal}, len(quantized), plain_size)


def _input_name(file: bytes) -> str:
    import onnx

    return str(onnx.load_from_string(file).graph.input[0].name)


def _session(file: bytes, optimised: bool) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(file, options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x.numpy()})[0]


def by_nncf(model: nn.Module, batches: Sequence[Tensor]) -> Shipped:
    """`nncf.quantize` on the PyTorch model; OpenVINO runs it.  Its model in PyTorch is the simulation."""
    import nncf
    import nncf.torch
    import openvino

    example = batches[0][:1]
    images = torch.cat(list(batches)).split(1)
    quantized = nncf.quantize(model, nncf.Dataset(images), subset_size=len(images))
    core = openvino.Core()
    properties = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    runs, sizes = [], []
    for made in (quantized, model):
        converted = openvino.convert_model(made, example_input=example)
        with tempfile.TemporaryDirectory() as folder:
            openvino.save_model(converted, Path(folder) / "model.xml", compress_to_fp16=False)
            sizes.append(sum(f.stat().st_size for f in Path(folder).iterdir()))
        compiled = core.compile_model(converted, "CPU", properties)
        runs.append(lambda x, compiled=compiled: compiled([x.numpy()])[0])
    return Shipped(runs[0], runs[1], {"simulated": quantized}, *sizes)


def by_ai_edge_quantizer(model: nn.Module, batches: Sequence[Tensor]) -> Shipped:
    """The recipe `static_wi8_ai8` on the float `.tflite`; LiteRT runs it.  The tool has no simulation."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    plain, plain_size, file = float_file("litert", model, batches)
    tool = quantizer.Quantizer(bytearray(file), recipe.static_wi8_ai8())
    reading = Interpreter(model_content=file)
    (given,) = reading.get_input_details()
    name, shape = given["name"], given["shape"]
    images = [_laid_out(image, shape) for image in torch.cat(list(batches)).split(1)]
    calibrated = tool.calibrate({None: [{name: image} for image in images]})
    written = bytes(tool.quantize(calibrated, enable_progress_report=False).quantized_model)
    interpreter = Interpreter(model_content=written, num_threads=1)

    def run(x: Tensor) -> Any:
        given = _laid_out(x, shape)
        where = interpreter.get_input_details()[0]["index"]
        if tuple(interpreter.get_input_details()[0]["shape"]) != given.shape:
            interpreter.resize_tensor_input(where, given.shape)
            interpreter.allocate_tensors()
        scale, zero = interpreter.get_input_details()[0]["quantization"]
        codes = np.clip(np.rint(given / np.float32(scale)) + zero, -128, 127).astype(np.int8) if scale else given
        interpreter.set_tensor(where, codes)
        interpreter.invoke()
        result = interpreter.get_output_details()[0]
        scale, zero = result["quantization"]
        found = interpreter.get_tensor(result["index"])
        return (found.astype(np.float32) - zero) * np.float32(scale) if scale else found

    return Shipped(run, plain, {}, len(written), plain_size)


def _laid_out(x: Tensor, shape: Any) -> Any:
    last = len(shape) == 4 and x.ndim == 4 and shape[3] == x.shape[1] and shape[1] != x.shape[1]
    return np.ascontiguousarray((x.permute(0, 2, 3, 1) if last else x).numpy())


def by_torchao(model: nn.Module, batches: Sequence[Tensor]) -> Shipped:
    """Quantization of an exported program with X86InductorQuantizer; `torch.compile` runs it.

    The converted program in eager mode is the simulation.  Its size is that of the tensors in its graph.
    """
    import torch._inductor.config as inductor
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    example = (batches[0],)
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    observed = prepare_pt2e(torch.export.export(model, example, strict=True).module(), quantizer)
    for batch in batches:
        observed(batch)
    quantized = move_exported_model_to_eval(convert_pt2e(observed))
    inductor.freezing = True
    compiled, plain = torch.compile(quantized), torch.compile(model)
    sizes = []
    for made in (quantized, torch.export.export(model, example).module()):
        used = {str(n.target) for n in made.graph.nodes if n.op == "get_attr"}
        sizes.append(sum(v.numel() * v.element_size() for v in map(operator.attrgetter, used) for v in [v(made)]))
    return Shipped(compiled, plain, {"simulated": quantized}, *sizes)


TOOLS: dict[str, Callable[[nn.Module, Sequence[Tensor]], Shipped]] = {
    "qfunc, ONNX Runtime": lambda m, b: by_qfunc("onnxruntime", m, b),
    "onnxruntime.quantization, ONNX Runtime": by_onnxruntime,
    "qfunc, OpenVINO": lambda m, b: by_qfunc("openvino", m, b),
    "NNCF, OpenVINO": by_nncf,
    "qfunc, LiteRT": lambda m, b: by_qfunc("litert", m, b),
    "ai-edge-quantizer, LiteRT": by_ai_edge_quantizer,
    "qfunc, ExecuTorch": lambda m, b: by_qfunc("executorch_xnnpack", m, b),
    "qfunc, ncnn": lambda m, b: by_qfunc("ncnn", m, b),
    "torchao, torch.compile": by_torchao,
}
"""Tools with the runtime that executes their results, in the order of the table."""
