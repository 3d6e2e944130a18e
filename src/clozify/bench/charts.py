"""The bench's charts as inline SVG: accuracy by labelled rows, by method, and by time or speed.

Every method has a colour, a marker and a dash pattern, which repeat at different intervals, so colour alone carries
nothing. Charts scale with the page; colours are variables of the page's style, which has a light and a dark set.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from markupsafe import Markup

from clozify.bench.chart_axes import (
    ACCURACY,
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Axes,
    Scale,
    accuracy_scale,
    accuracy_ticks,
    draw_axes,
    draw_x_axis,
    grid_line,
    logarithmic_ticks,
)
from clozify.bench.chart_labels import LINE, Box, Label, NamedPoint, place_labels, text_width

WIDTH, HEIGHT = 380, 280
WIDE, WIDE_HEIGHT = 760, 380  # of charts with many methods
MANY = 9  # methods
COLOURS = 8  # in the page's style
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4")
RADIUS = 5.0  # of a marker, in pixels
STEP = 13  # pixels between the markers of two methods, at most
MARGIN = 20  # pixels between the plot's edge and its first point
NAME_LETTERS = 24  # in a line of a dot plot's names
CROSS = ((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4))
DIAGONAL = ((-1.2, -0.8), (-0.8, -1.2), (0.0, -0.4), (0.8, -1.2), (1.2, -0.8), (0.4, 0.0))
OUTLINES: tuple[Sequence[tuple[float, float]], ...] = (  # of the markers with a radius of 1; empty: a circle
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    (),
    ((0, -1.2), (1.2, 1), (-1.2, 1)),
    ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    ((-1.2, -1), (1.2, -1), (0, 1.2)),
    (*CROSS, *((-x, -y) for x, y in CROSS)),
    tuple(
        (math.sin(k * math.pi / 5) * (1.3, 0.6)[k % 2], -math.cos(k * math.pi / 5) * (1.3, 0.6)[k % 2])
        for k in range(10)
    ),
    ((-1.1, 0), (-0.5, -1), (0.5, -1), (1.1, 0), (0.5, 1), (-0.5, 1)),
    (*DIAGONAL, *((-x, -y) for x, y in DIAGONAL)),
)


@dataclass(frozen=True)
class Point:
    """A value, with its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A method's points; `index` decides its colour, its marker and its dash pattern."""

    name: str
    index: int
    points: tuple[Point, ...]
    on_frontier: bool = False


def legend(series: Sequence[Series], *, with_lines: bool = False) -> Markup:
    """The methods with their markers, on their lines where the chart has lines, as a list."""
    items = []
    width = 34 if with_lines else 18
    for one in series:
        line = f'<path {_line_style(one.index)} d="M0 8H{width}"/>' if with_lines else ""
        mark = f'<svg width="{width}" height="16" aria-hidden="true">{line}{marker(one.index, width / 2, 8)}</svg>'
        items.append(f"<li>{mark} {escape(one.name)}</li>")
    return Markup(f'<ul class="legend">{"".join(items)}</ul>')


def is_wide(series: Sequence[Series]) -> bool:
    """Whether a chart of these methods takes the page's whole width."""
    return len(series) >= MANY


