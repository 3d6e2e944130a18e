"""Numbers as text, the same on the report's page, in the model card, in the terminal and in the studio."""

from __future__ import annotations


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
    """`40 minutes` or `3.5 hours`: an estimate."""
    minutes = seconds / 60
    return f"{minutes / 60:,.1f} hours" if minutes > 90 else f"{minutes:,.0f} minutes"
