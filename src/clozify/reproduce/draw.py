"""Draws the figures as in the paper: the same axes, marks, colours and legend; the paper's values are grey.

Matplotlib is an optional dependency of this module.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from clozify.errors import ClozifyError
from clozify.reproduce.paper import Value
from clozify.reproduce.results import FilledTable

COLOURS = {  # of the paper
    1: "#5d93bf",
    2: "#e94849",
    3: "#71bf6e",
    4: "#a34997",
    5: "#e68232",
}
PAPER_COLOUR = "#b4b4b4"
LEGEND_FRAME = "#e8e8e8"
LINES = {  # name -> colour, marker, marker size
    "Yelp": (1, "o", 5),
    "AG's": (2, "s", 5),
    "MNLI": (3, "^", 6.5),
    "Yahoo": (4, "p", 6.5),
    "sample": (5, "D", 5),
    "PET": (1, "o", 5),
    "sup.": (2, "^", 6.5),
}


@dataclass(frozen=True)
class Axes:
    """The axes and the legend of a figure in the paper."""

    xlabel: str
    ylabel: str
    low: float
    high: float
    legend: str
    columns: int
    panel: tuple[float, float] = (5.2, 2.9)  # inches


AXES = {
    "figure3": Axes("Training set size", "Accuracy Improvements", -0.2, 14.1, "upper right", 2),
    "figure4": Axes("Model generation", "Accuracy", 34, 86.5, "lower right", 2),
    "figure5": Axes("Training set size", "Accuracy", 20.2, 66.4, "lower right", 1),
    "figure6": Axes("Training steps", "Accuracy", 31.5, 62.7, "lower right", 2, (3.3, 2.9)),
}


def check_matplotlib() -> None:
    """Raise an error if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ClozifyError(
            "Figures need matplotlib, which is not installed; install it with: pip install 'clozify[reproduce]'."
        ) from None


def draw(table: FilledTable) -> tuple[str, bytes]:
    """The figure as SVG and as PNG; equal values give the same SVG."""
    check_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    axes = AXES[table.spec.name]
    panels = list(dict.fromkeys(row.group for row in table.spec.rows))
    fonts: Any = {"font.family": "STIXGeneral", "mathtext.fontset": "stix", "font.size": 10, "svg.hashsalt": "clozify"}
    with matplotlib.rc_context(fonts):
        figure = Figure(figsize=(axes.panel[0] * len(panels), axes.panel[1]), layout="constrained")
        FigureCanvasAgg(figure)
        for index, panel in enumerate(panels, start=1):
            _draw_panel(figure.add_subplot(1, len(panels), index), table, panel, axes)
        _move_covering_legends(figure, axes)
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "clozify"})
        figure.savefig(png, format="png", dpi=160, metadata={"Software": "clozify"})
    return svg.getvalue(), png.getvalue()


def _draw_panel(plot: Any, table: FilledTable, group: str, axes: Axes) -> None:
    """Draw the lines of one group; figure 6 has three groups."""
    columns = table.spec.columns
    values = [axes.low, axes.high]
    has_paper_values = False
    for row, cells in zip(table.spec.rows, table.cells, strict=True):
        values += [value.mean for cell in cells for value in (cell.value, cell.paper) if isinstance(value, Value)]
        if row.group != group:
            continue
        style, is_variant = line_style(row.name)
        if paper_points := _points([cell.paper for cell in cells]):
            has_paper_values = True
            paper_style = {
                "color": PAPER_COLOUR,
                "zorder": 2,
                "linewidth": 1.0,
                "markersize": style["markersize"] * 0.8,
            }
            plot.plot(*zip(*paper_points, strict=True), **style | paper_style)
        if points := _points([cell.value for cell in cells]):
            plot.plot(*zip(*points, strict=True), **style | {"zorder": 3})
        if not is_variant or "," not in row.name:  # the paper's legend omits figure 4's dashed lines
            plot.plot([], [], label=row.name, **style)
    if has_paper_values:
        plot.plot([], [], label="the paper", color=PAPER_COLOUR, linewidth=1.0)
    low, high = min(values), max(values)
    margin = 0.075 * (high - low)
    plot.set_ylim(low - margin, high + margin)
    margin = 0.075 * max(1, len(columns) - 1)
    plot.set_xlim(-margin, len(columns) - 1 + margin)
    plot.set_xticks(range(len(columns)), [_tick_label(name) for name in columns])
    plot.tick_params(direction="out", length=2.5, labelsize=8.5)
    plot.set_xlabel(axes.xlabel)
    plot.set_ylabel(axes.ylabel)
    if group:
        rate, _, power = group.removeprefix("LR = ").partition("e-")
        plot.set_title(rf"$\mathrm{{LR}} = {rate}\mathrm{{e}}{{-}}{power}$", fontsize=10)
    _add_legend(plot, axes, axes.legend)


def _add_legend(plot: Any, axes: Axes, location: str) -> None:
    """Add the legend, filled row by row as pgfplots does."""
    lines = plot.get_legend_handles_labels()[0]
    ordered = [line for column in range(axes.columns) for line in lines[column :: axes.columns]]
    size = 7.5 if plot.get_title() else 8.5
    plot.legend(
        handles=ordered,
        loc=location,
        ncols=axes.columns,
        fontsize=size,
        edgecolor=LEGEND_FRAME,
        fancybox=False,
    )


def _move_covering_legends(figure: Any, axes: Axes) -> None:
    """Move each legend that covers a point at its position in the paper."""
    figure.draw_without_rendering()
    for plot in figure.axes:
        box = plot.get_legend().get_window_extent()
        points = [point for line in plot.lines for point in plot.transData.transform(line.get_xydata())]
        if any(box.contains(*point) for point in points):
            _add_legend(plot, axes, "best")


def line_style(name: str) -> tuple[dict[str, Any], bool]:
    """A line's style, and whether it is a variant (skipping, pretrained), which is dashed with hollow markers."""
    base = name.partition(",")[0].removesuffix(" + PT")
    is_variant = base != name
    colour, marker, size = LINES[base]
    style = {"color": COLOURS[colour], "marker": marker, "markersize": size, "linewidth": 1.5}
    if is_variant:
        style |= {"linestyle": (0, (4, 2.5)), "markerfacecolor": "white"}
    return style, is_variant


def _points(values: list[Value | str | None]) -> list[tuple[int, float]]:
    """The points of a line: (index on the x-axis, value)."""
    return [(index, value.mean) for index, value in enumerate(values) if isinstance(value, Value)]


def _tick_label(name: str) -> str:
    return rf"$\mathcal{{M}}^{name[-1]}$" if name.startswith("M^") else name
