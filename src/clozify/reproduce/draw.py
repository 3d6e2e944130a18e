"""The paper's figures as it draws them: the same axes, marks, colours, order and legend; its own values in grey.

In: a filled figure. Out: the drawing as SVG text and PNG bytes. Matplotlib is an extra, asked for only here.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from clozify.errors import ClozifyError
from clozify.reproduce.paper import Value
from clozify.reproduce.results import Filled, Place

PLOT = {  # the paper's colours
    1: "#5d93bf",
    2: "#e94849",
    3: "#71bf6e",
    4: "#a34997",
    5: "#e68232",
}
PAPER = "#b4b4b4"
FRAME = "#e8e8e8"  # of the legend
LINES = {  # a line's name -> colour, mark, and the mark's size
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
    """How a figure's axes look in the paper."""

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
    """Fail before the work where there is nothing to draw with."""
    try:
        import matplotlib as found
    except ImportError:
        raise ClozifyError(
            "Figures are drawn by matplotlib, which is not installed; get it with: pip install 'clozify[reproduce]'."
        ) from None
    del found


def draw(filled: Filled) -> tuple[str, bytes]:
    """The figure as SVG and as PNG; the same numbers make the same SVG."""
    check_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    axes = AXES[filled.exhibit.name]
    panels = list(dict.fromkeys(row.group for row in filled.exhibit.rows))
    fonts: Any = {"font.family": "STIXGeneral", "mathtext.fontset": "stix", "font.size": 10, "svg.hashsalt": "clozify"}
    with matplotlib.rc_context(fonts):
        figure = Figure(figsize=(axes.panel[0] * len(panels), axes.panel[1]), layout="constrained")
        FigureCanvasAgg(figure)
        for number, panel in enumerate(panels, start=1):
            _panel(figure.add_subplot(1, len(panels), number), filled, panel, axes)
        _uncover(figure, axes)
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "clozify"})
        figure.savefig(png, format="png", dpi=160, metadata={"Software": "clozify"})
    return svg.getvalue(), png.getvalue()


def _panel(plot: Any, filled: Filled, group: str, axes: Axes) -> None:
    """One pair of axes; figure 6 has three."""
    columns = filled.exhibit.columns
    values = [axes.low, axes.high]
    drawn_paper = False
    for row, places in zip(filled.exhibit.rows, filled.places, strict=True):
        values += [value.mean for place in places for value in (place.ours, place.paper) if isinstance(value, Value)]
        if row.group != group:
            continue
        look, variant = _look(row.name)
        for points, colour in ((_points(places, "paper"), PAPER), (_points(places, "ours"), look["color"])):
            theirs = colour == PAPER
            if points:
                drawn_paper |= theirs
                style = look | {"color": colour, "zorder": 2 if theirs else 3}
                if theirs:
                    style |= {"linewidth": 1.0, "markersize": look["markersize"] * 0.8}
                plot.plot(*zip(*points, strict=True), **style)
        if not variant or "," not in row.name:  # the paper's legend leaves figure 4's dashed lines out
            plot.plot([], [], label=row.name, **look)
    if drawn_paper:
        plot.plot([], [], label="the paper", color=PAPER, linewidth=1.0)
    low, high = min(values), max(values)
    room = 0.075 * (high - low)
    plot.set_ylim(low - room, high + room)
    room = 0.075 * max(1, len(columns) - 1)
    plot.set_xlim(-room, len(columns) - 1 + room)
    plot.set_xticks(range(len(columns)), [_tick(name) for name in columns])
    plot.tick_params(direction="out", length=2.5, labelsize=8.5)
    plot.set_xlabel(axes.xlabel)
    plot.set_ylabel(axes.ylabel)
    if group:
        rate, _, power = group.removeprefix("LR = ").partition("e-")
        plot.set_title(rf"$\mathrm{{LR}} = {rate}\mathrm{{e}}{{-}}{power}$", fontsize=10)
    _legend(plot, axes, axes.legend)


def _legend(plot: Any, axes: Axes, where: str) -> Any:
    """The legend, filled row by row as pgfplots does."""
    lines = plot.get_legend_handles_labels()[0]
    given = [line for column in range(axes.columns) for line in lines[column :: axes.columns]]
    size = 7.5 if plot.get_title() else 8.5
    return plot.legend(handles=given, loc=where, ncols=axes.columns, fontsize=size, edgecolor=FRAME, fancybox=False)


def _uncover(figure: Any, axes: Axes) -> None:
    """Move a legend only if it covers a point where the paper has it."""
    figure.draw_without_rendering()
    for plot in figure.axes:
        box = plot.get_legend().get_window_extent()
        points = [point for line in plot.lines for point in plot.transData.transform(line.get_xydata())]
        if any(box.contains(*point) for point in points):
            _legend(plot, axes, "best")


def _look(name: str) -> tuple[dict[str, Any], bool]:
    """A line's colour and mark; a variant (skipping, pretrained) is dashed with hollow marks."""
    base = name.partition(",")[0].removesuffix(" + PT")
    variant = base != name
    number, mark, size = LINES[base]
    colour = PLOT[number]
    look = {"color": colour, "marker": mark, "markersize": size, "linewidth": 1.5}
    if variant:
        look |= {"linestyle": (0, (4, 2.5)), "markerfacecolor": "white"}
    return look, variant


def _points(places: tuple[Place, ...], whose: str) -> list[tuple[int, float]]:
    """The points of a line that there are: (place on the x-axis, value)."""
    found = [(number, getattr(place, whose)) for number, place in enumerate(places)]
    return [(number, value.mean) for number, value in found if isinstance(value, Value)]


def _tick(name: str) -> str:
    return rf"$\mathcal{{M}}^{name[-1]}$" if name.startswith("M^") else name
