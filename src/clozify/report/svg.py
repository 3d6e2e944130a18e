"""Inline SVG for the report's tables, in the colours of the page.

All positions are percentages, so a drawing stretches with its table cell and keeps its line widths. Every drawing has a
text alternative.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape

from markupsafe import Markup

from clozify.report.format import percent

HEIGHT = 16
IMAGE_COLOURS = ("#3d84c6", "#858585")  # of the curves, on light and dark pages
IMAGE_STYLE = (
    "path { fill: none; vector-effect: non-scaling-stroke; stroke-width: 2.5; stroke-linejoin: round; stroke: "
    f"{IMAGE_COLOURS[0]} }} .grid {{ stroke: #858585; stroke-opacity: .3; stroke-width: 1 }} "
    f".curve1 {{ stroke: {IMAGE_COLOURS[1]}; stroke-dasharray: 6 4 }}"
)


def bar(fraction: float, low: float | None = None, high: float | None = None, css_class: str = "own") -> Markup:
    """A bar from 0 to 100%, with a whisker from `low` to `high`."""
    shapes = [_rect("track", 0, 1), _rect(css_class, 0, fraction)]
    text = f"{percent(fraction)} percent"
    if low is not None and high is not None:
        text += f", from {percent(low)} to {percent(high)}"
        shapes += [_line(low, high, 8), _line(low, low, 4, 12), _line(high, high, 4, 12)]
    return _svg(shapes, text)


def before_after(before: float, after: float) -> Markup:
    """A line from a ring (before) to a dot (after)."""
    shapes = [
        _rect("track", 0, 1, 7, 2),
        f'<line class="way" x1="{_x(before)}" x2="{_x(after)}" y1="8" y2="8"/>',
        f'<circle class="before" cx="{_x(before)}" cy="8" r="4.5"/>',
        f'<circle class="own" cx="{_x(after)}" cy="8" r="5"/>',
    ]
    return _svg(shapes, f"from {percent(before)} percent before training to {percent(after)} after")


def bar_with_tick(fraction: float, tick: float | None, text: str) -> Markup:
    """A bar with a tick at another fraction."""
    shapes = [_rect("track", 0, 1), _rect("own", 0, fraction)]
    if tick is not None:
        shapes.append(f'<line class="tick" x1="{_x(tick)}" x2="{_x(tick)}" y1="1" y2="15"/>')
    return _svg(shapes, text)


def lines(curves: list[list[tuple[float, float]]], highest: float, text: str) -> Markup:
    """Curves of points in 0 to 1 and 0 to `highest`, over a grid of quarters; the drawing stretches to its frame."""
    grid = [25 * step for step in range(5)]
    shapes = [f'<path class="grid" d="M0 {at}H100M{at} 0V100"/>' for at in grid]
    for index, points in enumerate(curves):
        path = "L".join(f"{100 * x:.2f} {100 - 100 * min(y / highest, 1):.2f}" for x, y in points)
        shapes.append(f'<path class="curve{index}" d="M{path}"/>')
    opening = f'<svg class="lines" role="img" aria-label="{escape(text)}" viewBox="0 0 100 100"'
    return Markup(f'{opening} preserveAspectRatio="none">{"".join(shapes)}</svg>')


def lines_image(curves: list[list[tuple[float, float]]], highest: float, text: str) -> str:
    """The drawing of `lines` as the address of an image, in colours for light and dark pages."""
    drawing = str(lines(curves, highest, text)).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    drawing = drawing.replace("</svg>", f"<style>{IMAGE_STYLE}</style></svg>")
    return f"data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()}"


def _svg(shapes: list[str], text: str) -> Markup:
    opening = f'<svg class="mark" role="img" aria-label="{escape(text)}" width="100%" height="{HEIGHT}">'
    return Markup(f"{opening}{''.join(shapes)}</svg>")


def _rect(css_class: str, start: float, width: float, top: int = 4, height: int = 8) -> str:
    return f'<rect class="{css_class}" x="{_x(start)}" y="{top}" width="{_x(width)}" height="{height}" rx="2"/>'


def _line(start: float, stop: float, top: int, bottom: int | None = None) -> str:
    return f'<line class="whisker" x1="{_x(start)}" x2="{_x(stop)}" y1="{top}" y2="{bottom or top}"/>'


def _x(fraction: float) -> str:
    return f"{100 * min(1.0, max(0.0, fraction)):.2f}%"
