"""Writes `report.html` and the model card at the end of a run; implements `clozify report`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clozify.data.in_memory import RowSource, load_rows
from clozify.data.rows import Rows
from clozify.errors import RunError
from clozify.report.card import write_card
from clozify.report.compare import Comparison, compare_runs
from clozify.report.findings import Findings, collect_findings
from clozify.report.page import comparison_page, report_page
from clozify.report.run import RunRecord
from clozify.report.scores import comparison_key, result_score, save_result
from clozify.utils.atomic import atomic_write_text

REPORT = "report.html"


def write_run_report(folder: Path, rows: Mapping[str, Rows | None], log: Callable[[str], None]) -> None:
    """Write the report and the card at the end of a run; an error in them is logged and does not fail the run."""
    try:
        _, findings = write_report(folder, rows=rows)
        for step in findings.steps:
            log(f"next: {step.replace('`', '')}")
    except OSError:  # such as a full disk
        raise
    except Exception as error:
        log(f"note: the report could not be written ({type(error).__name__}: {error}); the run itself is complete")


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    baseline: str | Path | None = None,
    rows: Mapping[str, Rows | None] | None = None,
) -> tuple[Path, Findings]:
    """Write a run's report to `output`, by default into its folder; returns its path and its content.

    `baseline` is the folder of another run to compare with; `rows` are the run's rows, where they are in memory.
    """
    run = RunRecord.load(folder)
    save_result(run)
    if baseline is not None:
        other = RunRecord.load(baseline)
        if other.method == run.method:
            raise RunError(f"'{baseline}' was trained by {run.method} too; compare them with clozify report A B.")
        if result_score(other) is None or comparison_key(other) != comparison_key(run):
            raise RunError(
                f"'{baseline}' cannot be compared with '{folder}': both need the same fields, labels, labelled and "
                "test rows."
            )
        save_result(run, other)
    findings = collect_findings(run, rows)
    path = Path(output) if output is not None else run.folder / REPORT
    _write(path, report_page(findings))
    write_card(run, findings)
    return path, findings


def compare(runs: Sequence[str | Path], output: str | Path | None = None, test: RowSource | None = None) -> Comparison:
    """Compare finished runs with the first of them: scores with intervals, and whether they differ by more than chance.

    - `runs`: the folders of two runs or more; a method's own folder is `DIR/methods/NAME`.
    - `output`: an HTML file to write.
    - `test`: the runs' test rows, where they are no longer where they were, or were in memory.
    """
    if len(runs) < 2:
        raise RunError("A comparison takes two runs or more; name their folders.")
    records = [RunRecord.load(folder) for folder in runs]
    rows = None if test is None else load_rows(test, records[0].task, name="test")
    comparison = compare_runs(records, rows)
    if output is not None:
        _write(Path(output), comparison_page(comparison))
    return comparison


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise RunError(f"The report cannot be written to '{path}': the folder '{path.parent}' does not exist.")
    atomic_write_text(path, text)
