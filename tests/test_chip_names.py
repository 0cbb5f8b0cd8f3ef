"""The engine and the words name no chip in their code: identifiers, names of files, and strings that are no docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = {
    "cmsis", "coral", "eigen", "executorch", "ggml", "gguf", "k210", "kpu", "litert", "llama", "mlas", "ncnn", "nnie",
    "onnxruntime", "openvino", "ort", "ppl", "qnn", "snpe", "stpu", "tengine", "tensorflow", "tensorrt", "tflite", "tosa",
    "vitis", "vllm", "xnnpack", "compressedtensors",
}  # fmt: skip
SPELLED = ("CompressedTensors", "ExecuTorch", "LiteRt", "OnnxRuntime", "OpenVino", "TensorRt", "compressed_tensors")
"""Names of chips in two words."""

EVALUATOR = "ONNX Runtime evaluates Q/DQ models"
IN_MESSAGE = "a message shows public names that help"
EXCEPTIONS = {
    "qfunc/arithmetic/float_kernel.py": IN_MESSAGE,
    "qfunc/corrections/rotation/rotate.py": IN_MESSAGE,
    "qfunc/decoding/decoder.py": IN_MESSAGE,
    "qfunc/diagnosis/board_time.py": IN_MESSAGE,
    "qfunc/diagnosis/times.py": "the program that times files runs four runtimes without qfunc",
    "qfunc/estimators/__init__.py": "OrtEntropy, a published method",
    "qfunc/estimators/ort_entropy.py": "OrtEntropy, a published method",
    "qfunc/files/ncnn_param.py": "a file format",
    "qfunc/functions/__init__.py": "GgmlBlocks and NnieLog, published methods",
    "qfunc/functions/ggml_blocks.py": "GgmlBlocks, a published method",
    "qfunc/functions/nnie_log.py": "NnieLog, a published method",
    "qfunc/lowering/combination.py": IN_MESSAGE,
    "qfunc/lowering/machines/processors.py": "the package of Node that runs ONNX models",
    "qfunc/lowering/onnxruntime/parts.py": EVALUATOR,
    "qfunc/lowering/onnxruntime/session.py": EVALUATOR,
    "qfunc/placement/legality/feasibility.py": IN_MESSAGE,
    "qfunc/proof/check.py": "the program of a package runs four runtimes without qfunc",
    "qfunc/proof/package.py": "the fields of proof.json for each runtime of check.py",
    "qfunc/proof/prove.py": "the argument onnxruntime_web, and a message",
    "qfunc/proof/saved.py": "the Python packages of the runtimes of check.py",
    "qfunc/proof/saved_check.py": "folders of targets without a runner",
    "qfunc/reading/onnx/original.py": EVALUATOR,
    "qfunc/reading/onnx/resize_matrices.py": EVALUATOR,
    "qfunc/streaming/stream.py": IN_MESSAGE,
    "qfunc/sweeps/sweep.py": IN_MESSAGE,
    "qfunc/testing/fuzz/__main__.py": IN_MESSAGE,
    "qfunc/testing/fuzz/campaign.py": "a runtime that ends its process",
    "qfunc/testing/laws/artifact.py": EVALUATOR,
    "qfunc/transforms/deploy.py": EVALUATOR,
    "qfunc/transforms/onnx_check.py": EVALUATOR,
    "qfunc/transforms/verify.py": IN_MESSAGE,
    "specs/arithmetic/decoder.py": "names of architectures of networks",
    "specs/formats.py": "GGUF_*, published formats",
}
"""File -> why it names a chip."""

FILES = sorted(
    p for folder in ("qfunc", "specs") for p in (ROOT / folder).rglob("*.py") if (ROOT / "qfunc/specs") not in p.parents
)


def texts(tree: ast.Module) -> Iterator[str]:
    """The identifiers and strings of a module, without docstrings."""
    bodies = (body for n in ast.walk(tree) if isinstance(body := getattr(n, "body", None), list))
    shown = {id(s.value) for body in bodies for s in body if isinstance(s, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.ImportFrom(module, names):
                yield from (module or "", *(alias.name for alias in names))
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.keyword(str(name)):
                yield name
            case ast.Constant(str(value)) if id(node) not in shown:
                yield value


def chips(text: str) -> set[str]:
    """The chips that a text names.

    >>> sorted(chips("LiteRtRunner, mlas_erf")), chips("sort, report, RMSNorms"), chips("exports")
    (['litert', 'mlas'], set(), set())
    """
    words = set(re.findall(r"[a-z0-9]+", text.lower()))
    words |= {w.lower() for w in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]{2,}(?![a-z])", text)}
    return words & WORDS | {s.lower().replace("_", "") for s in SPELLED if s in text} & WORDS


def named(path: Path) -> set[str]:
    """The chips that a file names in its code or in its own name."""
    return set().union(chips(path.stem), *map(chips, texts(ast.parse(path.read_text()))))


def test_the_engine_and_the_words_name_no_chip() -> None:
    """Each file that does has a reason, and each reason is needed."""
    found = {path.relative_to(ROOT).as_posix(): names for path in FILES if (names := named(path))}
    assert {path: names for path, names in found.items() if path not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) - set(found) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from qfunc.a import ncnn_b", {"ncnn"}),
        ("class LiteRtThing: pass", {"litert"}),
        ("f(xnnpack=1)", {"xnnpack"}),
        ("def f():\n    'ncnn'\n    return 'a kernel of TOSA'", {"tosa"}),
        ("'''LiteRT'''\nexport = sort(report)", set()),
    ],
)
def test_a_name_of_a_chip_is_seen(source: str, found: set[str]) -> None:
    assert set().union(*map(chips, texts(ast.parse(source)))) == found
