"""Places the names of points in a chart: next to their markers, off the other markers, names and lines.

A name is tried in one line and in several, in sixteen directions around its marker. Where no position is free, it may
be farther away with a thin line to its marker, or else on a line of the chart. A point without such a position has no
name, and the legend tells it by its marker.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FONT, LINE = 12, 14  # pixels: the height of letters and of a line
NARROW, WIDE = frozenset("iljfrtI.,:;'|!()[]/- "), frozenset("mwMW@%&")
BOLD = 1.16  # the width of bold letters to that of others
MARKER, RING = 8, 11  # half the side of the square that a marker takes, without and with a ring
NEAR = (11, 13, 16, 19)  # pixels from a point to its name
FAR = (30, 40, 52)  # with a line to the marker
ACROSS = 14  # letters in a line of a wrapped name, about
Position = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box, gap: float = 0.0) -> bool:
        """Whether the rectangles are closer than `gap`."""
        is_beside = self.right + gap <= other.left or other.right + gap <= self.left
        return not (is_beside or self.bottom + gap <= other.top or other.bottom + gap <= self.top)

    def contains(self, other: Box) -> bool:
        """Whether the other rectangle is inside."""
        is_across = self.left <= other.left and other.right <= self.right
        return is_across and self.top <= other.top and other.bottom <= self.bottom

    def nearest(self, point: Position) -> Position:
        """The rectangle's position that is nearest to a point."""
        return min(max(point[0], self.left), self.right), min(max(point[1], self.top), self.bottom)

    def distance(self, point: Position) -> float:
        """How far a point is from the rectangle; 0 inside."""
        return math.dist(point, self.nearest(point))

    def is_crossed(self, line: tuple[Position, Position]) -> bool:
        """Whether a straight line passes through the rectangle (Liang and Barsky's clipping)."""
        (x, y), (x2, y2) = line
        enter, leave = 0.0, 1.0
        for step, inside in (
            (x - x2, x - self.left),
            (x2 - x, self.right - x),
            (y - y2, y - self.top),
            (y2 - y, self.bottom - y),
        ):
            if step == 0:
                if inside < 0:
                    return False
            elif step < 0:
                enter = max(enter, inside / step)
            else:
                leave = min(leave, inside / step)
        return enter <= leave


@dataclass(frozen=True)
class NamedPoint:
    """A point with its name; those on the frontier have a ring and a bold name."""

    x: float
    y: float
    name: str
    is_bold: bool = False

    @property
    def position(self) -> Position:
        """Where the point is."""
        return self.x, self.y

    @property
    def box(self) -> Box:
        """What its marker covers."""
        half = RING if self.is_bold else MARKER
        return Box(self.x - half, self.y - half, self.x + half, self.y + half)


@dataclass(frozen=True)
class Label:
    """A name at a position."""

    point: NamedPoint
    lines: tuple[str, ...]
    box: Box
    anchor: str  # of the text: 'start', 'middle' or 'end'
    cost: float  # lower is better
    leader: tuple[Position, Position] | None = None

    @property
    def x(self) -> float:
        """Where the text is anchored."""
        middle = (self.box.left + self.box.right) / 2
        return {"start": self.box.left, "middle": middle, "end": self.box.right}[self.anchor]


def text_width(text: str, is_bold: bool = False) -> float:
    """The width of a text in pixels in a wide sans-serif font, about."""
    return FONT * sum(map(_letter_width, text)) * (BOLD if is_bold else 1.0)


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in NARROW:
        return 0.4
    return 0.95 if letter in WIDE else 0.72 if letter.isupper() else 0.63


