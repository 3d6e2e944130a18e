"""Texts with the words that moved a label: pieces with a sign and a strength, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clozify.report.format import MAX_CHARACTERS, shorten
from clozify.runs.explanations import ExplainedPart, ExplainedRow

LEVELS = (0.12, 0.35, 0.7)  # of the largest effect: from here on a word is shown as weak, medium or strong
SMALLEST_SCALE = 0.5  # log-odds: where all effects are smaller, none is shown as strong
NAMED = 5  # words that are listed with their effects


@dataclass(frozen=True)
class TextPiece:
    """Consecutive characters of a text; `effect` is None where they did not move the label."""

    text: str
    effect: float | None = None
    strength: int = 0  # from 1 to 3


@dataclass(frozen=True)
class ExplainedTexts:
    """A row's texts in pieces, and the words with the largest effects on a label."""

    label: str
    texts: list[list[TextPiece]]  # of the fields
    strongest: list[tuple[str, float]]  # word -> what it adds to the label's log-odds


def strength(effect: float, largest: float) -> int:
    """How strongly an effect is shown, from 0 (not at all) to 3, where the largest effect of the row is `largest`."""
    fraction = abs(effect) / max(largest, SMALLEST_SCALE)
    return sum(fraction >= level for level in LEVELS)


def explained_texts(row: ExplainedRow, fields: Sequence[str], texts: Sequence[str]) -> ExplainedTexts:
    """The texts of the row's fields, each cut as the page cuts it, with the row's effects."""
    largest = max((abs(part.effect) for part in row.parts), default=0.0)
    by_effect = sorted(row.parts, key=lambda part: -abs(part.effect))
    text_of = dict(zip(fields, texts, strict=True))
    return ExplainedTexts(
        row.label,
        [_pieces(text_of[field], [part for part in row.parts if part.field == field], largest) for field in fields],
        [
            (text_of[part.field][part.start : part.end], part.effect)
            for part in by_effect[:NAMED]
            if strength(part.effect, largest)
        ],
    )


def _pieces(text: str, parts: Sequence[ExplainedPart], largest: float) -> list[TextPiece]:
    """A text in pieces; only its beginning, if it is long."""
    shown = len(text) if len(text) <= MAX_CHARACTERS else len(shorten(text)) - len(" ...")
    pieces, position = list[TextPiece](), 0
    for part in sorted(parts, key=lambda part: part.start):
        level = strength(part.effect, largest)
        if not level or part.start < position or part.end > shown:
            continue
        pieces += [TextPiece(text[position : part.start])] if part.start > position else []
        pieces.append(TextPiece(text[part.start : part.end], part.effect, level))
        position = part.end
    rest = text[position:shown] + ("" if shown == len(text) else " ...")
    return [*pieces, TextPiece(rest)] if rest else pieces
