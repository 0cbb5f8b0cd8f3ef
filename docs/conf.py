"""Sphinx's configuration.  `docs/build.py` writes the pages that Sphinx reads."""

from __future__ import annotations

import re
from typing import Any

import qfunc

project, author, version = "qfunc", "the qfunc authors", qfunc.__version__
html_title = f"qfunc {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path, html_css_files = ["static"], ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False  # LICENSE has it
myst_heading_anchors = 4
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_use_ivar = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
pygments_style = "friendly"
pygments_dark_style = "monokai"

CODE = re.compile(r"(`[^`]*`)")
SPECIAL = re.compile(r"([*|\\]|(?<=\w)_(?!\w)|^(?=[-+=~^\"']{4,}$))")


def escape(line: str) -> str:
    """Return a line of plain text as reStructuredText: outside of `code` its special characters are escaped."""
    return "".join(part if k % 2 else SPECIAL.sub(r"\\\1", part) for k, part in enumerate(CODE.split(line)))


def plain_text(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring in place: it is plain text with `code`, doctests, and paragraphs whose lines are indented."""
    paragraphs = [paragraph.split("\n") for paragraph in re.split(r"\n[ \t]*\n", "\n".join(lines).strip("\n"))]
    lines[:] = []
    for paragraph in paragraphs:
        if paragraph[0].lstrip().startswith((">>>", "..")):
            lines += paragraph
        elif paragraph[0].startswith(":"):  # the fields that napoleon has made
            lines += map(escape, paragraph)
        elif any(line.startswith(" ") for line in paragraph):
            lines += [".. code-block:: text", "", *(f"   {line}" for line in paragraph)]
        else:
            lines += map(escape, paragraph)
        lines.append("")


def setup(app: Any) -> None:
    """Connect the hook; napoleon, which has priority 500, comes first."""
    app.connect("autodoc-process-docstring", plain_text, priority=600)
