"""docs/new_target.md: its code is the example's, line by line, its output what the example prints, its target small."""

import ast
import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/new_target.md").read_text()
PROGRAM = (ROOT / "examples/new_target.py").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def lines(text):
    return [line for line in text.splitlines() if line.strip()]


def code():
    """The example without its docstring."""
    return "\n".join(PROGRAM.splitlines()[ast.parse(PROGRAM).body[0].end_lineno :])


def test_the_page_shows_the_whole_example_and_nothing_else():
    assert lines("\n".join(blocks("python"))) == lines(code())


def test_the_target_has_less_than_sixty_lines():
    until = PROGRAM[: PROGRAM.index("class Net")]
    assert len(lines(code())) - len(lines(PROGRAM)) + len(lines(until)) < 60


@pytest.mark.thorough
def test_it_passes_its_checks_and_prints_what_the_page_says():
    done = subprocess.run(
        [sys.executable, "-W", "error", "examples/new_target.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    (output,) = blocks("text")
    assert done.stdout == output


def test_nothing_is_registered_and_nothing_of_the_library_changes(monkeypatch):
    """Importing the example leaves every module of the library as it was."""
    from qfunc import estimators, functions, lowering, specs, targets
    from qfunc.lowering.onnx import ops as onnx_ops
    from qfunc.ops import opset

    holders = (estimators, functions, lowering, specs, targets, opset, onnx_ops)
    before = [dict(vars(m)) for m in holders] + [dict(onnx_ops.WRITERS), dict(opset.BY_NAME)]
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from new_target import npu

    assert npu.name == "npu"
    assert [dict(vars(m)) for m in holders] + [dict(onnx_ops.WRITERS), dict(opset.BY_NAME)] == before


def test_a_wrong_statement_about_the_chip_is_found(monkeypatch):
    """The tutorial's check can fail: with a rounding that the simulator does not have, it does."""
    import pytest
    import torch
    from attrs import evolve

    from qfunc import specs
    from qfunc.testing import check_target

    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from new_target import MAC, Net, npu

    wrong = evolve(npu, kernels=(specs.Kernel(MAC, specs.Shift("floor")), *npu.kernels[1:]))
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="emulation and runtime disagree"):
        check_target(wrong, models=[(Net().eval(), torch.randn(4, 3, 8, 8) * 3)])


def test_an_arithmetic_has_less_than_thirty_lines_and_runs():
    block, _ = blocks("pycon")
    assert len([line for line in block.splitlines() if line.startswith((">>> ", "... "))]) < 30
    runs(block)


def test_a_pass_runs_as_the_page_shows():
    runs(blocks("pycon")[1])


def runs(block):
    example = doctest.DocTestParser().get_doctest(block, {"__name__": "page"}, "new_target.md", None, 0)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


def test_the_table_of_sentences_is_code_that_kernels_and_targets_take():
    from qfunc import specs

    (table,) = re.findall(r"^\| the datasheet says .*?(?=^$)", PAGE, re.DOTALL | re.MULTILINE)
    written = [code for row in table.splitlines()[2:] for code in re.findall("`([^`]+)`", row.split(" | ")[1])]
    values = [eval(code, vars(specs)) for code in written if code != "commuting"]
    assert len(values) == 24
    for value in values:
        match value:
            case specs.Fusion() | specs.Tie():
                pass
            case specs.Accumulator():
                specs.Kernel(specs.Op("conv"), specs.FixedPoint(accumulator=value))
            case _:
                specs.Kernel(specs.Op("conv"), value)
    rules = re.findall('`"([a-z_]+)"`', PAGE.split("## From the datasheet")[1].partition("| the datasheet")[0])
    assert {"half_even", "half_away", "half_up", "floor", "trunc"} == set(rules) <= set(specs.ROUNDINGS)
