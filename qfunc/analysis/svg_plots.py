"""Plots as inline SVG, without scripts or files; the same figures give the same bytes."""

from __future__ import annotations

import math
from html import escape

from attrs import frozen

from qfunc.analysis.histogram import BINS, Histogram

COLOURS = ("#1f5fa8", "#c1621f", "#3d8b4f")
LABELLED = 3
"""The number of the lowest points that a plot labels."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900, 280, 48, 8, 36
_LETTER, _LINE = 6, 12  # about the width and height of a letter of the labels


@frozen
class Series:
    """Points (x, y, name) of one colour; `joined` draws a line through them in order."""

    name: str
    points: tuple[tuple[float, float, str], ...]
    joined: bool = False


def scatter_plot(series: tuple[Series, ...], x_label: str, y_label: str) -> str:
    """Return a plot of points over two linear axes, without points that are not finite.

    The lowest points are labelled with their names, and hovering shows the name of any point.

    >>> scatter_plot((Series("a", ((0, 1.0, "p"),)),), "x", "y").count("<circle")
    2
    """
    finite = [[p for p in s.points if math.isfinite(p[0]) and math.isfinite(p[1])] for s in series]
    x_ticks = _ticks([x for points in finite for x, _, _ in points], whole=True)
    y_ticks = _ticks([y for points in finite for _, y, _ in points])
    right, bottom = _WIDTH - 12, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (right - _LEFT), bottom - up * (bottom - _TOP)

    shapes = []
    for tick in y_ticks:
        _, y = place(x_ticks[0], tick)
        shapes.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x, _ = place(tick, y_ticks[0])
        shapes.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for one, points, colour in zip(series, finite, COLOURS, strict=False):
        places = [place(x, y) for x, y, _ in points]
        if one.joined and places:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            shapes.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>')
        shapes += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{escape(name)}: {value:.2f}</title></circle>'
            for (x, y), (_, value, name) in zip(places, points, strict=True)
        ]
    shapes += _labels([(name, *place(x, y)) for points in finite for x, y, name in points], right)
    shapes.append(f'<text x="{right}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>')
    shapes += _legend(series, y_label)
    return _svg(_WIDTH, _HEIGHT, shapes)


def histogram_plot(name: str, histogram: Histogram) -> str:
    """Return a histogram with logarithmic counts; the clipping range is shaded, the caption counts values outside the axis."""
    width, height, top = 420, 120, 18
    bottom = height - 18
    highest = math.log1p(max(histogram.counts))
    bar = (width - 20) / BINS
    left = 10 + BINS / 4 * bar
    shapes = [f'<rect class="range" x="{left:.1f}" y="{top}" width="{BINS / 2 * bar:.1f}" height="{bottom - top}"/>']
    for index, count in enumerate(histogram.counts[1:-1]):
        bar_height = (bottom - top) * math.log1p(count) / highest if count else 0.0
        if bar_height:
            x, y = 10 + index * bar, bottom - bar_height
            shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{bar_height:.1f}" fill="{COLOURS[0]}"/>')
    for x, value in ((left, histogram.low), (left + BINS / 2 * bar, histogram.high)):
        shapes.append(f'<text x="{x:.1f}" y="{height - 5}" text-anchor="middle">{value:.4g}</text>')
    outside = histogram.counts[0] + histogram.counts[-1]
    summary = f"{histogram.minimum:.4g} to {histogram.maximum:.4g}, {100 * histogram.share:.3g} % clipped"
    summary += f", {outside} beyond the axis" if outside else ""
    caption = (
        f"<figcaption><b>{escape(name)}</b> {summary}</figcaption>"
        if histogram.total
        else f"<figcaption>{escape(name)}</figcaption>"
    )
    return f"<figure>{caption}{_svg(width, height, shapes)}</figure>"


def _labels(points: list[tuple[str, float, float]], right: float) -> list[str]:
    # The names of the lowest points, each name once, on the side of its point that has the space, and not one over another.
    shapes, taken = [], list[tuple[float, float, float]]()
    lowest = {name: (x, y) for name, x, y in sorted(points, key=lambda p: p[2])}  # the last of a name is its lowest
    for name, (x, y) in sorted(lowest.items(), key=lambda entry: -entry[1][1])[:LABELLED]:
        width, after = _LETTER * len(name), x < right / 2
        left = x + 6 if after else x - 6 - width
        line = y + 4
        while any(abs(line - other) < _LINE and left < end and start < left + width for start, end, other in taken):
            line -= 1
        taken.append((left, left + width, line))
        edge, anchor = (x + 6, "start") if after else (x - 6, "end")
        shapes.append(f'<text class="name" x="{edge:.1f}" y="{line:.1f}" text-anchor="{anchor}">{escape(name)}</text>')
    return shapes


def _legend(series: tuple[Series, ...], y_label: str) -> list[str]:
    shapes = [f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{escape(y_label)}:</text>']
    x = _LEFT + 70
    for entry, colour in zip(series, COLOURS, strict=False):
        shapes.append(f'<circle cx="{x}" cy="{_HEIGHT - 8}" r="3" fill="{colour}"/>')
        shapes.append(f'<text x="{x + 8}" y="{_HEIGHT - 4}">{escape(entry.name)}</text>')
        x += 24 + 7 * len(entry.name)
    return shapes


def _ticks(values: list[float], whole: bool = False) -> list[float]:
    # About six round numbers that span the values.
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    rough = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-12) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [step * i for i in range(first, last + 1)]


def _svg(width: int, height: int, shapes: list[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{"".join(shapes)}</svg>'
