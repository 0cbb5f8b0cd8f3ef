"""Draw the picture of the README: `docs/static/flow-light.svg` and `docs/static/flow-dark.svg`.

python docs/picture.py
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent / "static"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


class Colours(NamedTuple):
    """The colours of a theme."""

    text: str
    faint: str
    line: str
    box: str
    accent: str
    proven: str


THEMES = {
    "light": Colours("#1f2328", "#59636e", "#8c959f", "#f6f8fa", "#0550ae", "#1a7f37"),
    "dark": Colours("#e6edf3", "#9198a1", "#6e7681", "#161b22", "#79c0ff", "#56d364"),
}


def box(c: Colours, x: int, y: int, wide: int, title: str, *lines: str, code: bool = False, edge: str = "") -> str:
    """Return a box of 64 pixels height with a title and at most two lines below it."""
    face = " font-family='ui-monospace, SFMono-Regular, Menlo, monospace'" if code else ""
    top = y + (27 if lines else 37)
    if len(lines) == 2:
        top = y + 21
    parts = [
        f"<rect x='{x}' y='{y}' width='{wide}' height='64' rx='8' fill='{c.box}' stroke='{edge or c.line}'/>",
        f"<text x='{x + wide / 2}' y='{top}' font-size='15' font-weight='600' fill='{edge or c.text}'{face}>{title}</text>",
    ]
    rows = (f"<text x='{x + wide / 2}' y='{top + 18 * k}' font-size='12.5' fill='{c.faint}'>{t}</text>"
            for k, t in enumerate(lines, 1))  # fmt: skip
    return "\n".join([*parts, *rows])


def arrow(c: Colours, path: str) -> str:
    """Return an arrow along a path."""
    return f"<path d='{path}' fill='none' stroke='{c.line}' stroke-width='1.5' marker-end='url(#head)'/>"


def picture(c: Colours) -> str:
    """Return the picture in one theme."""
    body = [
        box(c, 6, 38, 196, "your model", "PyTorch, float32"),
        box(c, 6, 168, 196, "a target", "the chip as a frozen value:", "formats, kernels, sources"),
        box(c, 258, 103, 176, "quantize, calibrate", "an fx graph, ranges", "found on your data"),
        box(c, 490, 10, 184, "simulate", "in float: train, evaluate", edge=c.accent),
        box(c, 490, 103, 184, "emulate", "the runtime's integers,", "bit for bit, in PyTorch", edge=c.accent),
        box(c, 490, 196, 184, "deploy", "the file that the chip's", "tools load, run by them", edge=c.accent),
        box(c, 730, 103, 186, "verify", "every tensor of codes:", "0 of 1,121,385,152 differ", edge=c.proven),
        arrow(c, "M202 70 C 236 70, 224 124, 254 124"),
        arrow(c, "M202 200 C 236 200, 224 146, 254 146"),
        arrow(c, "M434 124 C 466 124, 454 42, 486 42"),
        arrow(c, "M434 135 L 486 135"),
        arrow(c, "M434 146 C 466 146, 454 228, 486 228"),
        arrow(c, "M674 42 C 710 42, 696 122, 726 122"),
        arrow(c, "M674 135 L 726 135"),
        arrow(c, "M674 228 C 710 228, 696 148, 726 148"),
    ]
    shape = f"<path d='M0 0 L8 4 L0 8 z' fill='{c.line}'/>"
    size = "viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'"
    title = "A model and a target are quantized; the result is simulated, emulated and deployed, and verify compares them."
    style = f'role="img" text-anchor="middle" font-family="{FONT}"'
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 922 270' {style}>",
        f"<title>{title}</title>",
        f"<defs><marker id='head' {size}>{shape}</marker></defs>",
        *body,
        "</svg>\n",
    ])  # fmt: skip


def main() -> None:
    """Write both files."""
    for name, colours in THEMES.items():
        (FOLDER / f"flow-{name}.svg").write_text(picture(colours))


if __name__ == "__main__":
    main()
