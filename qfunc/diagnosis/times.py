"""Time the files of a folder on this machine: python times.py [FOLDER]

Needs NumPy and the runtime of the files: onnxruntime, ai-edge-litert or tflite-runtime, ncnn, or openvino.  Each file is loaded
once.  They run in turns, twice before.  The last line that is printed is a JSON list: the least seconds of each file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESOLVERS = {"xnnpack": "AUTO", "reference": "BUILTIN_REF", "optimised": "BUILTIN_WITHOUT_DEFAULT_DELEGATES"}
NCNN_OFF = ("use_vulkan_compute", "use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed",
            "use_bf16_storage", "use_packing_layout")  # fmt: skip
WARM = 2
Run = Callable[[], Any]


def installed(*names: str) -> Any:
    """Import the first of some modules whose package is there."""
    return importlib.import_module(next((n for n in names if importlib.util.find_spec(n.split(".")[0])), names[0]))


def onnxruntime(settings: Any, paths: list[Path], inputs: list[Any], threads: int) -> Run:
    """Return a function that runs a model of ONNX Runtime on the CPU."""
    ort = installed("onnxruntime")
    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if settings["optimise"] else levels.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, threads
    session = ort.InferenceSession(paths[0].read_bytes(), options, providers=["CPUExecutionProvider"])
    feed = {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def litert(settings: Any, paths: list[Path], inputs: list[Any], threads: int) -> Run:
    """Return a function that runs a model of LiteRT."""
    module = installed("ai_edge_litert.interpreter", "tflite_runtime.interpreter")
    kernels = getattr(module.OpResolverType, RESOLVERS[settings["kernels"]])
    content = paths[0].read_bytes()
    interpreter = module.Interpreter(model_content=content, num_threads=threads, experimental_op_resolver_type=kernels)
    places = [detail["index"] for detail in interpreter.get_input_details()]
    for place, x in zip(places, inputs, strict=True):
        interpreter.resize_tensor_input(place, x.shape)
    interpreter.allocate_tensors()
    outputs = [detail["index"] for detail in interpreter.get_output_details()]

    def run() -> Any:
        for place, x in zip(places, inputs, strict=True):
            interpreter.set_tensor(place, x)
        interpreter.invoke()
        return [interpreter.get_tensor(place) for place in outputs]

    return run


def ncnn(settings: Any, paths: list[Path], inputs: list[Any], threads: int) -> Run:
    """Return a function that runs a model of ncnn on each example."""
    module = installed("ncnn")
    net = module.Net()
    for option in NCNN_OFF:
        setattr(net.opt, option, False)
    net.opt.num_threads = threads
    if net.load_param(str(paths[0])) or net.load_model(str(paths[1])):
        raise ValueError("ncnn does not load the files")
    whole = [x.astype(np.int32) if np.issubdtype(x.dtype, np.integer) else x for x in inputs]
    rows = [[np.ascontiguousarray(x[k] if x.ndim > 1 else x[k : k + 1]) for x in whole] for k in range(len(whole[0]))]
    examples = [[module.Mat(x).clone() for x in row] for row in rows]

    def run() -> Any:
        for example in examples:
            extractor = net.create_extractor()
            for blob, x in zip(settings["blobs"], example, strict=True):
                extractor.input(blob, x)
            for blob in settings["outputs"]:
                extractor.extract(blob)

    return run


def openvino(settings: Any, paths: list[Path], inputs: list[Any], threads: int) -> Run:
    """Return a function that runs a model of OpenVINO on the CPU."""
    core = installed("openvino").Core()
    network = core.read_model(paths[0])
    network.reshape({port: list(x.shape) for port, x in zip(network.inputs, inputs, strict=True)})
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    request = core.compile_model(network, "CPU", options).create_infer_request()
    return lambda: request.infer(inputs)


RUNTIMES = {"onnxruntime": onnxruntime, "litert": litert, "ncnn": ncnn, "openvino": openvino}


def least(runs: list[Run], count: int, seconds: float) -> list[float]:
    """Return the least seconds of each function, over at least `count` turns and at least `seconds`."""
    taken: list[list[float]] = [[] for _ in runs]
    begun = time.perf_counter()
    while len(taken[0]) < WARM + count or time.perf_counter() - begun < seconds:
        for run, times in zip(runs, taken, strict=True):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return [min(times[WARM:]) for times in taken]


def main(folder: Path) -> None:
    """Print the least seconds of each file of a folder."""
    plan = json.loads((folder / "times.json").read_bytes())
    with np.load(folder / "inputs.npz") as arrays:
        inputs = [arrays[f"input{k}"] for k in range(len(arrays.files))]
    load = RUNTIMES[plan["runtime"]]
    runs = [load(m["settings"], [folder / f for f in m["files"]], inputs, plan["threads"]) for m in plan["models"]]
    print(json.dumps(least(runs, plan["runs"], plan["seconds"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
