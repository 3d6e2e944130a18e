"""Numbers of a bench as text, the same on the page, in Markdown and in the terminal."""

from __future__ import annotations

from clozify.bench.entries import Entry
from clozify.bench.statistics import Estimate
from clozify.report.format import duration, percent

FAILED = "failed"


def accuracy(entry: Entry | None) -> str:
    """`76.6`, `failed`, or nothing where the method was not run."""
    if entry is None:
        return ""
    return FAILED if entry.accuracy is None else percent(entry.accuracy.mean)


def interval(value: Estimate | None) -> str:
    """`74.1 to 79.0`; empty for a single draw."""
    if value is None or value.low is None or value.high is None:
        return ""
    return f"{percent(value.low)} to {percent(value.high)}"


def signed(fraction: float) -> str:
    """`+3.1` for 0.031."""
    return f"{100 * fraction:+.1f}"


def difference(value: Estimate | None) -> str:
    """`-3.1 (-5.0 to -1.2)`; the interval only with two draws or more."""
    if value is None:
        return ""
    if value.low is None or value.high is None:
        return signed(value.mean)
    return f"{signed(value.mean)} ({signed(value.low)} to {signed(value.high)})"


def mib(size: float | None) -> str:
    """`1,547 MiB`, `0.3 MiB` or, below a tenth of that, `57 KiB`."""
    if size is None:
        return ""
    value, unit = (size / 2**20, "MiB") if size >= 2**20 / 10 else (size / 2**10, "KiB")
    return f"{value:,.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"


def seconds(value: float | None) -> str:
    """`3 min 20 s`."""
    return "" if value is None else duration(value) if value >= 1 else f"{value:.2f} s"


def speed(value: float | None) -> str:
    """`1,234`: rows a second."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
