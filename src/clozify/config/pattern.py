"""A pattern: the function P of the paper that turns a row into a cloze question (section 3).

In: a line such as `"{title} ( {mask} ) {text}"`. Out: its segments, each a list of literal text, field slots
and the mask. `||` separates segments, `{{` and `}}` are braces, `{field:filter}` shapes a field first.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from clozify.errors import TaskError, did_you_mean, quoted

MASK = "mask"


def no_final_punctuation(text: str) -> str:
    """Drop the punctuation at the end: `"Mia likes pie."` becomes `"Mia likes pie"`."""
    return text.rstrip(string.punctuation + string.whitespace)


FILTERS: dict[str, Callable[[str], str]] = {"no_final_punctuation": no_final_punctuation}


@dataclass(frozen=True)
class Slot:
    """A place in a pattern for a field of the row, shaped by a filter if one is named."""

    field: str
    filter: str | None = None

    def __str__(self) -> str:
        return "{" + self.field + (f":{self.filter}" if self.filter else "") + "}"


@dataclass(frozen=True)
class Mask:
    """The place of the word to be predicted."""


Part = str | Slot | Mask
Segment = tuple[Part, ...]


@dataclass(frozen=True)
class Pattern:
    """A cloze question with slots for a row's fields; equal when its text is equal."""

    text: str

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of each segment, in order; raises `TaskError` for a text that is no pattern."""
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
        found = [
            f"The pattern '{self.text}' uses {{{slot.field}}}, which is not a field of the task"
            f"{did_you_mean(slot.field, fields)}; the fields are {quoted(fields)}."
            for slot in slots
            if slot.field not in fields
        ]
        if not slots:
            found.append(
                f"The pattern '{self.text}' uses no field, so every row would get the same answer; "
                f"put one of {quoted('{' + name + '}' for name in fields)} into it."
            )
        return found

    def __str__(self) -> str:
        return self.text


def _parse(text: str) -> tuple[Segment, ...]:
    segments: list[list[Part]] = [[]]
    try:
        # string.Formatter knows the grammar of braces: (literal, field, filter, conversion) at a time
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise TaskError(
            f"The pattern '{text}' has a brace without its partner ({error}); "
            "for a brace that is text write {{ or }}."
        ) from None
    for literal, name, spec, conversion in pieces:
        first, *rest = literal.split("||")
        segments[-1].append(first)
        segments.extend([piece] for piece in rest)
        if name is not None:
            segments[-1].append(_slot(text, name, spec or "", conversion))
    masks = sum(isinstance(part, Mask) for segment in segments for part in segment)
    if masks != 1:
        found = "no {mask}" if masks == 0 else f"{masks} times {{mask}}"
        raise TaskError(f"The pattern '{text}' has {found}; write {{mask}} exactly once, where the word belongs.")
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


def _slot(text: str, name: str, spec: str, conversion: str | None) -> Slot | Mask:
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
    """With neighbouring literals joined, without white space at the ends and without empty literals."""
    parts: list[Part] = []
    for part in segment:  # an escaped brace ends a literal early; what is written together stays together
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    if parts and isinstance(parts[0], str):
        parts[0] = parts[0].lstrip()
    if parts and isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return tuple(part for part in parts if part != "")
