"""Labels that are given by their names alone: the names, read as words, are the labels' words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from clozify.errors import quoted


def name_to_words(name: str) -> str:
    """A label's name as words: `lost_or_stolen_card`, `lost-or-stolen-card` and `LostOrStolenCard` have the same.

    Parts of a name are in lower case, except for acronyms (`ATMSupport` is `ATM support`). A name with spaces in it is
    words already, and a single word stays as it is.
    """
    if re.search(r"\s", name.strip()):
        return " ".join(name.replace("_", " ").split())
    parts = [part for piece in re.split(r"[_-]+", name) for part in _camel_case_parts(piece) if part]
    if len(parts) < 2:
        return parts[0] if parts else name
    if name.isupper():  # GET_DIRECTIONS: the style of the name, not acronyms
        return " ".join(parts).lower()
    return " ".join(part.lower() if part[1:].islower() else part for part in parts)


def _camel_case_parts(text: str) -> list[str]:
    """The parts of a camel-case name; `iPhone` and `FAQs` are one part each."""
    starts = [index for index in range(1, len(text)) if _starts_part(text, index)]
    return [text[start:stop] for start, stop in pairwise([0, *starts, len(text)])]


def _starts_part(text: str, index: int) -> bool:
    """Whether a capital begins a new part: after two small letters, or before a small one that is no plural's s."""
    before, character, after = text[:index], text[index], text[index + 1 :]
    if not character.isupper():
        return False
    if before[-1].islower():
        return len(before) > 1
    return before[-1].isalnum() and after[:1].islower() and after != "s"


def words_of_names(names: Sequence[object]) -> tuple[dict[str, str], list[str]]:
    """Each label's words from the names in a list, and the faults of the list, one sentence each.

    Numbers and truth values are names, too: labels in data often are.
    """
    texts, problems = list[str](), list[str]()
    for number, name in enumerate(names, start=1):
        if isinstance(name, str) and name.strip():
            texts.append(name)
        elif isinstance(name, (bool, int)):
            texts.append(str(name).lower())
        else:
            fault = "is empty" if isinstance(name, str) else f"is {name!r}, not text"
            problems.append(f"Name {number} of the list 'labels' {fault}; write a label's name there, or remove it.")
    if twice := [name for name, count in Counter(texts).items() if count > 1]:
        problems.append(f"{quoted(twice)} stands twice in 'labels'; remove one.")
    return {name: name_to_words(name) for name in texts}, problems
