"""Renders the report as one HTML file with inline style and SVG, which needs no network.

With many labels a script sorts its tables, which the page's policy allows by its hash; without scripts they are plain
tables. The templates escape everything that comes from data.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from clozify.config.pattern import Mask, Pattern, Slot
from clozify.report import svg
from clozify.report.compare import Comparison
from clozify.report.findings import Findings
from clozify.report.format import duration, percent
from clozify.report.unlabeled import LabelFraction, SoftLabels

TEMPLATES = Path(__file__).parent / "templates"
MAX_LABELS = 20  # of more labels, the most and the least frequent are shown


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "duration": duration, "count": _thousands, "parts": pattern_parts}
    environment.filters["signed"] = _signed
    environment.globals |= {"bar": svg.bar, "before_after": svg.before_after, "bar_with_tick": svg.bar_with_tick}
    return environment


def report_page(findings: Findings) -> str:
    """The page of one run."""
    confusion, script = findings.confusion, _sort_script()
    return (
        _environment()
        .get_template("report.html")
        .render(
            vars(findings),
            frequent_labels=_most_and_least_frequent(findings.soft_labels),
            sorts=confusion is not None and (confusion.matrix is None or confusion.groups is not None),
            sort_script=Markup(script),
            sort_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        )
    )


@cache
def _sort_script() -> str:
    return (TEMPLATES / "sort.js").read_text(encoding="utf-8")


def comparison_page(comparison: Comparison) -> str:
    """The page of several runs."""
    return _environment().get_template("comparison.html").render(vars(comparison))


def _most_and_least_frequent(soft_labels: SoftLabels | None) -> list[LabelFraction]:
    """The soft labels' labels; of many, the most and the least frequent."""
    if soft_labels is None:
        return []
    if len(soft_labels.labels) <= MAX_LABELS:
        return soft_labels.labels
    ordered = sorted(soft_labels.labels, key=lambda label: -label.rows)
    return ordered[: MAX_LABELS // 2] + ordered[-MAX_LABELS // 2 :]


def _thousands(number: float) -> str:
    """`12,345`."""
    return f"{number:,}"


def _signed(number: float) -> str:
    """`+1.2` or, with a minus sign as wide as the plus, `-1.2`."""
    return f"{number:+.1f}".replace("-", "\u2212")


def pattern_parts(pattern: str) -> list[tuple[str, str]]:
    """A pattern's parts, each with its CSS class: `mask`, `field`, `border` or `words`."""
    parts: list[tuple[str, str]] = []
    for segment in Pattern(pattern).segments:
        if parts:
            parts.append(("border", "||"))
        for part in segment:
            if isinstance(part, Mask):
                parts.append(("mask", "____"))
            else:
                parts.append(("field", str(part)[1:-1]) if isinstance(part, Slot) else ("words", part))
    return parts
