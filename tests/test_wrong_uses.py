"""Every kind of wrong use is told whole: where, what was found, what was wanted, what to do; and nothing was changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qfunc.__main__ import main
from tests.transforms.checks import same_state, state
from tests.wrong_uses import chips, edits, models, places, selections, steps, values
from tests.wrong_uses.world import told, world

ROWS = (*models.ROWS, *steps.ROWS, *chips.ROWS, *places.ROWS, *edits.ROWS, *selections.ROWS, *values.ROWS)

NAMES = (
    "academic, academic_nlp, cmsis_nn, cmsis_nn_16x8, compressed_tensors, edge_tpu, executorch_8da4w, executorch_xnnpack, "
    "gguf, k210, litert, litert_optimised, litert_reference, ncnn, nnie, onnx_qnn, onnxruntime, onnxruntime_nbits, "
    "openvino, openvino_blocks, ppl_cuda, ppl_cuda_affine, ppl_w8a16, qdq, qnn_htp, snpe, stpu, tengine_u8,"
)
GIVE = "Give a name in qfunc.targets, module:attribute, or a JSON file."
COMMANDS = "quantize | deploy | diagnose | inspect | verify | targets | show | diff | check"
LINES = (
    (
        "no command",
        [],
        f"python -m qfunc: the following arguments are required: {COMMANDS}",
    ),
    (
        "no such command",
        ["shaw"],
        f"python -m qfunc: argument {COMMANDS}: invalid choice: 'shaw' "
        "(choose from 'quantize', 'deploy', 'diagnose', 'inspect', 'verify', 'targets', 'show', 'diff', 'check')",
    ),
    ("one target to compare", ["diff", "vitis"], "python -m qfunc diff: the following arguments are required: B"),
    (
        "no such target",
        ["show", "tensort"],
        f"qfunc: 'tensort': found no such target, wanted one of {NAMES} tensorrt, tensorrt_nlp, tosa, vitis. {GIVE}",
    ),
    (
        "a family uncalled",
        ["show", "academic"],
        "qfunc: 'academic': found a function, wanted a Target. Call it, as in 'academic(4, 8)'.",
    ),
    (
        "no such module",
        ["check", "nomodule:chip"],
        "qfunc: 'nomodule:chip': found ModuleNotFoundError: No module named 'nomodule', wanted a module's attribute. " + GIVE,
    ),
    ("no such file", ["show", "no.json"], f"qfunc: 'no.json': found no such file or directory, wanted a JSON file. {GIVE}"),
    ("no target but a number", ["show", "sys:maxsize"], f"qfunc: 'sys:maxsize': found an int, wanted a Target. {GIVE}"),
    ("no target", ["show", "math:pi"], f"qfunc: 'math:pi': found a float, wanted a Target. {GIVE}"),
    (
        "no number of examples",
        ["check", "vitis", "--examples", "0"],
        "qfunc: testing.check_target, examples: found 0, wanted an int of at least 1. Give a number such as 15.",
    ),
    (
        "no saved directory",
        ["verify", "{folder}/mine"],
        "qfunc: verify('{folder}/mine'): found no qfunc.json, wanted a directory with qfunc.json. "
        "Pass what artifact.save or qfunc.save wrote.",
    ),
)


@pytest.fixture(scope="module")
def w(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Small models at every step, and a folder."""
    return world(tmp_path_factory.mktemp("wrong"))


def seen(w: Any) -> tuple[Any, ...]:
    """What no wrong use may change: tensors, modes and files."""
    held = (w.net, w.quantized, w.calibrated, w.emulation, w.outer, w.inside, w.tied)
    modes = [m.training for model in held for m in model.modules()]
    files = {str(p.relative_to(w.folder)): p.read_bytes() for p in Path(w.folder).rglob("*") if p.is_file()}
    return [copy.deepcopy(state(m)) for m in held], modes, files, sorted(map(str, Path(w.folder).rglob("*")))


@pytest.mark.thorough
@pytest.mark.parametrize(("use", "kind", "text"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_wrong_use(use: Callable[[Any], object], kind: str, text: str, w: Any) -> None:
    tensors, *rest = seen(w)
    assert told(use, w) == (kind, text)
    after, *others = seen(w)
    assert all(same_state(a, b) for a, b in zip(tensors, after, strict=True))
    assert rest == others


@pytest.mark.parametrize(("words", "text"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_a_wrong_line(words: list[str], text: str, w: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word.replace("{folder}", str(w.folder)) for word in words]
    try:
        code: Any = main(given)
    except SystemExit as e:
        code = e.code
    said = capsys.readouterr()
    assert (code, said.out, said.err.replace(str(w.folder), "{folder}")) == (2, "", f"{text}\n")


def test_each_row_is_another_use() -> None:
    assert len({row[0] for row in ROWS}) == len(ROWS) >= 60
