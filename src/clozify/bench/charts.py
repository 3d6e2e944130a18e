"""The bench's charts as inline SVG: lines of accuracy by labelled rows, and points of accuracy by time or speed.

Every method has a colour and a marker of its own, so colour alone carries nothing. Charts scale with the page; colours
are variables of the page's style, which has a light and a dark set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 380, 270
LEFT, RIGHT, TOP, BOTTOM = 38, 12, 10, 40
COLOURS = 8  # in the page's style
LABEL_GAP = 13  # pixels between two labels
LETTER = 6.6  # the width of a letter in pixels, about


@dataclass(frozen=True)
class Point:
    """A value, with its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A method's points; `index` decides its colour and its marker."""

    name: str
    index: int
    points: tuple[Point, ...]
    on_frontier: bool = False


def legend(names: Sequence[str]) -> Markup:
    """The methods with their markers, as a list."""
    items = []
    for index, name in enumerate(names):
        mark = f'<svg width="18" height="16" aria-hidden="true">{marker(index, 9, 8)}</svg>'
        items.append(f"<li>{mark} {escape(name)}</li>")
    return Markup(f'<ul class="legend">{"".join(items)}</ul>')


def line_chart(series: Sequence[Series], title: str) -> Markup:
    """Accuracy by labelled rows a label, both with their values on the axes; x is logarithmic."""
    sizes = sorted({point.x for one in series for point in one.points})
    axes = _Axes(series, [(size, f"{size:g}") for size in sizes], "labelled rows a label")
    shapes = axes.frame()
    count = len(series)
    for number, one in enumerate(series):
        shift = 4 * (number - (count - 1) / 2) if len(sizes) < 6 else 0  # side by side, so that intervals are seen
        positions = [(axes.x(point.x) + shift, axes.y(point.y), point) for point in one.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in positions)
        shapes.append(f'<polyline class="line c{one.index % COLOURS}" points="{path}"/>')
        for x, y, point in positions:
            if point.low is not None and point.high is not None:
                ends = f'y1="{axes.y(point.high):.1f}" y2="{axes.y(point.low):.1f}"'
                shapes.append(f'<line class="range c{one.index % COLOURS}" x1="{x:.1f}" x2="{x:.1f}" {ends}/>')
            shapes.append(marker(one.index, x, y))
    values = "; ".join(
        f"{one.name}: " + ", ".join(f"{point.x:g} rows {100 * point.y:.1f}" for point in one.points) for one in series
    )
    return _svg(shapes, f"{title}. Accuracy in percent by labelled rows a label. {values}.")


def scatter(series: Sequence[Series], title: str, x_label: str) -> Markup:
    """Accuracy by a cost or a speed, which is logarithmic; methods on the frontier are ringed and joined."""
    values = [point.x for one in series for point in one.points]
    axes = _Axes(series, decades(min(values), max(values)), x_label)
    shapes = axes.frame()
    best = sorted((axes.x(p.x), axes.y(p.y)) for one in series if one.on_frontier for p in one.points)
    shapes.append(f'<polyline class="frontier" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in best)}"/>')
    labels: list[tuple[float, float, str, bool]] = []
    for one in series:
        for point in one.points:
            x, y = axes.x(point.x), axes.y(point.y)
            if one.on_frontier:
                shapes.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
            shapes.append(marker(one.index, x, y))
            labels.append((x, y, one.name, one.on_frontier))
    shapes += _labels(labels)
    text = "; ".join(
        f"{one.name}: {point.x:,.3g}, {100 * point.y:.1f} percent{', on the frontier' if one.on_frontier else ''}"
        for one in series
        for point in one.points
    )
    return _svg(shapes, f"{title}. {x_label}, and accuracy. {text}.")


def _labels(points: Sequence[tuple[float, float, str, bool]]) -> list[str]:
    """The names of points: right of them, else left, else below, where nothing else is."""
    shapes = []
    taken = [(x - 8, x + 8, y) for x, y, _, _ in points]  # left, right, middle
    for x, y, name, on_frontier in sorted(points, key=lambda point: point[1]):
        width = LETTER * len(name)
        sides = [left for left in (x + 12, x - 12 - width) if left >= 0 and left + width <= WIDTH]
        options = [(left, y + down) for down in range(0, HEIGHT, 3) for left in sides]
        left, middle = next((option for option in options if _is_free(*option, width, taken)), (x + 12, y))
        taken.append((left, left + width, middle))
        weight = ' class="best"' if on_frontier else ""
        shapes.append(f'<text{weight} x="{left:.1f}" y="{middle + 4:.1f}">{escape(name)}</text>')
    return shapes


