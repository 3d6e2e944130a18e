"""What a bench runs: data sets, draws and cells, each of which is one method on one draw."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clozify.bench.datasets import BenchData, DataSource, check_names, has_task, load_data
from clozify.bench.draws import DataSet, Draw, DrawOptions, make_data_set, make_draw
from clozify.bench.environments import package_version, pinned_version
from clozify.bench.rivals import DEFAULT, RIVALS, choose_rivals, llm
from clozify.bench.rivals.worker import Rival
from clozify.config.recipe import load_recipe, shipped_recipes
from clozify.errors import DataError, quoted, unknown_names
from clozify.models.builtin import DEFAULT as DEFAULT_SIZE
from clozify.models.builtin import is_builtin
from clozify.models.loading import architecture_of
from clozify.runs.keys import NUMERICS, hash_file, hash_key, model_key

OPTION_METHODS = {"setfit-encoder": "setfit", "nli-model": "nli", "llm": "llm"}  # whose method each is
MATCHED = {"seed": "--seed", "max_seq_length": "--max-length"}  # settings that are the same for all methods
MAX_LENGTHS = {"cpu": 64, "cuda": 256}  # tokens of a row, as the recipe auto has them


@dataclass(frozen=True)
class BenchOptions:
    """What `clozify bench` was asked for."""

    output: str | Path = "bench"
    data: Sequence[DataSource] = (DataSource("sample"),)
    labels: Sequence[str] = ()  # names of labels, for data without a task file
    per_label: Sequence[int] = (8,)
    draws: int = 3
    methods: Sequence[str] = DEFAULT
    model: str = "builtin"
    recipe: str = "auto"
    settings: Sequence[str] = ()
    max_length: int | None = None  # None: 64 on a CPU, 256 on a GPU
    drawing: DrawOptions = field(default_factory=DrawOptions)
    rival_options: dict[str, str] = field(default_factory=dict)  # such as "nli-model": NAME
    environments: dict[str, str] = field(default_factory=dict)  # method -> a Python, or a folder with its packages
    devices: str = "auto"
    at_once: int = 1
    executor: str = "local"
    address: str | None = None
    hours: float | None = None  # after which no cell is started and those that run are stopped
    cell_minutes: float | None = None  # after which a cell counts as failed
    log: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class CellSpec:
    """What identifies a cell on the page."""

    data: str
    data_key: str
    per_label: int
    draw: int
    method: str
    model: str  # the encoder, or another model that the method is; empty where it has none; a folder's absolute path
    settings: tuple[str, ...]  # of the recipe, for methods that have one, sorted
    recipe: str  # a name, or a file's absolute path; empty for methods without one
    max_length: int  # tokens of a row; 0 for methods that do not read the bench's number
    seed: int
    options: tuple[tuple[str, str], ...] = ()  # with absolute paths

    @property
    def slot(self) -> str:
        """The cell's place in the tables. Cells of other rows or settings in the same place have other keys."""
        return hash_key(
            data=self.data,
            per_label=self.per_label,
            draw=self.draw,
            method=[self.method, self.model, self.recipe, self.max_length],
            settings=list(self.settings),
            options=list(map(list, self.options)),
        )


@dataclass(frozen=True)
class Cell:
    """One method on one draw."""

    spec: CellSpec
    draw: Draw
    rival: Rival
    key: str

    @property
    def name(self) -> str:
        """The cell's name in the log."""
        spec = self.spec
        return f"{spec.data}, {spec.per_label} a label, draw {spec.draw}: {self.rival.TITLE}"


@dataclass(frozen=True)
class BenchPlan:
    """All cells of a bench, in the order in which they run."""

    options: BenchOptions
    data_sets: list[DataSet]
    draws: list[Draw]
    cells: list[Cell]
    rivals: list[Rival]
    device: str
    remarks: list[str]  # on options and environments

    @property
    def notes(self) -> list[str]:
        """What the user should know before anything is trained."""
        return self.remarks + [
            f"{draw.data_set.name}, {draw.per_label} rows a label: {note}"
            for draw in self.draws
            if draw.number == 0
            for note in draw.notes
        ]


