"""Words and regular expressions of rules as compiled patterns of the `regex` package, which can be stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

MAX_ELEMENTS = 10_000  # of a regular expression with its counts such as {3} written out, as the package compiles it
MAX_SHOWN = 80  # characters of a regular expression in a message
_TOKENS = r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<count>\d+)[^}]*\}|."
# scripts that are written without spaces between words: a word of theirs may begin and end anywhere
_WITHOUT_SPACES = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"


def compile_words(words: Iterable[str]) -> regex.Pattern[str]:
    """A pattern that finds one of the words or phrases: whole words, in any case; `*` is any number of letters."""
    import regex

    alternatives = "|".join(_word_pattern(word) for word in dict.fromkeys(words))
    return regex.compile(alternatives, regex.IGNORECASE | regex.FULLCASE)


def _word_pattern(word: str) -> str:
    """A word or phrase as a regular expression that begins and ends where a word does."""
    import regex

    word = " ".join(word.split())
    inner = r"\w*".join(regex.escape(part, literal_spaces=True) for part in word.strip("*").split("*"))
    inner = inner.replace(" ", r"\s+").replace("'", "['\N{RIGHT SINGLE QUOTATION MARK}]")

    def ends_word(character: str) -> bool:
        return bool(regex.match(r"\w", character)) and not regex.match(_WITHOUT_SPACES, character)

    return (r"(?<!\w)" if ends_word(word[0]) else "") + inner + (r"(?!\w)" if ends_word(word[-1]) else "")


def compile_regex(text: str) -> regex.Pattern[str]:
    """A regular expression as the user wrote it, in the syntax of Python's `re` and its extensions by `regex`."""
    import regex

    return regex.compile(text)


def regex_fault(text: str) -> str | None:
    """Why a regular expression cannot be used, as the rest of a sentence about its rule; None where it can."""
    import regex

    if not text:
        return "has an empty regex, which every text matches; write one, or remove the entry."
    if (elements := _count_elements(text)) > MAX_ELEMENTS:
        return (
            f"has a regex that repeats {elements:,} elements when its counts are written out, and "
            f"{MAX_ELEMENTS:,} are allowed; lower the numbers in braces, or write + or *."
        )
    try:
        compile_regex(text)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        reason = getattr(error, "msg", "") or "it is nested too deeply"
        position = getattr(error, "pos", None)
        at = "" if position is None else f" at character {position + 1}"
        shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
        return f"has a regex that is not valid{at} ({reason}): {shown}; correct it."
    return None


def _count_elements(text: str) -> int:
    """How many elements a regular expression has with its counts written out: (ab){3} has six."""
    import regex

    sizes, last = [0], 1  # of the open groups, of the last element
    for token in regex.finditer(_TOKENS, text, regex.DOTALL):
        if token["count"] is not None:
            sizes[-1] += last * (int(token["count"][:9]) - 1)
            last *= max(1, int(token["count"][:9]))
        elif token[0] == "(":
            sizes.append(0)
        elif token[0] == ")" and len(sizes) > 1:
            last = max(1, sizes.pop())
            sizes[-1] += last
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes)
