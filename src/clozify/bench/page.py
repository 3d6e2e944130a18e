"""Renders a bench as one HTML file with inline style and SVG, without scripts; templates escape all data."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
        "breakable": breakable,
        "mib": fmt.mib,
        "seconds": fmt.seconds,
        "speed": fmt.speed,
        "count": lambda number: f"{number:,}",
    }
    environment.globals |= {"bar": bar}
    return environment


def bench_page(summary: Summary) -> str:
    """The page of a bench."""
    methods = _methods(summary)
    has_lines = any(len(summary.sizes(data)) > 1 for data in _data_names(summary))
    return (
        _environment()
        .get_template("bench.html")
        .render(
            summary=summary,
            version=__version__,
            has_lines=has_lines,
            line_legend=charts.legend(methods, with_lines=True) if has_lines else "",
            legend=charts.legend(methods),
            line_charts=_accuracy_figures(summary),
            scatters=_scatters(summary),
            times_note=times_note(summary),
            draws=max((e.accuracy.draws for e in summary.entries if e.accuracy is not None), default=0),
            published=published_tables(),
            context=CONTEXT,
        )
    )


def breakable(text: str) -> Markup:
    """A model's name or a path, which may be broken after its punctuation."""
    return Markup("").join(Markup("{}<wbr>").format(part) for part in re.findall(r"[^/:_.@]*[/:_.@]|[^/:_.@]+$", text))


@dataclass(frozen=True)
class Figure:
    """A chart with its title: the name of a data set, or what is drawn."""

    title: str
    note: str
    chart: Markup
    is_wide: bool = False


def _data_names(summary: Summary) -> list[str]:
    return list(dict.fromkeys(block.data for block in summary.blocks))


def _methods(summary: Summary, data: str | None = None) -> list[charts.Series]:
    """The accuracies of each method that has any, by labelled rows a label: of one data set or of all."""
    series = []
    for index, name in enumerate(summary.names):
        entries = [summary.entry(block, name) for block in summary.blocks if data in (None, block.data)]
        points = tuple(
            charts.Point(entry.block.per_label, entry.accuracy.mean, entry.accuracy.low, entry.accuracy.high)
            for entry in entries
            if entry is not None and entry.accuracy is not None
        )
        if points:
            series.append(charts.Series(name, index, points))
    return series


def _accuracy_figures(summary: Summary) -> list[Figure]:
    """A chart for each data set: accuracy by labelled rows, or, with one number of rows, by method."""
    figures = []
    for data in _data_names(summary):
        series = _methods(summary, data)
        sizes = summary.sizes(data)
        if not series:
            continue
        if len(sizes) > 1:
            figures.append(Figure(data, "", charts.line_chart(series, data), charts.is_wide(series)))
        else:
            note = f", {sizes[0]} rows a label"
            figures.append(Figure(data, note, charts.dot_plot(series, data + note)))
    return figures


def _scatters(summary: Summary) -> list[Figure]:
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
    wide = charts.is_wide(training)
    return [
        Figure("Training", ": left is faster", charts.scatter(training, "Training", "seconds of training"), wide),
        Figure("Prediction", ": right is faster", charts.scatter(speed, "Prediction", "rows predicted a second"), wide),
    ]
