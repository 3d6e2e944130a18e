"""The axes of the bench's charts: scales, ticks and the grid, as SVG shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from clozify.bench.chart_labels import Box

LEFT, RIGHT, TOP, BOTTOM = 34, 12, 24, 40  # pixels around the plot area
SMALLEST = 1e-9  # on a logarithmic scale
MOST_TICKS = 6
ACCURACY = "accuracy, %"
STEPS = (0.02, 0.05, 0.1, 0.2, 0.5)  # between the ticks of accuracy


@dataclass(frozen=True)
class Scale:
    """Maps values to positions, linearly or logarithmically; a range of one value is mapped to the middle."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high, number = (_log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        fraction = 0.5 if high - low < SMALLEST else (number - low) / (high - low)
        return self.start + (self.stop - self.start) * fraction


@dataclass(frozen=True)
class Axes:
    """A plot area with a scale in each direction."""

    area: Box
    x: Scale
    y: Scale


def _log(value: float) -> float:
    return math.log10(max(value, SMALLEST))


def accuracy_scale(values: Sequence[float], start: float, stop: float) -> Scale:
    """A scale of accuracy that covers the values, from one multiple of 5% to another."""
    low = max(0.0, math.floor(20 * min(values) + SMALLEST) / 20)
    high = min(1.0, math.ceil(20 * max(values) - SMALLEST) / 20)
    if high - low < 0.05:
        low, high = max(0.0, low - 0.05), min(1.0, high + 0.05)
    return Scale(low, high, start, stop)


def accuracy_ticks(scale: Scale) -> list[tuple[float, str]]:
    """At most seven round percentages on a scale of accuracy."""
    step = next(step for step in STEPS if (scale.high - scale.low) / step <= MOST_TICKS)
    first, last = math.ceil(scale.low / step - SMALLEST), math.floor(scale.high / step + SMALLEST)
    return [(number * step, f"{100 * number * step:.0f}") for number in range(first, last + 1)]


def logarithmic_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """At most six ticks around the values: at 1, 2 and 5 times powers of ten, or at powers of ten alone."""
    low, high = max(low, SMALLEST), max(high, SMALLEST)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max(step for step in steps if step <= low * (1 + SMALLEST))
    last = min(step for step in steps if step >= high * (1 - SMALLEST) and step > first)
    ticks = [step for step in steps if first <= step <= last]
    if len(ticks) > MOST_TICKS:
        ticks = [10.0**power for power in powers if first <= 10.0**power <= last]
        ticks = ticks[:: -(-len(ticks) // MOST_TICKS)]
    return [(tick, f"{tick:,.0f}" if tick >= 1 else f"{tick:g}") for tick in ticks]


def draw_axes(axes: Axes, x_ticks: Sequence[tuple[float, str]], x_label: str) -> list[str]:
    """The grid, the ticks and the names of an axis of values and, above the plot, one of accuracy."""
    area = axes.area
    shapes = [f'<text class="tick" x="0" y="12">{ACCURACY}</text>']
    for value, text in accuracy_ticks(axes.y):
        y = axes.y(value)
        shapes.append(grid_line(area.left, y, area.right, y))
        shapes.append(tick_text(area.left - 6, y + 4, text, "end"))
    return shapes + draw_x_axis(area, axes.x, x_ticks, x_label)


def draw_x_axis(area: Box, scale: Scale, ticks: Sequence[tuple[float, str]], name: str) -> list[str]:
    """The vertical grid lines, with their values and the axis's name below."""
    shapes = []
    for value, text in ticks:
        x = scale(value)
        shapes.append(grid_line(x, area.top, x, area.bottom))
        shapes.append(tick_text(x, area.bottom + 16, text, "middle"))
    shapes.append(tick_text((area.left + area.right) / 2, area.bottom + 34, name, "middle"))
    return shapes


def grid_line(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line of the grid."""
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def tick_text(x: float, y: float, text: str, anchor: str) -> str:
    """A text beside an axis."""
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
