"""A finished run's numbers for the page: the estimated accuracy, scores on test rows, risk against coverage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from clozify.data.in_memory import IN_MEMORY
from clozify.errors import ClozifyError
from clozify.report.run import RunRecord
from clozify.report.run_data import reread_rows
from clozify.report.scores import Score, headline, stage_scores
from clozify.report.selective import Selective, selective
from clozify.report.terminal import estimate_sentence
from clozify.studio.runs import StudioRun


@dataclass(frozen=True)
class RunNumbers:
    """What a run says about its own quality."""

    estimate: str | None  # the sentence of the command line; None with too few labelled rows
    metric: str  # what `Score.accuracy` is: the accuracy or micro-F1
    test_rows: int
    scores: list[Score]  # on the test rows; empty without any
    selective: Selective | None
    warnings: list[str]


def load_record(run: StudioRun) -> RunRecord:
    """The finished run as reports read it; the files that it names are in the project's folder."""
    record = RunRecord.load(run.path)
    data = {
        name: source if source.source == IN_MEMORY else source.model_copy(update={"source": _path(run, source.source)})
        for name, source in record.inputs.data.items()
    }
    return replace(record, inputs=record.inputs.model_copy(update={"data": data}))


def _path(run: StudioRun, source: str) -> str:
    """A file's absolute path; the name of a hub data set stays."""
    path = run.project / Path(source)
    return str(path) if path.exists() else source


def read_numbers(run: StudioRun) -> RunNumbers:
    """The numbers of a finished run; raises a `ClozifyError` where its files cannot be read."""
    record, warnings, test = load_record(run), list[str](), None
    metrics = record.metrics
    if "test" in record.inputs.data:
        try:
            test = reread_rows(record.inputs, "test")
        except ClozifyError as error:
            warnings.append(f"Risk against coverage on the test rows is not shown: {' '.join(str(error).split())}")
    return RunNumbers(
        estimate=None if metrics.estimate is None else estimate_sentence(metrics.estimate),
        metric=headline(record),
        test_rows=metrics.rows.get("test", 0),
        scores=stage_scores(record),
        selective=selective(record, test),
        warnings=warnings,
    )