def _is_free(left: float, middle: float, width: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    """Whether a label of this width overlaps nothing."""
    return not any(
        left < other_right and other_left < left + width and abs(middle - other) < LABEL_GAP
        for other_left, other_right, other in taken
    )


class _Axes:
    """A logarithmic x-axis and an axis of accuracy that covers the points and their intervals."""

    def __init__(self, series: Sequence[Series], ticks: Sequence[tuple[float, str]], x_label: str) -> None:
        points = [point for one in series for point in one.points]
        heights = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
        self.ticks, self.x_label = ticks, x_label
        xs = [math.log10(max(value, 1e-9)) for value in [*(p.x for p in points), *(value for value, _ in ticks)]]
        self.first, self.last = min(xs), max(xs)
        self.low = max(0.0, math.floor(20 * min(heights)) / 20)
        self.high = min(1.0, math.ceil(20 * max(heights)) / 20)
        if self.high - self.low < 0.05:
            self.low, self.high = max(0.0, self.low - 0.05), min(1.0, self.high + 0.05)

    def x(self, value: float) -> float:
        """The position of a value; a single one is in the middle."""
        width = WIDTH - LEFT - RIGHT - 36
        if self.last - self.first < 1e-9:
            return LEFT + 18 + width / 2
        return LEFT + 18 + width * (math.log10(max(value, 1e-9)) - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        """The position of an accuracy."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)

    def frame(self) -> list[str]:
        """The grid, the ticks and the axis's name."""
        step = next(step for step in (0.02, 0.05, 0.1, 0.2, 0.5) if (self.high - self.low) / step <= 6)
        shapes, value = [], math.ceil(self.low / step - 1e-9) * step
        while value <= self.high + 1e-9:
            y = self.y(value)
            shapes.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            shapes.append(
                f'<text class="tick" x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{100 * value:.0f}</text>'
            )
            value += step
        bottom = HEIGHT - BOTTOM
        for number, text in self.ticks:
            x = self.x(number)
            shapes.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
            shapes.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{text}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        shapes.append(
            f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(self.x_label)}</text>'
        )
        return shapes


def decades(low: float, high: float) -> list[tuple[float, str]]:
    """Ticks at powers of ten around values, thinned to six at most."""
    first, last = math.floor(math.log10(max(low, 1e-9))), math.ceil(math.log10(max(high, 1e-9)))
    last = max(last, first + 1)
    step = -(-(last - first) // 5)
    return [
        (10.0**power, f"{10.0**power:,.0f}" if power >= 0 else f"{10.0**power:g}")
        for power in range(first, last + 1, step)
    ]


def marker(index: int, x: float, y: float, r: float = 5) -> str:
    """The marker of a method: its shape repeats later than its colour."""
    shapes = {
        0: _polygon(x, y, [(-r, -r), (r, -r), (r, r), (-r, r)]),
        1: f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>',
        2: _polygon(x, y, [(0, -r - 1), (r + 1, r), (-r - 1, r)]),
        3: _polygon(x, y, [(0, -r - 2), (r + 2, 0), (0, r + 2), (-r - 2, 0)]),
        4: _polygon(x, y, [(-r - 1, -r), (r + 1, -r), (0, r + 1)]),
        5: _polygon(
            x,
            y,
            [
                (-2, -6),
                (2, -6),
                (2, -2),
                (6, -2),
                (6, 2),
                (2, 2),
                (2, 6),
                (-2, 6),
                (-2, 2),
                (-6, 2),
                (-6, -2),
                (-2, -2),
            ],
        ),
        6: _polygon(
            x,
            y,
            [
                (
                    6 * math.sin(k * math.pi / 5) * (1 if k % 2 == 0 else 0.45),
                    -6 * math.cos(k * math.pi / 5) * (1 if k % 2 == 0 else 0.45),
                )
                for k in range(10)
            ],
        ),
        7: _polygon(x, y, [(-r, 0), (-r / 2, -r), (r / 2, -r), (r, 0), (r / 2, r), (-r / 2, r)]),
        8: _polygon(
            x,
            y,
            [(-6, -4), (-4, -6), (0, -2), (4, -6), (6, -4), (2, 0), (6, 4), (4, 6), (0, 2), (-4, 6), (-6, 4), (-2, 0)],
        ),
    }
    return f'<g class="m c{index % COLOURS}">{shapes[index % len(shapes)]}</g>'


def _polygon(x: float, y: float, corners: Sequence[tuple[float, float]]) -> str:
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}"/>'


def _svg(shapes: Sequence[str], text: str) -> Markup:
    opening = f'<svg class="chart" role="img" aria-label="{escape(text)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return Markup(f"{opening}{''.join(shapes)}</svg>")
