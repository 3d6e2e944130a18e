"""The report as a page: one HTML file with its style and drawings in it, which needs no network and no script.

In: a run's findings, or those of several. Out: HTML. Whatever comes from data is escaped by the templates.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from clozify.report import svg

TEMPLATES = Path(__file__).parent / "templates"
MANY = 20  # labels that are shown one by one; of more, the most and the least frequent


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": svg.percent, "duration": duration, "count": count, "parts": pattern_parts}
    made.globals |= {"bar": svg.bar, "change": svg.change, "marked": svg.marked}
    return made


def report_page(found: dict[str, Any]) -> str:
    """A run's page."""
    return _environment().get_template("report.html").render(found | {"ends": _ends(found["soft_labels"])})


def comparison_page(found: dict[str, Any]) -> str:
    """A page of several runs."""
    return _environment().get_template("comparison.html").render(found)


def _ends(soft: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The labels by their share of the pile; of many, the first and the last ones."""
    if soft is None:
        return []
    if len(soft["labels"]) <= MANY:
        return list(soft["labels"])
    ordered = sorted(soft["labels"], key=lambda of_label: -of_label["rows"])
    return ordered[: MANY // 2] + ordered[-MANY // 2 :]


def duration(seconds: float | None) -> str:
    """`3 min 20 s`; nothing is known of what was not written down."""
    if seconds is None:
        return "not recorded"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def count(number: float) -> str:
    """`12,345`."""
    return f"{number:,}"


def pattern_parts(pattern: str) -> list[tuple[str, str]]:
    """A pattern cut into words, fields and the mask, each with its kind, to be shown apart."""
    found = []
    for part in re.split(r"(\{[^}]*\}|\|\|)", pattern):
        kind = (
            "mask" if part == "{mask}" else "field" if part.startswith("{") else "border" if part == "||" else "words"
        )
        if part:
            found.append((kind, part.strip("{}") if kind == "field" else part))
    return found
