"""Writing what a person looks at: `report.html` and the model card at the end of a run, and again when asked.

In: a run's folder. Out: files in it, each written beside its place and renamed when whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozify.data.rows import Rows
from clozify.errors import RunError
from clozify.report.card import write_card
from clozify.report.compare import compared
from clozify.report.findings import findings
from clozify.report.numbers import comparable, keep_beside, main_line
from clozify.report.page import comparison_page, report_page
from clozify.report.run import Run
from clozify.runs.plan import Plan
from clozify.utils.atomic import atomic_write_text

REPORT = "report.html"


def write_run_report(plan: Plan, folder: Path) -> None:
    """The end of every run: its report and the classifier's card; a fault in them does not undo the run."""
    rows = {name: getattr(plan, name) for name in ("labeled", "unlabeled", "test", "dev")}
    try:
        write_report(folder, rows=rows)
    except OSError:  # a full disk, say, which the run itself tells of
        raise
    except Exception as error:
        plan.say(
            f"note: the report could not be written ({type(error).__name__}: {error}); the run is whole without it"
        )


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    baseline: str | Path | None = None,
    rows: dict[str, Rows | None] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Write a run's report to `output`, or into its folder; returns where it is and what it says.

    `baseline` is another run whose result is to stand beside; `rows` are the run's, where they are in memory.
    """
    run = Run(folder)
    keep_beside(run)
    if baseline is not None:
        other = Run(baseline)
        if other.method == run.method:
            raise RunError(f"'{baseline}' is a run by {run.method} too; compare them with clozify report A B.")
        if main_line(other) is None or comparable(other.described) != comparable(run.described):
            raise RunError(
                f"'{baseline}' cannot stand beside '{folder}': that takes the same fields, labels, labelled and test "
                "rows."
            )
        keep_beside(run, other)
    found = findings(run, rows)
    place = Path(output) if output is not None else run.folder / REPORT
    _write(place, report_page(found))
    write_card(run, found)
    return place, found


def write_comparison(folders: Sequence[str | Path], output: str | Path) -> dict[str, Any]:
    """Write a page with several runs side by side; returns what it says."""
    found = compared([Run(folder) for folder in folders])
    _write(Path(output), comparison_page(found))
    return found


def _write(place: Path, text: str) -> None:
    if not place.parent.is_dir():
        raise RunError(f"The report cannot be written to '{place}': the folder '{place.parent}' does not exist.")
    atomic_write_text(place, text)
