"""A studio project: its rows, task draft, labels and runs, independent of the page.

Everything is kept in a folder as files that the command line reads too: `task.toml`, `labeled.csv`, `unlabeled.csv`,
`runs/1`. The page has one user; the project lives as long as the server.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from clozify.config.label_names import name_to_words
from clozify.config.task import load_task
from clozify.data.readers import FORMATS
from clozify.errors import ClozifyError, DataError, RunError, quoted
from clozify.models.cloze import load_model
from clozify.studio.draft import TaskDraft
from clozify.studio.finished_runs import FinishedRuns
from clozify.studio.label_help import LabelHelp
from clozify.studio.labels import UserLabels, make_row_key, only_columns, with_label
from clozify.studio.preview import MAX_LENGTH, Preview, Previewer
from clozify.studio.preview_teachers import UnaskedTeacher, llm_costs
from clozify.studio.rows import ProjectRows, absolute
from clozify.studio.run_inputs import LABELED_FILE, TASK_FILE, UNLABELED_FILE, RunInputs, RunSettings
from clozify.studio.runs import StudioRun, list_runs
from clozify.studio.state import (
    STATE_FILE,
    StudioState,
    format_state,
    keep,
    lock_folder,
    parse_state,
    save_text,
    saving,
)
from clozify.teachers.base import Cost

SAMPLE_TASK, SAMPLE_SOURCE = "debian", "builtin:unlabeled"


class Project:
    """A project folder, opened with one model and locked for this process."""

    def __init__(self, folder: str | Path, model: str = "builtin") -> None:
        self.folder = Path(folder).resolve()
        if self.folder.is_file():
            raise RunError(f"The project cannot be in '{folder}', which is a file; name a folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._folder_lock = lock_folder(self.folder)
        self.model_name = str(Path(model).resolve()) if Path(model).is_dir() else model
        self.draft = TaskDraft()
        self.data = ProjectRows()
        self.version = 0  # grows whenever the draft is replaced by something else than typing
        self.notices: list[str] = []  # what the user should know about the files of an earlier session
        self.runs = list_runs(self.folder)
        self.lock = threading.RLock()  # Streamlit runs a script per window; the model serves one call at a time
        self.finished = FinishedRuns(self.lock)
        self.label_help = LabelHelp(self.data, self.model_name, self.lock)
        self._state = StudioState()  # as it was last saved
        self._adopted_all_columns = False  # labels were taken over before the fields were known
        self._own_task: bytes | None = None  # the content of `task.toml` that may be replaced without a copy
        try:
            self._restore()
        except BaseException:
            self._folder_lock.release()
            raise

    # what is kept in the folder

    def _restore(self) -> None:
        """Load what an earlier session left in the folder; what cannot be read is kept and said."""
        task_path, state_path = self.folder / TASK_FILE, self.folder / STATE_FILE
        if task_path.is_file():
            try:
                self.draft = TaskDraft.from_task(load_task(task_path))
                if state_path.is_file() and self.toml() == (content := task_path.read_bytes()).decode():
                    self._own_task = content
            except ClozifyError as error:
                kept = keep(task_path, move=True)
                self.notices.append(f"{error.problems[0]} It was kept as '{kept}'.")
        if state_path.is_file():
            try:
                state = parse_state(state_path.read_bytes().decode())
            except ValueError as error:
                kept = keep(state_path, move=True)
                self.notices.append(
                    f"The file '{state_path}', which has the labels, cannot be read ({error}); it was kept as '{kept}'."
                )
                state = StudioState()
            self._state = state
            self.data.user_labels = state.labels
        if not state_path.is_file():
            self._adopt_files()
        if self._state.source is not None:
            try:
                self._open(self._state.source)
            except ClozifyError as error:
                labels = len(self._state.labels) + len(self._state.row_labels)
                same_name = " under the same name" if self._state.row_labels else ""
                self.notices.append(
                    f"{error.problems[0]} Its labels are kept ({labels:,}); load the file from its new path{same_name}."
                )

    def _adopt_files(self) -> None:
        """Keep the CSV files of a folder without `studio.json`, and take over the labels of `labeled.csv`."""
        files = [self.folder / name for name in (LABELED_FILE, UNLABELED_FILE) if (self.folder / name).is_file()]
        for path in files:
            self.notices.append(f"The file '{path.name}' was there before; it was kept as '{keep(path).name}'.")
        draft = self.draft
        labels = read_labels(self.folder / LABELED_FILE, draft.label, draft.fields, draft.multilabel)
        self.data.user_labels = labels
        self._adopted_all_columns = bool(labels) and not self.draft.fields
        if labels:
            self.notices.append(f"{len(labels):,} labels were taken over from '{LABELED_FILE}'.")
        if files:
            self._save(labels)

    def _save(self, labels: UserLabels) -> None:
        """Write `studio.json` with these labels."""
        state = replace(self._state, source=self.data.source or self._state.source, labels=labels)
        save_text(self.folder / STATE_FILE, format_state(state))
        self._state = state

    # the rows

    def upload(self, name: str, content: bytes) -> None:
        """Save an uploaded file in the project's folder and load it; no other upload is replaced."""
        safe_name = re.sub(r"[^\w.-]+", "_", Path(name.replace("\\", "/")).name).lstrip("._-") or "rows"
        stem, suffix = split_name(safe_name)
        stem = stem.encode()[:200].decode(errors="ignore")  # file systems allow 255 bytes, with a number and a suffix
        if suffix.removesuffix(".gz") not in FORMATS:
            raise DataError(f"The file '{name}' has an unknown format; use {quoted(FORMATS)}, gzipped or not.")
        path, number = self.folder / "data" / (stem + safe_name[-len(suffix) :]), 1
        if path.parent.is_file():
            raise RunError(f"Uploads are saved in the folder '{path.parent}', but that is a file; rename it.")
        while path.exists() and not (path.is_file() and path.read_bytes() == content):
            number += 1
            path = path.with_name(f"{stem}-{number}{suffix}")
        if path.exists():
            self.load(str(path))
            return
        with saving(path) as tmp_path:
            path.parent.mkdir(exist_ok=True)
            tmp_path.write_bytes(content)
        try:
            self.load(str(path))
        except DataError:
            path.unlink()
            raise

    def load(self, source: str) -> None:
        """Load rows from a file, a folder of shards, a hub data set or the sample."""
        if Path(absolute(source)) in (self.folder / LABELED_FILE, self.folder / UNLABELED_FILE):
            raise DataError(f"The studio itself writes '{source}'; copy it to another name and load that.")
        with self.lock:
            self._open(source)
            self.name_labels()
            self.version += 1
            self._save(self.data.user_labels)

    def _open(self, source: str) -> None:
        self.data.load(source)
        if not set(self.draft.fields) <= set(self.data.columns) or not self.draft.fields:
            self.draft.fields = self.data.longest_column(self.draft.label)
        if self._adopted_all_columns:
            self.data.user_labels = only_columns(self.data.user_labels, self.data.columns)
            self._adopted_all_columns = False
        if self._state.row_labels and self.draft.fields and self._is_row_source(self.data.source):
            self._convert_row_labels()

    def _is_row_source(self, source: str | None) -> bool:
        """Whether labels by row number belong to this file: the same path, or the same name if the file was moved."""
        row_labels, row_source = self._state.row_labels, self._state.row_source
        if source is None or row_source is None or source == row_source:
            return source is not None and source == row_source
        is_moved = Path(source).name == Path(row_source).name and not Path(row_source).exists()
        return is_moved and max(row_labels) < len(self.data)

    def _convert_row_labels(self) -> None:
        """Give the labels that an older version kept by row number to the rows' texts."""
        row_labels = self._state.row_labels
        rows = [row for row in row_labels if 0 <= row < len(self.data)]
        keys = self.data.row_keys(self.draft, rows)
        labels: UserLabels = {key: row_labels[row] for key, row in zip(keys, rows, strict=True)}
        self.data.user_labels = labels | self.data.user_labels
        self._state = replace(self._state, row_labels={row: row_labels[row] for row in row_labels if row not in rows})

    def load_sample(self) -> None:
        """Load the task and the rows that come with clozify."""
        with self.lock:
            self.draft = TaskDraft.from_task(load_task(SAMPLE_TASK))
            self.load(SAMPLE_SOURCE)

    def name_labels(self) -> bool:
        """Take the labels' names from the label column if the draft has none yet; returns whether it did.

        A name is read as words, unless it is a number or has a comma, which separates words.
        """
        names = (
            []
            if self.draft.labels
            else self.data.label_names(self.draft.label, self.draft.separator if self.draft.multilabel else None)
        )
        if names:
            self.draft.words = [(name, _typed_words(name)) for name in names]
        return bool(names)

    # the model's answers

    @cached_property
    def previewer(self) -> Previewer:
        """The model, loaded once."""
        with self.lock:
            return Previewer(load_model(self.model_name), self.folder)

    def preview(self) -> Preview:
        """The model's answers to the draft on the rows on display; saves the task if it has no problems."""
        with self.lock:
            shown = self.data.shown
            try:
                rows = self.data.select(self.draft, shown)
                preview = self.previewer.preview(self.draft, rows, (self.data.loads, *shown))
            except ClozifyError as error:  # such as a column of lists
                return Preview(problems={"fields": error.problems})
            try:
                self.data.label_indices(self.draft, shown)
            except ClozifyError as error:
                preview.problems.setdefault("label column", []).extend(error.problems)
            if not preview.problems:
                try:
                    self._save_task()
                except ClozifyError as error:
                    preview.problems["task"] = error.problems
            return preview

    def llm_costs(self, count: int) -> list[tuple[str, Cost]]:
        """What asking each LLM of the task about so many rows costs, by the rows on display."""
        rows = self.data.select(self.draft, self.data.shown)
        return [] if rows is None else llm_costs(self.draft.to_task(), rows, count)

    def ask_llms(self, unasked: Sequence[UnaskedTeacher], budget: str) -> None:
        """Ask the LLMs of a preview about its rows within a budget; other windows are not blocked meanwhile."""
        self.previewer.teachers.ask(unasked, budget.strip() or None)

    def _save_task(self) -> None:
        """Write `task.toml`, unless it has the draft's task already; a file that the studio did not write is kept."""
        toml, path = self.draft.to_task().to_toml(), self.folder / TASK_FILE
        content = path.read_bytes() if path.is_file() else None
        if content != toml.encode():
            if content not in (None, self._own_task):
                kept = keep(path).name
                self._own_task = content  # it is kept once, even if the next line fails
                self.notices.append(
                    f"The file '{path.name}', which the studio did not write, was replaced by the task on this page; "
                    f"it was kept as '{kept}'. Comments and further verbalizers are only in that file."
                )
            save_text(path, toml)
        self._own_task = toml.encode()

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
        """Set or remove the label of a row; it is saved before it counts."""
        with self.lock:
            (key,) = self.data.row_keys(self.draft, [row])
            labels = with_label(self.data.user_labels, key, label)
            self._save(labels)
            self.data.user_labels = labels
            self.inputs.write_labeled()

    @property
    def inputs(self) -> RunInputs:
        """The rows that runs are trained on."""
        return RunInputs(self.folder, self.data, self.draft, self._model_option)

    # runs

    def start(self, settings: RunSettings | None = None) -> StudioRun:
        """Write the run's input files and start it; raises a `ClozifyError` if something is missing."""
        settings = settings or RunSettings()
        with self.lock:
            self._check_idle()
            task = self.draft.to_task()
            expected_models = settings.expected_models(task)
            self._save_task()
            arguments = self.inputs.write(settings)
            run = StudioRun(self.folder, max((run.number for run in self.runs), default=0) + 1)
            run.start(arguments, expected_models)
            self.runs.append(run)
            return run

    def resume(self, run: StudioRun) -> None:
        """Start a stopped or failed run again; it resumes."""
        with self.lock:
            self._check_idle()
            run.resume()

    def _check_idle(self) -> None:
        if any(run.state == "running" for run in self.runs):
            raise RunError("A run is in progress; wait for it or stop it.")

    def run(self, number: int) -> StudioRun | None:
        """The run with this number."""
        return next((run for run in self.runs if run.number == number), None)

    def close(self) -> None:
        """Stop the runs that this process started and unlock the folder."""
        try:
            for run in self.runs:
                run.stop()
        finally:
            self._folder_lock.release()


def _typed_words(name: str) -> str:
    """A label's name as words that a user could have typed: none for a number or a name with a comma."""
    words = name_to_words(name)
    return "" if "," in words or not any(map(str.isalpha, words)) else words.lower() if words.isalpha() else words


def split_name(name: str) -> tuple[str, str]:
    """A file's name without its suffix, and the suffix in lower case: `.csv`, `.csv.gz`."""
    stem = re.sub(r"\.gz$", "", name, flags=re.IGNORECASE)
    stem = stem.removesuffix(Path(stem).suffix)
    return stem, name[len(stem) :].lower()


def read_labels(path: Path, label_column: str, fields: list[str], multilabel: bool = False) -> UserLabels:
    """The labels of a `labeled.csv` for the texts of these fields, or of all columns without fields.

    There are none without such a file, the label column or a field. With `multilabel`, an empty cell means no label.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError):
        return {}
    if label_column not in frame or len(frame.columns) < 2 or not set(fields) <= set(frame.columns):
        return {}
    names = frame.pop(label_column)
    if fields:
        frame = frame[fields]
    texts = frame.to_dict("records")
    return {
        make_row_key({str(field): text for field, text in row.items()}): name
        for row, name in zip(texts, names, strict=True)
        if name or multilabel
    }
