"""Numbers and texts the same on the report's page, in the model card, in the terminal and in the studio."""

from __future__ import annotations

MAX_CHARACTERS = 400  # of a text on the page


def percent(fraction: float | None, digits: int = 1) -> str:
    """`53.1` for 0.5312; empty for None."""
    return "" if fraction is None else f"{100 * fraction:.{digits}f}"


def duration(seconds: float | None) -> str:
    """`3 min 20 s`; `not recorded` for None."""
    if seconds is None:
        return "not recorded"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {remainder:02} s"


def rough_duration(seconds: float) -> str:
    """`1 second`, `40 seconds`, `40 minutes` or `3.5 hours`: an estimate."""
    minutes = seconds / 60
    if minutes > 90:
        return f"{minutes / 60:,.1f} hours"
    number, unit = (max(1, round(seconds)), "second") if seconds < 90 else (round(minutes), "minute")
    return f"{number} {unit}{'s' * (number != 1)}"


def shorten(text: str) -> str:
    """The beginning of a long text, to the end of a word."""
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS].rsplit(" ", 1)[0] + " ..."
