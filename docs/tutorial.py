"""Read a tutorial as cells, run it, and write it as a notebook.

    python docs/tutorial.py [--write] [--notebooks DIR] [NAME ...]

A page of docs/tutorials has blocks of `python`, each followed by a block of `text` if it prints.  They are one program.
Without options, each page runs and its output is compared with the page; figures may differ.  `--write` writes the output
into the page.  `--notebooks` only writes DIR/NAME.ipynb.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent / "tutorials"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)


class Cell(NamedTuple):
    """A block of code, the text before it, and what the page says that it prints."""

    before: str
    code: str
    printed: str | None


def cells(page: str) -> tuple[list[Cell], str]:
    """Return the cells of a page, and the text after the last of them.

    >>> cells("One:\\n```python\\nprint(1)\\n```\\n```text\\n1\\n```\\nEnd.")
    ([Cell(before='One:\\n', code='print(1)\\n', printed='1\\n')], 'End.')
    """
    found, end = [], 0
    for match in BLOCK.finditer(page):
        found.append(Cell(page[end : match.start()], match[1], match[2]))
        end = match.end()
    return found, page[end:]


def comparable(text: str) -> str:
    """Return a text without the figures that differ between machines, and the spaces before them.

    >>> comparable("float  96.8 %, 1,080,000 elements")
    'float # %, # elements'
    """
    return re.sub(r" *\d[\d.,]*", lambda m: " #" if m[0][0] == " " else "#", text)


def executed(name: str) -> list[str]:
    """Return what each block of a page prints; the blocks run in an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs, here = [], Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in cells((FOLDER / f"{name}.md").read_text())[0]:
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(cell.code, f"<docs/tutorials/{name}.md>", "exec"), names)
                outputs.append(re.sub(r"[ \t]+$", "", printed.getvalue(), flags=re.MULTILINE))
        finally:
            os.chdir(here)
    return outputs


def rewritten(name: str, outputs: list[str]) -> str:
    """Return a page with the given outputs."""
    found, rest = cells((FOLDER / f"{name}.md").read_text())
    parts = []
    for cell, output in zip(found, outputs, strict=True):
        parts += [cell.before, f"```python\n{cell.code}```\n", f"```text\n{output}```\n" if output else ""]
    return "".join([*parts, rest])


def notebook(name: str) -> str:
    """Return a page as a notebook, with the outputs that the page shows."""
    import nbformat

    v4, (found, rest) = nbformat.v4, cells((FOLDER / f"{name}.md").read_text())
    made = []
    for cell in found:
        made += [v4.new_markdown_cell(cell.before.strip())] if cell.before.strip() else []
        outputs = [v4.new_output("stream", name="stdout", text=cell.printed)] if cell.printed else []
        made.append(v4.new_code_cell(cell.code.rstrip("\n"), outputs=outputs))
    made += [v4.new_markdown_cell(rest.strip())] if rest.strip() else []
    for number, cell in enumerate(made):
        cell["id"] = f"{name}-{number}"  # the same file each time
    book = v4.new_notebook(cells=made)
    nbformat.validate(book)
    return str(nbformat.writes(book)) + "\n"


def differences(name: str) -> str:
    """Return the differences between a page and what its blocks print, as a unified diff."""
    page = (FOLDER / f"{name}.md").read_text()
    made = rewritten(name, executed(name))
    if comparable(page) == comparable(made):
        return ""
    return "".join(difflib.unified_diff(page.splitlines(True), made.splitlines(True), f"{name}.md", "executed"))


def main() -> int:
    """Return 1 if a page differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="pages without .md; by default all")
    parser.add_argument("--write", action="store_true", help="write the output into the pages")
    parser.add_argument("--notebooks", type=Path, help="the folder of the notebooks")
    options = parser.parse_args()
    wrong = 0
    for name in options.names or sorted(p.stem for p in FOLDER.glob("*.md")):
        if options.notebooks:
            options.notebooks.mkdir(parents=True, exist_ok=True)
            (options.notebooks / f"{name}.ipynb").write_text(notebook(name))
        elif options.write:
            (FOLDER / f"{name}.md").write_text(rewritten(name, executed(name)))
        elif found := differences(name):
            wrong = 1
            print(found)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