def line_chart(series: Sequence[Series], title: str) -> Markup:
    """Accuracy by labelled rows a label, both with their values on the axes; x is logarithmic.

    Around each number of rows the methods are side by side, so that their intervals are seen.
    """
    sizes = sorted({point.x for one in series for point in one.points})
    area = _area(series)
    margin, step = _side_by_side(sizes, len(series), area.right - area.left)
    x = Scale(sizes[0], sizes[-1], area.left + margin, area.right - margin, logarithmic=True)
    axes = Axes(area, x, accuracy_scale(_heights(series), area.bottom, area.top))
    half = step * (len(series) - 1) / 2 + 8
    shapes = [
        f'<rect class="band" x="{x(size) - half:.1f}" width="{2 * half:.1f}" y="{area.top}" '
        f'height="{area.bottom - area.top}"/>'
        for size in sizes
    ]
    shapes += draw_axes(axes, [(size, f"{size:g}") for size in sizes], "labelled rows a label")
    radius = min(RADIUS, max(3.0, step / 2))
    marks: list[str] = []
    for number, one in enumerate(series):
        shift = step * (number - (len(series) - 1) / 2)
        positions = [(x(point.x) + shift, axes.y(point.y), point) for point in one.points]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top, _ in positions)
        shapes.append(f'<polyline {_line_style(one.index)} points="{path}"/>')
        for left, top, point in positions:
            shapes += _whisker(one.index, point, left, axes.y)
            marks.append(marker(one.index, left, top, radius))
    values = "; ".join(
        f"{one.name}: " + ", ".join(f"{point.x:g} rows {100 * point.y:.1f}" for point in one.points) for one in series
    )
    return _svg(shapes + marks, area, f"{title}. Accuracy in percent by labelled rows a label. {values}.")


def dot_plot(series: Sequence[Series], title: str) -> Markup:
    """Accuracy of each method on a line of its own, with its name: for one number of rows a label."""
    names = [textwrap.wrap(one.name, NAME_LETTERS) or [""] for one in series]
    left = 26 + max(text_width(line) for lines in names for line in lines)
    tops = [4.0]
    for lines in names:
        tops.append(tops[-1] + LINE * len(lines) + 8)
    area = Box(left, 4, WIDTH - RIGHT, tops[-1])
    scale = accuracy_scale(_heights(series), left + 6, WIDTH - RIGHT - 6)
    shapes = draw_x_axis(area, scale, accuracy_ticks(scale), ACCURACY)
    for one, lines, (top, bottom) in zip(series, names, pairwise(tops), strict=True):
        y = (top + bottom) / 2
        shapes.append(grid_line(left, y, area.right, y))
        first = y + 4 - LINE * (len(lines) - 1) / 2
        shapes.append(_text(lines, left - 18, first, "end"))
        for point in one.points:
            if point.low is not None and point.high is not None:
                ends = f'x1="{scale(point.low):.1f}" x2="{scale(point.high):.1f}"'
                shapes.append(f'<line class="range c{one.index % COLOURS}" y1="{y:.1f}" y2="{y:.1f}" {ends}/>')
            shapes.append(marker(one.index, scale(point.y), y))
    values = "; ".join(f"{one.name} {100 * point.y:.1f}" for one in series for point in one.points)
    return _svg(shapes, area, f"{title}. Accuracy in percent. {values}.")


