"""Patterns: the function P of the paper, which turns a row into a cloze question (section 3).

A pattern such as `"{title} ( {mask} ) {text}"` is parsed into segments of literal text, field slots and the mask.
`||` separates the segments, `{{` and `}}` are literal braces, and `{field:filter}` applies a filter to a field.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from clozify.errors import TaskError, did_you_mean, quoted

MASK = "mask"


def no_final_punctuation(text: str) -> str:
    """The text without punctuation at its end: `"Mia likes pie."` becomes `"Mia likes pie"`."""
    return text.rstrip(string.punctuation + string.whitespace)


FILTERS: dict[str, Callable[[str], str]] = {"no_final_punctuation": no_final_punctuation}


@dataclass(frozen=True)
class Slot:
    """Where a field of the row is inserted, after its filter (if any) was applied."""

    field: str
    filter: str | None = None

    def __str__(self) -> str:
        return "{" + self.field + (f":{self.filter}" if self.filter else "") + "}"


@dataclass(frozen=True)
class Mask:
    """Where the word is to be predicted."""


Part = str | Slot | Mask
Segment = tuple[Part, ...]


@dataclass(frozen=True)
class Pattern:
    """A cloze question with slots for a row's fields; equal when its text is equal."""

    text: str

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of each segment, in order; raises `TaskError` where the text is not a valid pattern."""
        return _parse(self.text)

    @property
    def slots(self) -> list[Slot]:
        """Every field slot, in order of appearance."""
        return [part for segment in self.segments for part in segment if isinstance(part, Slot)]

    def problems(self, fields: list[str]) -> list[str]:
        """What is wrong with this pattern for a task with these fields, one sentence each."""
        try:
            slots = self.slots
        except TaskError as error:
            return error.problems
        problems = [
            f"The pattern '{self.text}' uses {{{slot.field}}}, which is not a field of the task"
            f"{did_you_mean(slot.field, fields)}; the fields are {quoted(fields)}."
            for slot in slots
            if slot.field not in fields
        ]
        if not slots:
            problems.append(
                f"The pattern '{self.text}' uses no field, so every row would get the same answer; "
                f"put one of {quoted('{' + name + '}' for name in fields)} into it."
            )
        return problems

    def __str__(self) -> str:
        return self.text


def _parse(text: str) -> tuple[Segment, ...]:
    """The segments of a pattern, or an error that names the fault."""
    segments: list[list[Part]] = [[]]
    try:
        replacement_fields = list(string.Formatter().parse(text))  # (literal, field, filter, conversion) each
    except ValueError as error:
        raise TaskError(
            f"The pattern '{text}' has a brace without its partner ({error}); "
            "for a brace that is text write {{ or }}."
        ) from None
    for literal, name, spec, conversion in replacement_fields:
        before_bar, *new_segments = literal.split("||")
        segments[-1].append(before_bar)
        segments.extend([start] for start in new_segments)
        if name is not None:
            segments[-1].append(_parse_slot(text, name, spec or "", conversion))
    masks = sum(isinstance(part, Mask) for segment in segments for part in segment)
    if masks != 1:
        count = "no {mask}" if masks == 0 else f"{masks} times {{mask}}"
        raise TaskError(f"The pattern '{text}' has {count}; write {{mask}} exactly once, where the word belongs.")
    if len(segments) > 2:
        raise TaskError(
            f"The pattern '{text}' has {len(segments)} segments; models take two, so write || at most once."
        )
    trimmed = [_trim(segment) for segment in segments]
    if not all(trimmed):
        raise TaskError(
            f"The pattern '{text}' has an empty segment; put text, a field or {{mask}} on both sides of ||."
        )
    return tuple(trimmed)


def _parse_slot(text: str, name: str, spec: str, conversion: str | None) -> Slot | Mask:
    """What a pair of braces stands for; `text` is the pattern, for messages."""
    if conversion or not name:
        wrong = f"{{{name}!{conversion}}}" if conversion else "{}"
        raise TaskError(f"The pattern '{text}' has {wrong}; write {{field}}, {{field:filter}} or {{mask}}.")
    if name == MASK:
        if spec:
            raise TaskError(f"The pattern '{text}' puts a filter on {{mask}}; filters shape fields only.")
        return Mask()
    if spec and spec not in FILTERS:
        raise TaskError(
            f"The pattern '{text}' uses the unknown filter '{spec}'{did_you_mean(spec, FILTERS)}; "
            f"the filters are {quoted(FILTERS)}."
        )
    return Slot(name, spec or None)


def _trim(segment: list[Part]) -> Segment:
    """The segment with adjacent literals joined, without empty ones and without white space at its ends."""
    parts: list[Part] = []
    for part in segment:  # string.Formatter ends a literal at every escaped brace
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    if parts and isinstance(parts[0], str):
        parts[0] = parts[0].lstrip()
    if parts and isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return tuple(part for part in parts if part != "")
