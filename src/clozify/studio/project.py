"""A studio project: its rows, task draft, labels and runs, independent of the page.

Everything is kept in a folder as files that the command line reads too: `task.toml`, `labeled.csv`, `unlabeled.csv`,
`runs/1`. The page has one user; the project lives as long as the server.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from clozify.config.recipe import load_recipe
from clozify.config.task import load_task
from clozify.data.in_memory import make_rows
from clozify.data.readers import FORMATS, open_data
from clozify.data.rows import NO_LABEL
from clozify.errors import ClozifyError, DataError, RunError, quoted
from clozify.inference.finished_run import FinishedRun
from clozify.models.cloze import load_model
from clozify.studio.draft import TaskDraft
from clozify.studio.preview import MAX_LENGTH, Preview, Previewer
from clozify.studio.rows import ProjectRows
from clozify.studio.runs import StudioRun, list_runs

TASK_FILE, LABELED_FILE, UNLABELED_FILE, STATE_FILE = "task.toml", "labeled.csv", "unlabeled.csv", "studio.json"
SAMPLE_TASK, SAMPLE_SOURCE = "debian", "builtin:unlabeled"


@dataclass(frozen=True)
class RunSettings:
    """What the user chooses for a run."""

    method: str = "pet"
    recipe: str = "quick"
    unlabeled: int = 600  # the number of unlabelled rows to use
    examples: int = 0  # the number of labelled rows to use; 0: all
    test: str = ""  # a file with labelled rows
    recipe_settings: str = ""  # NAME=VALUE, separated by spaces


class Project:
    """A project folder, opened with one model."""

    def __init__(self, folder: str | Path, model: str = "builtin") -> None:
        self.folder = Path(folder).resolve()
        if self.folder.is_file():
            raise RunError(f"The project cannot be in '{folder}', which is a file; name a folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model_name = str(Path(model).resolve()) if Path(model).is_dir() else model
        self.draft = TaskDraft()
        self.data = ProjectRows()
        self.version = 0  # grows whenever the draft is replaced by something else than typing
        self.runs = list_runs(self.folder)
        self.lock = threading.RLock()  # Streamlit may run the page twice at a time; the model serves one call at a time
        self._finished: dict[tuple[Path, int], FinishedRun] = {}
        self._restore()

    def _restore(self) -> None:
        """Load what an earlier session left in the folder."""
        try:
            if (self.folder / TASK_FILE).is_file():
                self.draft = TaskDraft.from_task(load_task(self.folder / TASK_FILE))
            state = json.loads((self.folder / STATE_FILE).read_text(encoding="utf-8"))
            self.data.restore(state["source"], {int(row): label for row, label in state["labels"].items()})
        except (OSError, ValueError, KeyError, ClozifyError):
            return  # no earlier session, or its data is gone

    def _save_state(self) -> None:
        content = {"source": self.data.source, "labels": {str(row): label for row, label in self.data.labels.items()}}
        (self.folder / STATE_FILE).write_text(
            json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )

    # the rows

    def upload(self, name: str, content: bytes) -> None:
        """Save an uploaded file in the project's folder and load it."""
        safe_name = re.sub(r"[^\w.-]+", "_", Path(name.replace("\\", "/")).name).lstrip("._-") or "rows"
        if Path(safe_name.removesuffix(".gz")).suffix.lower() not in FORMATS:
            raise DataError(f"The file '{name}' has an unknown format; use {quoted(FORMATS)}, gzipped or not.")
        path = self.folder / "data" / safe_name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        self.load(str(path))

    def load(self, source: str) -> None:
        """Load rows from a file, a folder of shards, a hub data set or the sample."""
        with self.lock:
            self.data.load(source)
            if not set(self.draft.fields) <= set(self.data.columns) or not self.draft.fields:
                self.draft.fields = self.data.longest_column(self.draft.label)
            self.name_labels()
            self.version += 1
            self._save_state()

    def load_sample(self) -> None:
        """Load the task and the rows that come with clozify."""
        self.draft = TaskDraft.from_task(load_task(SAMPLE_TASK))
        self.load(SAMPLE_SOURCE)

    def name_labels(self) -> bool:
        """Take the labels' names from the label column if the draft has none yet; returns whether it did.

        A name that is a word becomes the label's word.
        """
        names = [] if self.draft.labels else self.data.label_names(self.draft.label)
        if names:
            self.draft.words = [(name, name.lower() if name.isalpha() else "") for name in names]
        return bool(names)

    # the model's answers

    @cached_property
    def previewer(self) -> Previewer:
        """The model, loaded once."""
        with self.lock:
            return Previewer(load_model(self.model_name))

    def preview(self) -> Preview:
        """The model's answers to the draft on the rows on display; saves the task if it has no problems."""
        with self.lock:
            shown = self.data.shown
            rows = self.data.select(self.draft, shown)
            preview = self.previewer.preview(self.draft, rows, (self.data.source, *shown))
            try:
                self.data.label_indices(self.draft, shown)
            except ClozifyError as error:
                preview.problems.setdefault("label column", []).extend(error.problems)
            if not preview.problems:
                self.draft.to_task().save(self.folder / TASK_FILE)
            return preview

    def toml(self) -> str | None:
        """The task file, or None while the draft is incomplete."""
        try:
            return self.draft.to_task().to_toml()
        except ClozifyError:
            return None

    def zero_shot_command(self) -> str:
        """The command that gives the page's answers for all rows."""
        command = ["clozify", "zero-shot", TASK_FILE, "--data", self.data.source or "FILE"]
        return shlex.join([*command, "--max-length", str(MAX_LENGTH), *self._model_option])

    @property
    def _model_option(self) -> list[str]:
        return [] if self.model_name == "builtin" else ["--model", self.model_name]

    # labels

    def set_label(self, row: int, label: str | None) -> None:
        """Set or remove the user's label of a row."""
        with self.lock:
            if label is None:
                self.data.labels.pop(row, None)
            else:
                self.data.labels[row] = label
            self._save_state()
            self.write_labeled()

    def write_labeled(self) -> int:
        """Write `labeled.csv`, the fields and labels of all labelled rows; returns the number of rows."""
        import pandas as pd

        labels = self.data.label_indices(self.draft)
        indices = [int(row) for row in np.flatnonzero(labels != NO_LABEL)]
        columns = self.data.columns_of(self.draft, indices)
        columns[self.draft.label] = [self.draft.labels[labels[row]] for row in indices]
        pd.DataFrame(columns).to_csv(self.folder / LABELED_FILE, index=False)
        return len(indices)

    # runs

    def start(self, settings: RunSettings | None = None) -> StudioRun:
        """Write the run's input files and start it; raises a `ClozifyError` if something is missing."""
        settings = settings or RunSettings()
        if any(run.state == "running" for run in self.runs):
            raise RunError("A run is in progress; wait for it or stop it.")
        task = self.draft.to_task()
        recipe = load_recipe(settings.recipe, settings.recipe_settings.split())
        task.save(self.folder / TASK_FILE)
        run = StudioRun(self.folder, max((run.number for run in self.runs), default=0) + 1)
        if settings.method == "pet":
            run.expected_models = (len(task.pairs) + int(recipe.distillation)) * recipe.repetitions
        elif settings.method == "supervised":
            run.expected_models = recipe.repetitions
        run.start(self._train_arguments(settings))
        self.runs.append(run)
        return run

    def _train_arguments(self, settings: RunSettings) -> list[str]:
        """The arguments of `clozify train`; writes the files that they name."""
        import pandas as pd

        labeled = self.write_labeled()
        if not labeled and settings.method != "ipet":
            raise DataError("No row has a label yet; label a few rows first.")
        arguments = [TASK_FILE, *(["--labeled", LABELED_FILE] if labeled else [])]
        arguments += ["--method", settings.method, "--recipe", settings.recipe]
        if settings.method != "supervised":
            rows = self.data.unlabeled(self.draft, settings.unlabeled)
            pd.DataFrame(self.data.columns_of(self.draft, rows)).to_csv(self.folder / UNLABELED_FILE, index=False)
            arguments += ["--unlabeled", UNLABELED_FILE]
        if settings.examples:
            arguments += ["--examples", str(settings.examples)]
        if test := settings.test.strip():
            open_data(test)  # a wrong name fails now
            path = Path(test).expanduser()
            arguments += ["--test", str(path.resolve()) if path.exists() else test]
        arguments += self._model_option
        for setting in settings.recipe_settings.split():
            arguments += ["--set", setting]
        return arguments

    def run(self, number: int) -> StudioRun | None:
        """The run with this number."""
        return next((run for run in self.runs if run.number == number), None)

    def classifier_fields(self, run: StudioRun) -> list[str]:
        """The fields that a finished run's classifier reads."""
        return self._open(run).task.fields

    def classify(self, run: StudioRun, texts: dict[str, str]) -> list[tuple[str, float]]:
        """A finished run's labels for one row with their probabilities, likeliest first."""
        if not any(text.strip() for text in texts.values()):
            raise DataError("Write a text to classify.")
        with self.lock:
            finished = self._open(run)
            rows = make_rows({field: [text] for field, text in texts.items()}, finished.task, "the text")
            (probabilities,) = finished.probabilities(rows)
        return [(finished.task.labels[index], float(probabilities[index])) for index in np.argsort(-probabilities)]

    def _open(self, run: StudioRun) -> FinishedRun:
        metrics = run.path / "metrics.json"
        key = run.path, metrics.stat().st_mtime_ns if metrics.is_file() else 0
        if key not in self._finished:
            self._finished = {key: FinishedRun(run.path)}  # keep one classifier in memory
        return self._finished[key]

    def close(self) -> None:
        """Stop the runs that this process started."""
        for run in self.runs:
            run.stop()
