"""docs/tutorials: each page is a program that prints what the page says, and a notebook."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from tests import onnxruntime_target
from tests.pages.printed import FIGURE, About, differences

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NEEDED = {"first_model": "ai_edge_litert"}
"""The package of an extra that a page runs."""
REASON = "training amplifies the order of float sums"
ACCURACY = About(r"([\d.]+) %", 0.08, REASON)
SCALES = r"(?:weight|bias|output) \d .* (?:PerChannel\(0\)|per tensor) ([\d.e-]+)(?: to ([\d.e-]+))?"
NEAR = {
    "accuracy": (
        ACCURACY,
        About(r"simulated ([\d.]+) %", 1.0, "few codes are left, and which classes they give is a matter of chance"),
        About(r"(\d+)% (?:channels|recovered)", 0.1, REASON),
        About(r"(\d+)% rounding", 0.5, REASON),
        About(r"(?:reaches|SQNR,) ([\d.]+)|([\d.]+) times", 0.05, REASON),
    ),
    "first_model": (ACCURACY, About(SCALES, 0.05, REASON)),
    "qat": (
        ACCURACY,
        About(r"calibrated: ([\d.]+) %", 3.0, "few codes are left, and which classes they give is a matter of chance"),
    ),
}
"""Figures that differ between machines, by page."""


def tutorial() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutorial", FOLDER.parent / "tutorial.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tutorial"] = module
    spec.loader.exec_module(module)
    return module


def ran(name: str) -> str:
    """What the blocks of a page print other than it shows."""
    if name in NEEDED and importlib.util.find_spec(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]} is not installed")
    module = tutorial()
    shown = [cell.printed or "" for cell in module.cells((FOLDER / f"{name}.md").read_text())[0]]
    pairs: Iterable[tuple[str, str]] = zip(module.executed(name), shown, strict=True)
    if name == "accuracy":  # its two causes have about the same share, and either may be the first
        pairs = ((by_words(printed), by_words(text)) for printed, text in pairs)
    return "".join(differences(printed, text, *NEAR.get(name, ())) for printed, text in pairs)


def by_words(text: str) -> str:
    """The lines in the order of their words."""
    return "".join(sorted(text.splitlines(True), key=lambda line: FIGURE.sub("", line).strip()))


def test_first_model_on_litert() -> None:
    assert ran("first_model") == ""


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.md") if p.stem not in NEEDED))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_is_what_its_program_prints(name: str) -> None:
    if onnxruntime_target.REASON and name == "accuracy":
        pytest.skip(f"of processors with VNNI; others have weights of 7 bits: {onnxruntime_target.REASON}")
    assert ran(name) == ""


def test_an_output_that_is_not_the_page_is_shown(tmp_path: Path) -> None:
    page = "```python\nprint('one')\n```\n```text\ntwo\n```\n"
    (tmp_path / "page.md").write_text(page)
    module = tutorial()
    module.FOLDER = tmp_path
    assert module.differences("page").splitlines()[2:] == [
        "@@ -2,5 +2,5 @@",
        " print('one')",
        " ```",
        " ```text",
        "-two",
        "+one",
        " ```",
    ]


def test_a_notebook_has_the_cells_of_its_page() -> None:
    pytest.importorskip("nbformat", reason="nbformat is not installed")
    import nbformat

    module = tutorial()
    for path in FOLDER.glob("*.md"):
        book = nbformat.reads(module.notebook(path.stem), 4)
        code = [c.source + "\n" for c in book.cells if c.cell_type == "code"]
        assert code == [c.code for c in module.cells(path.read_text())[0]]