def place_labels(
    points: Sequence[NamedPoint], area: Box, lines: Sequence[tuple[Position, Position]] = ()
) -> list[Label]:
    """The names that have a free position: inside the area, off markers and names and, if possible, off lines."""
    labels: list[Label] = []
    for radii, avoided in ((NEAR, lines), (FAR, lines), (NEAR, ())):
        done = {label.point for label in labels}
        waiting = {
            point: [label for label in _options(point, radii) if _is_free(label, points, area, avoided)]
            for point in points
            if point not in done
        }
        for label in labels:
            waiting = _without_overlaps(waiting, label)
        while waiting := {point: options for point, options in waiting.items() if options}:
            point = min(waiting, key=lambda one: len(waiting[one]))  # the one with the fewest options first
            label = min(waiting.pop(point), key=lambda option: option.cost)
            labels.append(label)
            waiting = _without_overlaps(waiting, label)
    return labels


def _options(point: NamedPoint, radii: Sequence[int]) -> Iterator[Label]:
    """A name around its marker: in one line or wrapped, in sixteen directions, at several distances."""
    wrapped = tuple(textwrap.wrap(point.name, ACROSS, break_long_words=False)) or (point.name,)
    for lines in dict.fromkeys(((point.name,), wrapped)):
        width, height = max(text_width(line, point.is_bold) for line in lines), LINE * len(lines)
        for radius in (one + RING - MARKER if point.is_bold else one for one in radii):
            for number in range(16):
                across, down = math.cos(number * math.pi / 8), math.sin(number * math.pi / 8)
                anchor = "start" if across > 0.3 else "end" if across < -0.3 else "middle"
                left = point.x + radius * across - {"start": 0, "middle": width / 2, "end": width}[anchor]
                top = point.y + radius * down + (down - 1) * height / 2
                box = Box(left, top, left + width, top + height)
                cost = radius + 6 * abs(down) + 2 * (across < 0) + 3 * (len(lines) - 1)
                leader = None if radii is NEAR else _leader(point, box)
                yield Label(point, lines, box, anchor, cost, leader)


def _leader(point: NamedPoint, box: Box) -> tuple[Position, Position]:
    """The line from a marker's edge almost to its name."""
    x, y = box.nearest(point.position)
    length = math.dist(point.position, (x, y))

    def at(distance: float) -> Position:
        part = distance / max(length, 1e-9)
        return point.x + part * (x - point.x), point.y + part * (y - point.y)

    return at(RING - 2 if point.is_bold else MARKER), at(length - 3)


def _is_free(label: Label, points: Sequence[NamedPoint], area: Box, lines: Sequence[tuple[Position, Position]]) -> bool:
    """Whether a label is in the area, off markers and lines, and nearer to its own marker than to the others."""
    if not area.contains(label.box) or any(label.box.is_crossed(line) for line in lines):
        return False
    if any(label.box.overlaps(point.box) for point in points):
        return False
    others = [point for point in points if point is not label.point]
    if label.leader is not None:
        return not any(point.box.is_crossed(label.leader) for point in others)
    distance = label.box.distance(label.point.position)
    return all(label.box.distance(other.position) > distance + 2 for other in others)


def _without_overlaps(waiting: dict[NamedPoint, list[Label]], label: Label) -> dict[NamedPoint, list[Label]]:
    """The options that neither overlap a label that has been placed nor cross its line."""
    return {
        point: [option for option in options if not _is_in_conflict(option, label)]
        for point, options in waiting.items()
    }


def _is_in_conflict(one: Label, other: Label) -> bool:
    if one.box.overlaps(other.box, gap=3):
        return True
    if one.leader and other.box.is_crossed(one.leader):
        return True
    if other.leader and one.box.is_crossed(other.leader):
        return True
    return bool(one.leader and other.leader and _intersect(one.leader, other.leader))


def _intersect(one: tuple[Position, Position], other: tuple[Position, Position]) -> bool:
    """Whether two straight lines cross."""

    def side(line: tuple[Position, Position], point: Position) -> float:
        (x, y), (x2, y2) = line
        return (x2 - x) * (point[1] - y) - (y2 - y) * (point[0] - x)

    apart = side(one, other[0]) * side(one, other[1]) < 0
    return apart and side(other, one[0]) * side(other, one[1]) < 0