def scatter(series: Sequence[Series], title: str, x_label: str) -> Markup:
    """Accuracy by a cost or a speed, which is logarithmic; methods on the frontier are ringed and joined."""
    area = _area(series)
    values = [point.x for one in series for point in one.points]
    ticks = logarithmic_ticks(min(values), max(values))
    ends = [*values, *(value for value, _ in ticks)]
    x = Scale(min(ends), max(ends), area.left + MARGIN, area.right - MARGIN, logarithmic=True)
    heights = accuracy_scale(_heights(series), area.bottom - MARGIN, area.top + MARGIN / 2)
    axes = Axes(area, x, heights)
    shapes = draw_axes(axes, ticks, x_label)
    points = [NamedPoint(x(p.x), axes.y(p.y), one.name, one.on_frontier) for one in series for p in one.points]
    frontier = sorted(point.position for point in points if point.is_bold)
    shapes.append(f'<polyline class="frontier" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in frontier)}"/>')
    labels = place_labels(points, area, list(pairwise(frontier)))
    for label in labels:
        if label.leader is not None:
            (x1, y1), (x2, y2) = label.leader
            shapes.append(f'<line class="leader" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    indices = [one.index for one in series for _ in one.points]
    for index, point in zip(indices, points, strict=True):
        if point.is_bold:
            shapes.append(f'<circle class="ring" cx="{point.x:.1f}" cy="{point.y:.1f}" r="9"/>')
        shapes.append(marker(index, point.x, point.y))
    shapes += map(_label_text, labels)
    text = "; ".join(
        f"{one.name}: {point.x:,.3g}, {100 * point.y:.1f} percent{', on the frontier' if one.on_frontier else ''}"
        for one in series
        for point in one.points
    )
    return _svg(shapes, area, f"{title}. {x_label}, and accuracy. {text}.")


def _area(series: Sequence[Series]) -> Box:
    """The plot area of a chart of these methods."""
    width, height = (WIDE, WIDE_HEIGHT) if is_wide(series) else (WIDTH, HEIGHT)
    return Box(LEFT, TOP, width - RIGHT, height - BOTTOM)


def _heights(series: Sequence[Series]) -> list[float]:
    """All accuracies and the ends of their intervals."""
    points = [point for one in series for point in one.points]
    return [value for p in points for value in (p.y, p.low, p.high) if value is not None]


def _side_by_side(sizes: Sequence[float], count: int, width: float) -> tuple[float, float]:
    """The plot's inner margin, and the step between two methods: together they take 3/4 of the closest sizes' gap."""
    if count < 2:
        return MARGIN, 0.0
    logs = [math.log10(size) for size in sizes]
    part = min(((b - a) / (logs[-1] - logs[0]) for a, b in pairwise(logs)), default=1.0)
    spread = min(STEP * (count - 1), 0.75 * part * (width - 2 * MARGIN) / (1 + 0.75 * part))
    return MARGIN / 2 + spread / 2, spread / (count - 1)


def _whisker(index: int, point: Point, x: float, scale: Scale) -> Iterator[str]:
    """A vertical line over a point's interval."""
    if point.low is not None and point.high is not None:
        ends = f'y1="{scale(point.high):.1f}" y2="{scale(point.low):.1f}"'
        yield f'<line class="range c{index % COLOURS}" x1="{x:.1f}" x2="{x:.1f}" {ends}/>'


def _line_style(index: int) -> str:
    """The attributes of a method's line."""
    dash = DASHES[index % len(DASHES)]
    return f'class="line c{index % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _label_text(label: Label) -> str:
    """A point's name."""
    return _text(label.lines, label.x, label.box.top + LINE - 3.5, label.anchor, "best" if label.point.is_bold else "")


def _text(lines: Sequence[str], x: float, y: float, anchor: str, css_class: str = "") -> str:
    """Lines of text, of which the first is at y."""
    attributes = f' class="{css_class}"' if css_class else ""
    if len(lines) == 1:
        content = escape(lines[0])
    else:
        heights = [f"{y + LINE * number:.1f}" for number in range(len(lines))]
        content = "".join(
            f'<tspan x="{x:.1f}" y="{height}">{escape(line)}</tspan>'
            for height, line in zip(heights, lines, strict=True)
        )
    return f'<text{attributes} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{content}</text>'


def marker(index: int, x: float, y: float, r: float = RADIUS) -> str:
    """The marker of a method: its shape repeats later than its colour."""
    outline = OUTLINES[index % len(OUTLINES)]
    corners = " ".join(f"{x + r * across:.1f},{y + r * down:.1f}" for across, down in outline)
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'
    shape = f'<polygon points="{corners}"/>' if outline else circle
    return f'<g class="m c{index % COLOURS}">{shape}</g>'


def _svg(shapes: Sequence[str], area: Box, text: str) -> Markup:
    view = f"0 0 {area.right + RIGHT:.0f} {area.bottom + BOTTOM:.0f}"
    return Markup(f'<svg class="chart" role="img" aria-label="{escape(text)}" viewBox="{view}">{"".join(shapes)}</svg>')
