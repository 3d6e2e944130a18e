"""The difference of two runs in words: how large it is, and whether it may be chance."""

from __future__ import annotations

from dataclasses import dataclass

from clozify.methods.paired import PairedDifference
from clozify.report.format import percent
from clozify.report.scores import Score
from clozify.runs.metrics import AccuracyMetrics

SIGNIFICANCE = 0.05  # a smaller p is more than chance


@dataclass(frozen=True)
class Difference(PairedDifference):
    """The difference of two runs on the same test rows; with several labels a row, `difference` is of exact matches."""

    micro_f1_interval: tuple[float, float] | None = None  # 95% interval of its difference, with several labels a row

    @property
    def significant(self) -> bool:
        """Whether the difference is more than chance; of micro-F1, where its interval is on one side of 0."""
        if self.micro_f1_interval is None:
            return self.p_value < SIGNIFICANCE
        low, high = self.micro_f1_interval
        return low > 0 or high < 0


@dataclass(frozen=True)
class Compared:
    """A run in a sentence."""

    name: str
    main: Score | None
    estimate: AccuracyMetrics | None

    @property
    def measured(self) -> str:
        """`71.4 (95% interval 58.5 to 81.6)`, on the test rows or else estimated."""
        source = self.estimate if self.main is None else self.main
        assert source is not None
        interval = self.interval
        text = "" if interval is None else f" (95% interval {percent(interval[0])} to {percent(interval[1])})"
        return percent(source.accuracy) + text

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the accuracy."""
        if self.main is not None:
            return self.main.interval
        return None if self.estimate is None else (self.estimate.low, self.estimate.high)

    def only_estimate(self) -> Compared:
        """The run without its test rows."""
        return Compared(self.name, None, self.estimate)


def describe_difference(
    run: Compared, first: Compared, metric: str, paired: Difference | None, same_rows: bool, problem: str | None
) -> str:
    """How a run differs from the first one; `problem` says why it is not known row by row."""
    if run.main is None or first.main is None:
        return _describe_estimates(run, first)
    if paired is not None:
        return _describe_paired(run, first, metric, paired)
    both = f"'{run.name}' has {run.measured}, '{first.name}' {first.measured}"
    if not same_rows:
        return f"{both}, on different test rows, so that they cannot be paired row by row.{_overlap(run, first)}"
    reason = f" ({problem.rstrip('.')})" if problem else ", since their labels differ"
    return f"{both}, on the same test rows, but they cannot be paired row by row{reason}.{_overlap(run, first)}"


def _describe_paired(run: Compared, first: Compared, metric: str, paired: Difference) -> str:
    assert run.main is not None
    assert first.main is not None
    points = 100 * (run.main.accuracy - first.main.accuracy)
    low, high = paired.micro_f1_interval or (paired.low, paired.high)
    interval = f"95% interval of the difference {100 * low:+.1f} to {100 * high:+.1f}"
    if paired.micro_f1_interval is None:
        interval += f", {format_p(paired.p_value)}"
    than = f"than '{first.name}' on the same {paired.rows:,} test rows ({interval})"
    if abs(points) < 0.05:
        size = f"no better or worse {than}"
    else:
        size = f"{abs(points):.1f} points of {metric} {'better' if points > 0 else 'worse'} {than}"
    verdict = "that is more than chance" if paired.significant else "that may be chance"
    return f"'{run.name}' is {size}: {verdict}."


def format_p(p_value: float) -> str:
    """`p = 0.03`, or `p < 0.001`."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.{3 if p_value < 0.095 else 2}f}"


def _describe_estimates(run: Compared, first: Compared) -> str:
    """Two runs of which at least one has no test rows."""
    if run.estimate is not None and first.estimate is not None:
        run, first = run.only_estimate(), first.only_estimate()
        what = "Estimated accuracy, from the labelled rows alone"
    else:
        what = "Accuracy on test rows of one run, estimated for the other"
    missing = [f"'{each.name}'" for each in (run, first) if each.main is None and each.estimate is None]
    if missing:
        have = "has" if len(missing) == 1 else "have"
        return f"{' and '.join(missing)} {have} neither test rows nor an estimate of the accuracy: nothing to compare."
    return (
        f"{what}: '{run.name}' {run.measured}, '{first.name}' {first.measured}. This is not a paired comparison."
        f"{_overlap(run, first)}"
    )


def _overlap(run: Compared, first: Compared) -> str:
    """What two separate intervals say about a difference."""
    if run.interval is None or first.interval is None:
        return ""
    if run.interval[0] <= first.interval[1] and first.interval[0] <= run.interval[1]:
        return " The intervals overlap: the difference may be chance."
    return " The intervals do not overlap: the difference is probably more than chance."