def make_plan(options: BenchOptions, device: str) -> BenchPlan:
    """Read the data, draw the rows and list the cells; nothing is written."""
    rivals = choose_rivals(options.methods)
    _check(options, rivals)
    loaded = [load_data(source, options.labels) for source in options.data]
    check_names(loaded)
    _check_models(options, rivals, loaded)
    versions = {rival.NAME: package_version(rival, options.environments.get(rival.NAME)) for rival in rivals}
    data_sets = [make_data_set(data, options.drawing) for data in loaded]
    sizes = sorted(set(options.per_label))
    draws = [
        make_draw(data_set, size, number) for number in range(options.draws) for data_set in data_sets for size in sizes
    ]
    cells = [make_cell(options, draw, rival, device, versions[rival.NAME]) for draw in draws for rival in rivals]
    remarks = [*_unused_options(options, rivals), *_other_versions(rivals, versions)]
    return BenchPlan(options, data_sets, draws, cells, rivals, device, remarks)


def _check(options: BenchOptions, rivals: Sequence[Rival]) -> None:
    """Raise what can be known before any data is read."""
    if not options.per_label or min(options.per_label) < 1:
        raise DataError("--per-label takes numbers of rows, at least 1, separated by commas, such as 8,16,64.")
    if not 0 < options.drawing.held_out < 1:
        raise DataError(f"--held-out is {options.drawing.held_out:g}; it takes a part between 0 and 1, such as 0.3.")
    if unknown := [name for name in options.environments if name not in RIVALS]:
        raise DataError(f"--environment names the method {unknown_names(unknown, list(RIVALS))}, which does not exist.")
    own = [name for name, rival in RIVALS.items() if rival.REQUIREMENTS]
    if shared := [name for name in options.environments if name not in own]:
        raise DataError(
            f"--environment names the method {quoted(shared)}, which runs in clozify's own Python; it takes "
            f"{quoted(own)}."
        )
    if options.labels and all(map(has_task, options.data)):
        raise DataError("--labels names the labels of data without a task file; every --data here has a task.")
    for setting in options.settings:
        if (name := setting.partition("=")[0].strip()) in MATCHED:
            raise DataError(f"--set {name} would change it for clozify's methods alone; write {MATCHED[name]} instead.")
    for rival in rivals:
        if rival.NEEDS and rival.NEEDS not in options.rival_options:
            raise DataError(f"The method '{rival.NAME}' needs --{rival.NEEDS}.")
    file = options.rival_options.get("llm")
    if file is not None and not Path(file).is_file():
        raise DataError(f"The file '{file}' of --llm does not exist; write one with the entries of a teacher.")
    load_recipe(options.recipe, options.settings)
    if any(rival.ENCODER != "none" for rival in rivals) and architecture_of(options.model) != "masked LM":
        raise DataError(f"The bench compares methods on one encoder; '{options.model}' is no masked language model.")


def _check_models(options: BenchOptions, rivals: Sequence[Rival], loaded: Sequence[BenchData]) -> None:
    """Raise an error where the NLI model or the LLM cannot be used for a data set."""
    methods = {rival.NAME for rival in rivals}
    if "nli" in methods:
        from clozify.teachers.nli import NliTeacher

        NliTeacher(options.rival_options["nli-model"]).check(loaded[0].task)
    if "llm" in methods:
        for data in loaded:
            llm.read_entry(options.rival_options["llm"], data.task)


def _unused_options(options: BenchOptions, rivals: Sequence[Rival]) -> list[str]:
    """A sentence for each option that none of the methods reads."""
    methods = {rival.NAME for rival in rivals}
    named = [(f"--{name}", OPTION_METHODS[name]) for name in options.rival_options]
    named += [(f"--environment {name}=...", name) for name in options.environments]
    sentences = [
        f"{option} is not used, since --methods does not name '{method}'."
        for option, method in named
        if method not in methods
    ]
    if options.model != BenchOptions.model and all(rival.ENCODER == "none" for rival in rivals):
        sentences.append("--model is not used, since none of the methods has the bench's encoder.")
    return sentences


