"""Check on this machine that the runtime computes what qfunc emulated: python check.py [FOLDER]

Needs NumPy and the runtime of the files: onnxruntime, ai-edge-litert or tflite-runtime, ncnn, or openvino.  Prints a row for
each tensor.  "equal" tensors must not differ at all.  "close" ones follow sums of floats, whose order the processor chooses:
few codes may round the other way, so that most of them must be within one code.  The exit code is 0 if all rows are right, 1
if one is not or a file has changed, and 2 if the check cannot be made.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TYPES = {"F32": "<f4", "F64": "<f8", "I8": "i1", "U8": "u1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "BOOL": "?"}
RESOLVERS = {"xnnpack": "AUTO", "reference": "BUILTIN_REF", "optimised": "BUILTIN_WITHOUT_DEFAULT_DELEGATES"}
NCNN_OFF = ("use_vulkan_compute", "use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed",
            "use_bf16_storage", "use_packing_layout")  # fmt: skip


class Row(NamedTuple):
    """One tensor: how many elements differ, the largest difference in codes, "equal" or "close", and if it is right."""

    name: str
    elements: int
    differing: int
    largest: float
    wanted: str
    good: bool


def check(proof: Any, tensors: Any, folder: Path) -> list[Row]:
    """Run the model in a folder and compare each tensor: the fields of proof.json, and the arrays of proof.safetensors."""
    names = [e["shown"] for e in proof["tensors"] if e["shown"] is not None]
    run = {"onnxruntime": run_onnxruntime, "litert": run_litert, "ncnn": run_ncnn, "openvino": run_openvino}[proof["runtime"]]
    paths, inputs = [folder / Path(name).name for name in proof["files"]], [tensors[e["tensor"]] for e in proof["inputs"]]
    outputs, codes = run(proof, paths, inputs, names)
    actual = dict(zip(names, codes, strict=True)) | dict(enumerate(outputs))
    return [compared(e, actual[e["output" if e["shown"] is None else "shown"]], tensors[e["tensor"]]) for e in proof["tensors"]]


def compared(entry: Any, actual: Any, expected: Any) -> Row:
    """Return the row of one tensor."""
    name, wanted = entry["name"], "equal" if entry["exact"] else "close"
    if actual.size != expected.size:
        return Row(name, expected.size, expected.size, float("inf"), wanted, False)
    actual, expected = actual.reshape(expected.shape).astype(np.float64), expected.astype(np.float64)
    differs = (actual != expected) & ~(np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        distance = np.nan_to_num(np.abs(actual - expected)[differs], nan=np.inf) / entry["step"]
    good = not differs.any() if entry["exact"] else 2 * int((distance > 1.001).sum()) <= expected.size
    return Row(name, expected.size, int(differs.sum()), float(distance.max(initial=0.0)), wanted, bool(good))


def installed(*names: str) -> Any:
    """Import the first of some modules whose package is there."""
    return importlib.import_module(next((n for n in names if importlib.util.find_spec(n.split(".")[0])), names[0]))


def run_onnxruntime(proof: Any, paths: list[Path], inputs: list[Any], names: list[str]) -> tuple[list[Any], list[Any]]:
    """Run a model, and the same with inner tensors as outputs: the messages of a protobuf file continue those before."""
    ort, model = installed("onnxruntime"), paths[0].read_bytes()
    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if proof["optimise"] else levels.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, proof.get("threads", 0)
    outputs = b"".join(message(12, message(1, name.encode())) for name in names)
    found = []
    for content in (model, model + message(7, outputs)):
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        found.append(session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)}))
    return found[0], found[1][len(found[0]) :]


def message(number: int, content: bytes) -> bytes:
    """Return a field of protobuf that holds bytes: its number, the length of its content in groups of 7 bits, the content."""
    size, length = len(content), b""
    while size > 127:
        size, length = size // 128, length + bytes([size % 128 + 128])
    return bytes([8 * number + 2]) + length + bytes([size]) + content


def run_litert(proof: Any, paths: list[Path], inputs: list[Any], names: list[str]) -> tuple[list[Any], list[Any]]:
    """Run a model, and the same with inner tensors as outputs."""
    litert, model = installed("ai_edge_litert.interpreter", "tflite_runtime.interpreter"), paths[0].read_bytes()
    options = {"experimental_op_resolver_type": getattr(litert.OpResolverType, RESOLVERS[proof["kernels"]])}
    places = {d["name"]: d["index"] for d in litert.Interpreter(model_content=model, **options).get_tensor_details()}
    found = []
    for content in (model, with_outputs(model, [places[name] for name in names])):
        interpreter = litert.Interpreter(model_content=content, **options)
        details = interpreter.get_input_details()
        for detail, x in zip(details, inputs, strict=True):
            interpreter.resize_tensor_input(detail["index"], x.shape)
        interpreter.allocate_tensors()
        for detail, x in zip(details, inputs, strict=True):
            interpreter.set_tensor(detail["index"], x)
        interpreter.invoke()
        found.append([interpreter.get_tensor(o["index"]) for o in interpreter.get_output_details()])
    codes = found[1][len(found[0]) :]
    return found[0], [np.moveaxis(c, -1, 1) if n.endswith(".nhwc") else c for n, c in zip(names, codes, strict=True)]


def with_outputs(model: bytes, places: list[int]) -> bytes:
    """Return a .tflite file whose list of outputs is longer: it is written to the end, where a flatbuffer may have it."""
    data = bytearray(model)

    def number(place: int, kind: str = "<u4") -> int:
        return int(np.frombuffer(data, kind, 1, place)[0])

    def field(table: int, index: int) -> int:
        return table + number(table - number(table, "<i4") + 4 + 2 * index, "<u2")

    first = field(number(0), 2) + number(field(number(0), 2)) + 4
    outputs = field(first + number(first), 2)  # the fields of a graph: tensors, inputs, outputs
    old = outputs + number(outputs) + 4
    listed = bytes(data[old : old + 4 * number(old - 4)]) + np.array(places, "<i4").tobytes()
    data += bytes(-len(data) % 4)
    data[outputs : outputs + 4] = (len(data) - outputs).to_bytes(4, "little")
    return bytes(data + (len(listed) // 4).to_bytes(4, "little") + listed)


def run_ncnn(proof: Any, paths: list[Path], inputs: list[Any], names: list[str]) -> tuple[list[Any], list[Any]]:
    """Run the examples one by one, as ncnn has no batches."""
    ncnn = installed("ncnn")
    net, found = ncnn.Net(), []
    for option in NCNN_OFF:
        setattr(net.opt, option, False)
    if net.load_param(str(paths[0])) or net.load_model(str(paths[1])):
        raise ValueError("ncnn does not load the files")
    blobs = [(name, 0) for name in proof["outputs"]] + [(name, 1) for name in names]
    for place in range(len(inputs[0])):
        extractor = net.create_extractor()
        extractor.set_light_mode(False)
        for entry, batch in zip(proof["inputs"], inputs, strict=True):
            x = batch[place] if batch.ndim > 1 else batch[place : place + 1]
            x = x.astype(np.int32) if np.issubdtype(x.dtype, np.integer) else x
            extractor.input(entry["blob"], ncnn.Mat(np.ascontiguousarray(x)).clone())
        found.append([np.array(extractor.extract(*blob)[1]) for blob in blobs])
    joined, count = [np.stack(parts) for parts in zip(*found, strict=True)], len(proof["outputs"])
    return joined[:count], joined[count:]


def run_openvino(proof: Any, paths: list[Path], inputs: list[Any], names: list[str]) -> tuple[list[Any], list[Any]]:
    """Run a model, and the same with the values after FakeQuantize as outputs, from which the codes follow."""
    core, found, codes = installed("openvino").Core(), [], []
    for added in ([], names):
        network = core.read_model(paths[0])
        quantizers = [op for op in network.get_ops() if op.get_type_name() == "FakeQuantize"]
        ports = {name: op.output(0) for op in quantizers for name in op.input_value(0).get_names()}
        network.add_outputs([ports[name] for name in added])
        network.reshape({port: list(x.shape) for port, x in zip(network.inputs, inputs, strict=True)})
        compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found.append([value.copy() for value in compiled(inputs).values()])
    for value, q in zip(found[1][len(found[0]) :], [e["qparams"] for e in proof["tensors"] if e["shown"]], strict=True):
        shape = [-1 if axis == q["axis"] % value.ndim else 1 for axis in range(value.ndim)] if q["axis"] is not None else []
        codes.append(np.rint(value / np.reshape(q["scale"], shape)) + np.reshape(q["zero_point"], shape))
    return found[0], codes


def tensors_of(content: bytes) -> dict[str, Any]:
    """Return the arrays of a safetensors file."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = {name: entry for name, entry in json.loads(content[8:start]).items() if name != "__metadata__"}
    return {name: np.frombuffer(content[start + e["data_offsets"][0] : start + e["data_offsets"][1]],
                                TYPES[e["dtype"]]).reshape(e["shape"]) for name, e in header.items()}  # fmt: skip


