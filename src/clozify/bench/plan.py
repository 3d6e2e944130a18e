"""What a bench runs: data sets, draws and cells, each of which is one method on one draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clozify.bench.datasets import DataSource, check_names, load_data
from clozify.bench.draws import DataSet, Draw, DrawOptions, make_data_set, make_draw
from clozify.bench.rivals import DEFAULT, RIVALS, choose_rivals
from clozify.bench.rivals.worker import Rival
from clozify.config.recipe import load_recipe
from clozify.errors import DataError, unknown_names
from clozify.models.loading import architecture_of
from clozify.runs.keys import NUMERICS, hash_file, hash_key, model_key

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
    model: str  # the encoder, or another model that the method is; empty where it has none
    settings: tuple[str, ...]  # of the recipe, for methods that have one
    recipe: str  # empty for methods without one
    max_length: int  # tokens of a row; 0 for methods that do not read the bench's number
    seed: int
    options: tuple[tuple[str, str], ...] = ()

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

    @property
    def notes(self) -> list[str]:
        """What the user should know of the draws before they are trained on."""
        return [
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
    data_sets = [make_data_set(data, options.drawing) for data in loaded]
    sizes = sorted(set(options.per_label))
    draws = [
        make_draw(data_set, size, number) for number in range(options.draws) for data_set in data_sets for size in sizes
    ]
    cells = [make_cell(options, draw, rival, device) for draw in draws for rival in rivals]
    return BenchPlan(options, data_sets, draws, cells, rivals, device)


def _check(options: BenchOptions, rivals: Sequence[Rival]) -> None:
    """Raise what can be known before any data is read."""
    if not options.per_label or min(options.per_label) < 1:
        raise DataError("--per-label takes numbers of rows, at least 1, separated by commas, such as 8,16,64.")
    if not 0 < options.drawing.held_out < 1:
        raise DataError(f"--held-out is {options.drawing.held_out:g}; it takes a part between 0 and 1, such as 0.3.")
    if unknown := [name for name in options.environments if name not in RIVALS]:
        raise DataError(f"--environment names the method {unknown_names(unknown, list(RIVALS))}, which does not exist.")
    if options.labels and all(source.task is not None for source in options.data):
        raise DataError("--labels names the labels of data without a task file; every --data here has a --task.")
    for rival in rivals:
        if rival.NEEDS and rival.NEEDS not in options.rival_options:
            raise DataError(f"The method '{rival.NAME}' needs --{rival.NEEDS}.")
    llm = options.rival_options.get("llm")
    if llm is not None and not Path(llm).is_file():
        raise DataError(f"The file '{llm}' of --llm does not exist; write one with the entries of a teacher.")
    load_recipe(options.recipe, options.settings)
    if any(rival.ENCODER != "none" for rival in rivals) and architecture_of(options.model) != "masked LM":
        raise DataError(f"The bench compares methods on one encoder; '{options.model}' is no masked language model.")


def make_cell(options: BenchOptions, draw: Draw, rival: Rival, device: str) -> Cell:
    """One method on one draw, with its key: a hash of everything that its predictions depend on."""
    recipe_used = rival.NAME in ("pet", "pet-static", "ipet", "frozen", "supervised")
    chosen = {name: value for name, value in options.rival_options.items() if name in _options_of(rival)}
    max_length = _max_length(options, rival, chosen, device)
    spec = CellSpec(
        data=draw.data_set.name,
        data_key=draw.data_set.key,
        per_label=draw.per_label,
        draw=draw.number,
        method=rival.NAME,
        model=_model_name(options, rival, chosen),
        settings=tuple(options.settings) if recipe_used else (),
        recipe=options.recipe if recipe_used else "",
        max_length=max_length,
        seed=draw.seed,
        options=tuple(sorted(chosen.items())),
    )
    recipe = load_recipe(options.recipe, options.settings).model_dump(mode="json") if recipe_used else None
    key = hash_key(
        data=draw.data_set.key,
        draw=draw.key,
        method=[rival.NAME, rival.VERSION, *rival.REQUIREMENTS],
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


def _options_of(rival: Rival) -> tuple[str, ...]:
    """The options of the command that concern a method."""
    own = {"setfit": ("setfit-encoder",), "llm": ("llm",), "nli": ("nli-model",)}
    return own.get(rival.NAME, ())


def _max_length(options: BenchOptions, rival: Rival, chosen: dict[str, str], device: str) -> int:
    """Tokens of a row; 0 where the method, or a Sentence Transformers model of SetFit's own, has its own length."""
    if not rival.MAX_LENGTH or "setfit-encoder" in chosen:
        return 0
    return options.max_length or MAX_LENGTHS[device]


def _model_name(options: BenchOptions, rival: Rival, chosen: dict[str, str]) -> str:
    if rival.ENCODER == "none":
        return chosen.get("nli-model", "")
    return chosen.get("setfit-encoder", options.model)
