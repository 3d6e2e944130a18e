"""Small drawings for the report: inline SVG that stretches with its table cell, in the page's own colours.

In: shares between 0 and 1. Out: safe markup with a text for those who cannot see it. All places are percentages, so a
drawing keeps its line widths on any screen.
"""

from __future__ import annotations

from html import escape

from markupsafe import Markup

HEIGHT = 16


def percent(share: float | None, places: int = 1) -> str:
    """`53.1` for 0.5312: percent as the paper prints them."""
    return "" if share is None else f"{100 * share:.{places}f}"


def bar(share: float, low: float | None = None, high: float | None = None, kind: str = "own", said: str = "") -> Markup:
    """A bar from 0 to 100%, with a whisker from `low` to `high`."""
    parts = [_rect("track", 0, 1), _rect(kind, 0, share)]
    text = f"{percent(share)} percent"
    if low is not None and high is not None:
        text += f", from {percent(low)} to {percent(high)}"
        parts += [_line(low, high, 8), _line(low, low, 4, 12), _line(high, high, 4, 12)]
    return _svg(parts, said or text)


def change(before: float, after: float) -> Markup:
    """From a ring to a dot: what was before and what is now."""
    parts = [
        _rect("track", 0, 1, 7, 2),
        f'<line class="way" x1="{_at(before)}" x2="{_at(after)}" y1="8" y2="8"/>',
        f'<circle class="before" cx="{_at(before)}" cy="8" r="4.5"/>',
        f'<circle class="own" cx="{_at(after)}" cy="8" r="5"/>',
    ]
    return _svg(parts, f"from {percent(before)} percent before training to {percent(after)} after")


def marked(share: float, mark: float | None, said: str) -> Markup:
    """A bar with a tick at another share."""
    parts = [_rect("track", 0, 1), _rect("own", 0, share)]
    if mark is not None:
        parts.append(f'<line class="tick" x1="{_at(mark)}" x2="{_at(mark)}" y1="1" y2="15"/>')
    return _svg(parts, said)


def _svg(parts: list[str], said: str) -> Markup:
    opening = f'<svg class="mark" role="img" aria-label="{escape(said)}" width="100%" height="{HEIGHT}">'
    return Markup(f"{opening}{''.join(parts)}</svg>")


def _rect(kind: str, start: float, width: float, top: int = 4, height: int = 8) -> str:
    return f'<rect class="{kind}" x="{_at(start)}" y="{top}" width="{_at(width)}" height="{height}" rx="2"/>'


def _line(start: float, stop: float, top: int, bottom: int | None = None) -> str:
    return f'<line class="whisker" x1="{_at(start)}" x2="{_at(stop)}" y1="{top}" y2="{bottom or top}"/>'


def _at(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"
