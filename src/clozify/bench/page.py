"""Renders a bench as one HTML file with inline style and SVG, without scripts; templates escape all data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from clozify import __version__
from clozify.bench import charts
from clozify.bench import format as fmt
from clozify.bench.published import published_tables
from clozify.bench.render import CONTEXT, times_note
from clozify.bench.summary import Summary
from clozify.report.format import percent
from clozify.report.page import TEMPLATES as REPORT_TEMPLATES
from clozify.report.svg import bar

TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([TEMPLATES, REPORT_TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "accuracy": fmt.accuracy,
        "interval": fmt.interval,
        "difference": fmt.difference,
        "mib": fmt.mib,
        "seconds": fmt.seconds,
        "speed": fmt.speed,
        "count": lambda number: f"{number:,}",
    }
    environment.globals |= {"bar": bar}
    return environment


def bench_page(summary: Summary) -> str:
    """The page of a bench."""
    return (
        _environment()
        .get_template("bench.html")
        .render(
            summary=summary,
            version=__version__,
            legend=charts.legend(summary.names),
            line_charts=_line_charts(summary),
            scatters=_scatters(summary),
            times_note=times_note(summary) if summary.at_once > 1 else "",
            draws=max((e.accuracy.draws for e in summary.entries if e.accuracy is not None), default=0),
            published=published_tables(),
            context=CONTEXT,
        )
    )


def _line_charts(summary: Summary) -> list[tuple[str, Markup]]:
    """Accuracy by labelled rows, a chart for each data set."""
    drawn = []
    for data in dict.fromkeys(block.data for block in summary.blocks):
        series = []
        for index, name in enumerate(summary.names):
            entries = [summary.entry(block, name) for block in summary.blocks if block.data == data]
            points = tuple(
                charts.Point(entry.block.per_label, entry.accuracy.mean, entry.accuracy.low, entry.accuracy.high)
                for entry in entries
                if entry is not None and entry.accuracy is not None
            )
            if points:
                series.append(charts.Series(name, index, points))
        if series:
            drawn.append((data, charts.line_chart(series, data)))
    return drawn


def _scatters(summary: Summary) -> list[tuple[str, Markup]]:
    """Accuracy by seconds of training, and by rows predicted a second."""
    if not summary.points:
        return []
    training, speed = [], []
    for point in summary.points:
        index = summary.names.index(point.name)
        at_training = (charts.Point(point.training_seconds, point.accuracy),)
        at_speed = (charts.Point(point.rows_per_second, point.accuracy),)
        training.append(charts.Series(point.name, index, at_training, point.on_training_frontier))
        speed.append(charts.Series(point.name, index, at_speed, point.on_speed_frontier))
    return [
        ("Training: left is faster", charts.scatter(training, "Training", "seconds of training")),
        ("Prediction: right is faster", charts.scatter(speed, "Prediction", "rows predicted a second")),
    ]