def main(folder: Path) -> int:
    """Check the package in a folder."""
    try:
        proof, report = (json.loads((folder / name).read_bytes()) for name in ("proof.json", "qfunc.json"))
        files = {name: (folder / Path(name).name).read_bytes() for name in report["files"]}
        changed = [name for name, digest in report["files"].items() if hashlib.sha256(files[name]).hexdigest() != digest]
        rows = check(proof, tensors_of(files["proof.safetensors"]), folder)
    except Exception as error:  # of damaged files, and those of the runtimes, which have no common base
        print(f"the check cannot be made: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    package = next(m for m in ("onnxruntime", "ai_edge_litert", "tflite_runtime", "ncnn", "openvino") if m in sys.modules)
    version = getattr(sys.modules[package], "__version__", "of unknown version")
    print(f"{package} {version} on {platform.machine()}, emulated for {proof['cpu']}\n")
    width = max(len(r.name) for r in rows)
    print(f"{'tensor':<{width}}  {'elements':>12}  {'differing':>10}  {'largest, in codes':>18}  wanted")
    for name, elements, differing, largest, wanted, good in rows:
        print(f"{name:<{width}}  {elements:>12,}  {differing:>10,}  {largest:>18.4g}  {wanted}{'' if good else '  <--'}")
    first = next((f"FAILED: the first tensor that differs is {r.name}" for r in rows if not r.good), "")
    failed = first or (f"FAILED: changed since they were written: {', '.join(changed)}" if changed else "")
    equal, others = [r.elements for r in rows if r.wanted == "equal"], sum(r.wanted == "close" for r in rows)
    passed = f"{'equal' if equal else 'close'}: 0 of {sum(equal):,} elements of {len(equal)} tensors differ"
    print(f"\n{failed or passed + (f'; {others} others are close' if others else '')}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent))
