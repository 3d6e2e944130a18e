"""What `clozify explain` and `clozify drift` print for people; programs take `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clozify.report.format import percent
from clozify.report.highlight import strength
from clozify.report.terminal import show_warnings

if TYPE_CHECKING:  # these modules load PyTorch
    from clozify.inference.drift import DriftReport, Statistic
    from clozify.inference.explain import Explanation, Explanations

MAX_LABELS = 5  # whose shares changed most
MAX_SHIFTED_WORDS = 8  # that became more, and that became less frequent
MAX_WORDS = 8  # with the largest effects, in a table
MAX_NAMED = 4  # for and against a label, below a text in colours
# from weak to strong; words against a label are underlined, too, for readers who do not tell the colours apart
FOR_STYLES = ("black on #d5e8fb", "black on #8ec3f2", "black on #4a9be0")
AGAINST_STYLES = ("underline black on #fde5cb", "underline black on #f9bd7b", "underline black on #ee9436")


def show_explanations(console: Console, result: Explanations) -> None:
    """Print each row's text with its words in colours; without colours, a table of the words that moved the label."""
    in_colours = console.color_system is not None and not console.no_color
    for explanation in result.rows:
        console.print(_heading(explanation))
        if not any(word.read for word in explanation.words):
            console.print(_indented(Text("No word was left out: the model reads none.", style="dim")))
        elif in_colours:
            _show_coloured(console, explanation)
        else:
            _show_strongest(console, explanation)
        console.print()
    if in_colours:
        legend = Text.assemble((" Blue ", FOR_STYLES[1]), " speaks for the label, ")
        legend.append(" orange and underlined ", AGAINST_STYLES[1])
        legend.append(" against it. A number is what the word adds to the label's log-odds.")
        console.print(legend)
    elif any(explanation.words for explanation in result.rows):
        console.print(
            Text(
                "effect: what the word adds to the label's log-odds, the mean of leaving it out of the row and of a "
                "sample of its words; without: the label's probability if it is left out; against X: the effect on "
                "the label's log-probability minus that of X."
            )
        )
    show_warnings(console, result.warnings)


def _indented(content: Text | Table) -> Padding:
    return Padding(content, (0, 0, 0, 2), expand=False)


def _heading(explanation: Explanation) -> Text:
    """The row's id, its label and probability, and the runner-up."""
    heading = Text.assemble((f"{explanation.id}  ", "dim"), (explanation.label, "bold"))
    heading.append(f" {percent(explanation.probability)}%")
    if not explanation.predicted:
        heading.append(" (not predicted)")
    if explanation.runner_up is not None:
        heading.append(f", {explanation.runner_up} {percent(explanation.runner_up_probability)}%")
    return heading


def _show_coloured(console: Console, explanation: Explanation) -> None:
    """Print the fields' texts with words in colours, and below them the words with the largest effects."""
    largest = max(abs(word.effect) for word in explanation.words)
    for field, text in explanation.texts.items():
        shown = Text(text)
        for word in explanation.words:
            if word.field != field:
                continue
            level = strength(word.effect, largest)
            if not word.read:
                shown.stylize("dim strike", word.start, word.end)
            elif level:
                styles = FOR_STYLES if word.effect > 0 else AGAINST_STYLES
                shown.stylize(styles[level - 1], word.start, word.end)
        if text:
            console.print(_indented(shown))
    for name, sign in (("for", 1), ("against", -1)):
        named = [word for word in explanation.strongest(len(explanation.words)) if word.effect * sign > 0][:MAX_NAMED]
        if named:
            effects = ", ".join(f"{word.text} {word.effect:+.2f}" for word in named)
            console.print(_indented(Text.assemble((f"{name}: ", "dim"), effects)))


def _show_strongest(console: Console, explanation: Explanation) -> None:
    """Print the words with the largest effects, with numbers."""
    table = Table("word", box=None, pad_edge=False)
    columns = ["effect", "without"] + ([] if explanation.runner_up is None else [f"against {explanation.runner_up}"])
    for name in columns:
        table.add_column(Text(name), justify="right")
    for word in explanation.strongest(MAX_WORDS):
        cells = [f"{word.effect:+.2f}", f"{percent(word.probability_without)}%"]
        if word.against_runner_up is not None:
            cells.append(f"{word.against_runner_up:+.2f}")
        table.add_row(Text(word.text), *cells)
    console.print(_indented(table))


def show_drift(console: Console, result: DriftReport) -> None:
    """Print every statistic, the labels and words that changed most, and whether that is drift."""
    console.print(
        Text(
            f"{result.rows:,} rows of {result.data}, compared with {result.reference_rows:,} of {result.reference}, "
            f"both predicted by {result.model}."
        )
    )
    table = Table("", box=None, pad_edge=False)
    for name in ("reference", "new", "difference", "p-value", ""):
        table.add_column(name, justify="right")
    for statistic in result.statistics:
        table.add_row(*_statistic_cells(statistic, result))
    console.print(table)
    _show_labels(console, result)
    _show_words(console, result)
    show_warnings(console, result.warnings)
    changed = [statistic.name for statistic in result.statistics if statistic.drift]
    rule = f"p-value below {result.level:g} and difference of {result.min_effect:g} or more"
    if changed:
        console.print(Text.assemble(("Drift", "bold red"), f": {', '.join(changed)} ({rule})."))
    else:
        console.print(Text.assemble(("No drift", "bold green"), f": nothing has a {rule}."))


def _statistic_cells(statistic: Statistic, result: DriftReport) -> list[str | Text]:
    """A statistic's line; p-values are corrected for the number of statistics."""
    means = ["" if value is None else f"{value:,.2f}" for value in (statistic.reference, statistic.new)]
    p_value = "< 0.0001" if statistic.p_value < 0.0001 else f"{statistic.p_value:.4f}"
    small = statistic.p_value < result.level and not statistic.drift
    remark = Text("drift", style="bold red") if statistic.drift else Text("small" if small else "", style="dim")
    return [Text(statistic.name), *means, f"{statistic.effect:.2f}", p_value, remark]


def _show_labels(console: Console, result: DriftReport) -> None:
    """Print the labels whose shares changed most, where the labels changed."""
    if not result.statistics[0].drift:
        return
    table = Table("label", box=None, pad_edge=False)
    for name in ("reference", "new"):
        table.add_column(name, justify="right")
    for share in result.labels[:MAX_LABELS]:
        table.add_row(Text(share.label), f"{percent(share.reference)}%", f"{percent(share.new)}%")
    console.print(table)


def _show_words(console: Console, result: DriftReport) -> None:
    """Print the words that became more or less frequent, with their shares of rows."""
    for name, sign in (("More frequent", 1), ("Less frequent", -1)):
        words = [word for word in result.words if (word.new - word.reference) * sign > 0][:MAX_SHIFTED_WORDS]
        if words:
            shown = [f"{word.word} ({percent(word.reference)} to {percent(word.new)}%)" for word in words]
            console.print(Text(f"{name} words: {', '.join(shown)}."))