def _other_versions(rivals: Sequence[Rival], versions: dict[str, str]) -> list[str]:
    """A sentence for each rival whose environment has another version than the one that the bench was written for."""
    return [
        f"{rival.TITLE} runs with {rival.PACKAGES[0]} {versions[rival.NAME]}; the bench was written for "
        f"{pinned_version(rival)}."
        for rival in rivals
        if versions[rival.NAME] != pinned_version(rival)
    ]


def make_cell(options: BenchOptions, draw: Draw, rival: Rival, device: str, version: str) -> Cell:
    """One method on one draw, with its key: a hash of everything that its predictions depend on.

    `version` is that of the rival's own package in its environment.
    """
    recipe_used = rival.NAME in ("pet", "pet-static", "ipet", "frozen", "supervised")
    chosen = {name: _full_path(v) for name, v in options.rival_options.items() if OPTION_METHODS[name] == rival.NAME}
    # a Sentence Transformers model of SetFit's own has its own length
    max_length = max_length_of(options, device) if rival.MAX_LENGTH and "setfit-encoder" not in chosen else 0
    spec = CellSpec(
        data=draw.data_set.name,
        data_key=draw.data_set.key,
        per_label=draw.per_label,
        draw=draw.number,
        method=rival.NAME,
        model=_model_name(options, rival, chosen),
        settings=_sorted_settings(options.settings) if recipe_used else (),
        recipe=_full_path(options.recipe, shipped_recipes()) if recipe_used else "",
        max_length=max_length,
        seed=draw.seed,
        options=tuple(sorted(chosen.items())),
    )
    recipe = load_recipe(options.recipe, options.settings).model_dump(mode="json") if recipe_used else None
    key = hash_key(
        data=draw.data_set.key,
        draw=draw.key,
        method=[rival.NAME, rival.VERSION, version, *rival.REQUIREMENTS],
        unlabeled=rival.UNLABELED,
        model=None if not spec.model else [model_key(spec.model)],
        recipe=recipe,
        max_length=max_length,
        seed=draw.seed,
        options={name: _content_key(name, value) for name, value in chosen.items()},
        device=device if rival.ENCODER != "none" else "cpu",
        numerics=NUMERICS if not rival.REQUIREMENTS else 0,
    )
    return Cell(spec, draw, rival, f"{draw.key}-{rival.NAME}-{key[:10]}")


def _content_key(name: str, value: str) -> str:
    """What identifies the value of an option: the content of a file or of a model's folder, not its path."""
    return hash_file(Path(value)) if name == "llm" else model_key(value)


def _full_path(name: str, shipped: Collection[str] = ()) -> str:
    """A folder's or file's absolute path, since cells run in folders of their own; other names as they are."""
    if is_builtin(name):
        return name.removesuffix(f":{DEFAULT_SIZE}")
    return name if name in shipped or not Path(name).exists() else str(Path(name).resolve())


def _sorted_settings(settings: Sequence[str]) -> tuple[str, ...]:
    """The settings by name, of each name the last: what has the same effect is the same column of the tables."""
    values = {name.strip(): text.strip() for name, _, text in (setting.partition("=") for setting in settings)}
    return tuple(f"{name}={values[name]}" for name in sorted(values))


def max_length_of(options: BenchOptions, device: str) -> int:
    """Tokens of a row, for methods that read as many as the bench says."""
    return options.max_length or MAX_LENGTHS[device]


def _model_name(options: BenchOptions, rival: Rival, chosen: dict[str, str]) -> str:
    if rival.ENCODER == "none":
        return chosen.get("nli-model", "")
    return chosen.get("setfit-encoder", _full_path(options.model))
