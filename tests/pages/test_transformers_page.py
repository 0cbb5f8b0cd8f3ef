"""Pages about transformers and language models: their programs print what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages.printed import About, differences

DOCS = Path(__file__).parents[2] / "docs"
NEAR = {
    "sweeps.md": (
        About(r"(\d+\.\d)%", 0.03, "training amplifies the order of float sums"),
        About(r"(?:tensorrt|vitis): .* ([\d,]+) bytes", 0.01, "a JSON file has the shortest digits of floats from calibration"),
    )
}
"""Figures that differ between machines, by page."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
@pytest.mark.parametrize(
    "name", ["transformers.md", "language_models.md", "kv_cache.md", "speech.md", "streaming.md", "rounding.md", "sweeps.md"]
)
def test_the_programs_print_what_the_page_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    names, page = {"__name__": "page"}, (DOCS / name).read_text()
    for program, printed in zip(blocks(page, "python"), blocks(page, "text"), strict=True):
        exec(compile(program, name, "exec"), names)
        assert differences(capsys.readouterr().out, printed, *NEAR.get(name, ())) == ""
