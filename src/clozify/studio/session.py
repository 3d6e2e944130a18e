"""What a person does in the page, without the page: rows, a draft, labels, runs, a sentence to classify.

In: a project's folder and a model's name. Out: everything as files that the command line takes too: `task.toml`,
`labeled.csv`, `pile.csv`, `runs/1`. One person, one session; it lives as long as the server.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import load_recipe
from clozify.config.task import Task, load_task
from clozify.data.in_memory import make_rows
from clozify.data.readers import FORMATS, open_data
from clozify.data.rows import NO_LABEL, UNLABELED, Rows
from clozify.errors import ClozifyError, DataError, RunError, quoted
from clozify.inference.finished_run import FinishedRun
from clozify.models.cloze import load_model
from clozify.studio.draft import Draft
from clozify.studio.preview import MAX_LENGTH, Look, Looker
from clozify.studio.runs import Run, runs_of

if TYPE_CHECKING:
    from datasets import Dataset

MOST_LABELS = 50  # different values of a column that may still be labels
SHOWN = 24  # rows that are shown and scored
TASK, LABELED, PILE, STATE = "task.toml", "labeled.csv", "pile.csv", "studio.json"
SAMPLE = ("debian", "builtin:unlabeled")  # a task and rows that come with clozify


class Session:
    """A project: its rows, its task in the making, its labels and its runs."""

    def __init__(self, folder: str | Path, model: str = "builtin") -> None:
        self.folder = Path(folder).resolve()
        if self.folder.is_file():
            raise RunError(f"The project cannot be in '{folder}': that is a file; name a folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model_name = str(Path(model).resolve()) if Path(model).is_dir() else model
        self.draft = Draft()
        self.source: str | None = None
        self.labels: dict[int, str] = {}  # row of the file -> the label that a person gave it
        self.shift = 0  # which rows are shown
        self.version = 0  # of the draft: counts what was put in its place by something else than typing
        self.runs = runs_of(self.folder)
        self.lock = threading.RLock()  # a page may ask twice at once; the model answers once at a time
        self._dataset: Dataset | None = None
        self._known: tuple[object, NDArray[np.int16]] | None = None  # the file's own labels, for these names
        self._finished: dict[tuple[Path, int], FinishedRun] = {}
        self._return()

    def _return(self) -> None:
        """Go on where an earlier session in this folder was."""
        try:
            if (self.folder / TASK).is_file():
                self.draft = Draft.of(load_task(self.folder / TASK))
            state = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
            self._dataset = open_data(state["source"])
            self.source = state["source"]
            self.labels = {int(row): label for row, label in state["labels"].items() if int(row) < len(self._dataset)}
        except (OSError, ValueError, KeyError, ClozifyError):
            return  # nothing was there, or it is gone: the page starts with what there is

    def _keep(self) -> None:
        content = {"source": self.source, "labels": {str(row): label for row, label in self.labels.items()}}
        (self.folder / STATE).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    # the rows

    def upload(self, name: str, content: bytes) -> None:
        """Keep a file that a person hands over in the project's folder, and load it."""
        safe = re.sub(r"[^\w.-]+", "_", Path(name.replace("\\", "/")).name).lstrip("._-") or "rows"
        if Path(safe.removesuffix(".gz")).suffix.lower() not in FORMATS:
            raise DataError(f"The data file '{name}' is of no known kind; use {quoted(FORMATS)}, gzipped or not.")
        place = self.folder / "data" / safe
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        self.load(str(place))

    def load(self, source: str) -> None:
        """Rows from a file, a folder of shards, a hub data set or the sample; labels of other rows are dropped."""
        path = Path(source).expanduser()
        source = str(path.resolve()) if path.exists() else source
        dataset = open_data(source)
        with self.lock:
            if source != self.source:
                self.labels = {}
            self._dataset, self.source, self.shift = dataset, source, 0
            if not set(self.draft.fields) <= set(self.columns) or not self.draft.fields:
                self.draft.fields = self._likely_fields()
            self.take_labels()
            self.version += 1
            self._keep()

    def load_sample(self) -> None:
        """The task and the rows that come with clozify."""
        task, source = SAMPLE
        self.draft = Draft.of(load_task(task))
        self.load(source)

    @property
    def columns(self) -> list[str]:
        """The columns of the file."""
        return [] if self._dataset is None else list(self._dataset.column_names)

    def __len__(self) -> int:
        return 0 if self._dataset is None else len(self._dataset)

    def _likely_fields(self) -> list[str]:
        """The column with the longest text, which is what most tasks are about."""
        assert self._dataset is not None
        first = self._dataset[: min(50, len(self))]
        lengths = {
            name: sum(len(value) for value in values if isinstance(value, str))
            for name, values in first.items()
            if name != self.draft.label
        }
        return [max(lengths, key=lambda name: lengths[name])] if lengths else []

    def take_labels(self) -> bool:
        """Name the labels as the file's label column does, where none has a name yet; tells whether it did.

        A name that is a word is the first guess at the label's word.
        """
        if self._dataset is None or self.draft.label not in self.columns or self.draft.labels:
            return False
        values = {str(value).strip() for value in self._dataset.unique(self.draft.label) if value is not None}
        names = sorted(values - UNLABELED)
        if not 2 <= len(names) <= MOST_LABELS:
            return False
        self.draft.words = [(name, name.lower() if name.isalpha() else "") for name in names]
        return True

    @property
    def shown(self) -> list[int]:
        """Rows evenly from the whole file; `shift` chooses others."""
        step = max(1, len(self) // SHOWN)
        return list(range(self.shift % step, len(self), step))[:SHOWN]

    def more_rows(self) -> None:
        """Show other rows."""
        self.shift += 1

    def rows(self, places: list[int] | None = None) -> Rows | None:
        """The file's rows under the draft, or some of them; None where there are none or no column is chosen."""
        if self._dataset is None or not self.draft.fields:
            return None
        task = self._any_task()
        rows = Rows(self._dataset, task, self.source or "the data")
        return rows if places is None else rows.select(places)

    def _any_task(self) -> Task:
        """A task with the draft's fields, whatever else is still wrong with it."""
        words: Any = {name: (name,) for name in self.draft.labels} or {"label": ("label",)}
        return Task.model_validate(
            {
                "name": "draft",
                "fields": self.draft.fields,
                "label": self.draft.label,
                "patterns": ["{mask}"],
                "verbalizers": [{"words": words}],
                "line_breaks": self.draft.more.get("line_breaks", []),
            }
        )

    def texts(self, places: list[int]) -> list[str]:
        """What a person reads of these rows: the fields, one behind the other."""
        rows = self.rows(places)
        if rows is None:
            return []
        columns = [rows.texts(field) for field in self.draft.fields]
        return [" | ".join(filter(None, fields)) for fields in zip(*columns, strict=True)]

    # the model

    @cached_property
    def looker(self) -> Looker:
        """The model, loaded once."""
        with self.lock:
            return Looker(load_model(self.model_name))

    def look(self) -> Look:
        """What the model makes of the draft, on the rows that are shown; a task without problems is saved."""
        with self.lock:
            shown = self.shown
            look = self.looker.look(self.draft, self.rows(shown), (self.source, *shown))
            try:
                _ = self.truth(shown)
            except ClozifyError as error:
                look.problems.setdefault("label column", []).extend(error.problems)
            if not look.problems:
                self.draft.task().save(self.folder / TASK)
            return look

    def toml(self) -> str | None:
        """The task file as it stands, or None where the draft is not a task yet."""
        try:
            return self.draft.task().to_toml()
        except ClozifyError:
            return None

    def zero_shot_command(self) -> str:
        """What repeats the page's answers, on all rows."""
        task = ["clozify", "zero-shot", TASK, "--data", self.source or "FILE", "--max-length", str(MAX_LENGTH)]
        return shlex.join([*task, *self._model_option])

    @property
    def _model_option(self) -> list[str]:
        return [] if self.model_name == "builtin" else ["--model", self.model_name]

    # labels

    def truth(self, places: list[int]) -> NDArray[np.int16]:
        """The rows' labels as places in the draft's: a person's, else the file's, else NO_LABEL."""
        names = self.draft.labels
        found = self._of_file(tuple(names))[places]
        for number, row in enumerate(places):
            if self.labels.get(row) in names:
                found[number] = names.index(self.labels[row])
        return found

    def _of_file(self, names: tuple[str, ...]) -> NDArray[np.int16]:
        """The file's own labels, read once for each naming: a page asks again at every keystroke."""
        key = (self.source, self.draft.label, names)
        if self._known is None or self._known[0] != key:
            rows = self.rows() if names else None
            known = rows is not None and rows.has_labels
            none = np.full(len(self), NO_LABEL, dtype=np.int16)
            self._known = (key, rows.labels if rows is not None and known else none)
        return self._known[1]

    def nobody_knows(self, places: list[int]) -> NDArray[np.int16]:
        """NO_LABEL for each row."""
        return np.full(len(places), NO_LABEL, dtype=np.int16)

    def set_label(self, row: int, label: str | None) -> None:
        """A person's label for a row of the file, or none any more."""
        with self.lock:
            if label is None:
                self.labels.pop(row, None)
            else:
                self.labels[row] = label
            self._keep()
            self.write_labeled()

    def labeled(self) -> dict[str, int]:
        """How many rows each label has."""
        found = self.truth(list(range(len(self))))
        return {label: int((found == place).sum()) for place, label in enumerate(self.draft.labels)}

    def write_labeled(self) -> int:
        """Write `labeled.csv`: the fields and the label of every row that has one; returns how many there are."""
        import pandas as pd

        found = self.truth(list(range(len(self))))
        places = [int(row) for row in np.flatnonzero(found != NO_LABEL)]
        columns = self._texts_by_field(places)
        columns[self.draft.label] = [self.draft.labels[found[row]] for row in places]
        pd.DataFrame(columns).to_csv(self.folder / LABELED, index=False)
        return len(places)

    def _texts_by_field(self, places: list[int]) -> dict[str, list[str]]:
        rows = self.rows(places)
        return {} if rows is None else {field: rows.texts(field) for field in self.draft.fields}

    # runs

    def start(
        self,
        method: str = "pet",
        recipe: str = "quick",
        pile: int = 600,
        examples: int = 0,
        test: str = "",
        settings: str = "",
    ) -> Run:
        """Write what a run works on and start it; raises a `ClozifyError` where something is missing."""
        import pandas as pd

        if any(run.state == "running" for run in self.runs):
            raise RunError("A run is going on; wait for it or stop it.")
        task = self.draft.task()
        how = load_recipe(recipe, settings.split())
        task.save(self.folder / TASK)
        labeled = self.write_labeled()
        if not labeled and method != "ipet":
            raise DataError("No row has a label yet; label a few rows first.")
        arguments = [TASK, *(["--labeled", LABELED] if labeled else []), "--method", method, "--recipe", recipe]
        if method != "supervised":
            pd.DataFrame(self._texts_by_field(self._pile(pile))).to_csv(self.folder / PILE, index=False)
            arguments += ["--unlabeled", PILE]
        if examples:
            arguments += ["--examples", str(examples)]
        if test.strip():
            path = Path(test.strip()).expanduser()
            _ = open_data(test.strip())  # a wrong name is told now
            arguments += ["--test", str(path.resolve()) if path.exists() else test.strip()]
        arguments += [*self._model_option, *(word for given in settings.split() for word in ("--set", given))]
        run = Run(self.folder, max((run.number for run in self.runs), default=0) + 1)
        if method == "pet":
            run.expected = (len(task.pairs) + int(how.distillation)) * how.repetitions
        elif method == "supervised":
            run.expected = how.repetitions
        run.command_line = run.command(arguments)
        run.start(arguments)
        self.runs.append(run)
        return run

    def _pile(self, most: int) -> list[int]:
        """Rows evenly from those without a label or, where all have one, from the whole file."""
        free = np.flatnonzero(self.truth(list(range(len(self)))) == NO_LABEL)
        free = free if len(free) else np.arange(len(self))
        places: list[int] = free[np.unique(np.linspace(0, len(free) - 1, min(most, len(free))).astype(int))].tolist()
        return places

    def run(self, number: int) -> Run | None:
        """A run by its number."""
        return next((run for run in self.runs if run.number == number), None)

    def fields_of(self, run: Run) -> list[str]:
        """What a finished run's classifier reads."""
        return self._open(run).task.fields

    def classify(self, run: Run, texts: dict[str, str]) -> list[tuple[str, float]]:
        """A finished run's answer to one row: labels and probabilities, the likeliest first."""
        if not any(text.strip() for text in texts.values()):
            raise DataError("Write something to classify.")
        with self.lock:
            finished = self._open(run)
            rows = make_rows({field: [text] for field, text in texts.items()}, finished.task, "the text")
            (shares,) = finished.probabilities(rows)
        order = np.argsort(-shares)
        return [(finished.task.labels[place], float(shares[place])) for place in order]

    def _open(self, run: Run) -> FinishedRun:
        metrics = run.path / "metrics.json"
        key = run.path, metrics.stat().st_mtime_ns if metrics.is_file() else 0
        if key not in self._finished:
            self._finished = {key: FinishedRun(run.path)}  # one classifier in memory is enough
        return self._finished[key]

    def close(self) -> None:
        """End what this session started."""
        for run in self.runs:
            run.stop()
