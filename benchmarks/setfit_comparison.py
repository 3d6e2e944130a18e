"""PET and SetFit on the same rows with the same encoder, in one run on one device.

SetFit uses no unlabelled text, so PET is compared twice: `pet-alone` is trained on the labelled rows only (without the
auxiliary task and without distillation: the ensemble itself predicts), which is the fair comparison; `pet` uses
unlabelled rows, too. Every method is trained once per seed, sequentially, with the same number of threads, in its
own process; PET has one model per pair (`--set repetitions=3` for the paper's three). SetFit is compared twice as
well: with its defaults (one epoch of ten examples is five steps), and trained for at least 250 steps, as many as the
paper uses for supervised training. Printed are

- accuracy on AG's News' official test rows (or so many of them, evenly spread);
- training: seconds from rows on disk to a trained model on disk, imports not counted;
- prediction: rows per second with the model loaded, tokenising included;
- memory: the peak of the process while training and predicting, and on a GPU the peak of its tensors there.

Each side runs as it does by default: on a GPU clozify trains in bf16, SetFit in float32 (`--setfit-set use_amp=true`
gives it mixed precision). SetFit gets an environment of its own under `--cache`, with the versions of
`constraints.txt`. Without a network, name a Python that has SetFit (`--setfit-python`), or install its wheels beside
an environment that has the rest and name the folder:

    pip install --no-index --no-deps --target FOLDER WHEELS/*.whl
    python benchmarks/setfit_comparison.py --setfit-site FOLDER

CLOZIFY_AGNEWS_FOLDER names a folder with `train_first1000_per_class.csv`, `train_pool.csv` and `test.csv` (headerless:
class, title, description).

    python benchmarks/setfit_comparison.py --output runs/setfit --examples 10,50,100 --recipe paper --seeds 3
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from setfit_worker import peak_mib, rows_per_second

if TYPE_CHECKING:
    from clozify.data.rows import Rows

HERE = Path(__file__).resolve().parent
REQUIRED = ("setfit==1.2.0", "sentence-transformers==6.2.0", "evaluate==0.4.6")
METHODS = {  # what is printed for each, and whether it uses unlabelled rows
    "setfit": ("SetFit", False),
    "setfit-long": ("SetFit, longer", False),
    "pet-alone": ("PET without unlabelled text", False),
    "pet": ("PET", True),
    "ipet": ("iPET", True),
    "supervised": ("supervised", False),
}


@dataclass
class Asked:
    """The settings that all parts share."""

    output: str
    model: str
    recipe: str
    settings: list[str]
    setfit_settings: dict[str, Any]
    rows: int
    unlabeled_rows: int
    threads: int
    at_once: int = 1
    setfit_steps: int = 250
    setfit_command: list[str] = field(default_factory=list)
    setfit_site: str | None = None


@dataclass(frozen=True)
class Part:
    """One training of one method."""

    size: int
    method: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its files and folders."""
        return f"{self.method}-{self.size}-{self.seed}"


def spread_over(rows: Rows, count: int) -> Rows:
    """`count` rows, evenly spread over all; 0 is all of them."""
    if not 0 < count < len(rows):
        return rows
    return rows.select(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))


def write_rows(rows: Rows, path: Path) -> None:
    """JSON lines that both sides read: the fields and the label's name for clozify, text and number for SetFit."""
    columns = {name: rows.texts(name) for name in rows.task.fields}
    with path.open("w", encoding="utf-8") as file:
        for run_path, number in enumerate(rows.labels):
            fields = {name: texts[run_path] for name, texts in columns.items()}
            named = {"class": rows.task.labels[number], "label": int(number), "text": " ".join(fields.values())}
            file.write(json.dumps(fields | named) + "\n")


def make_data(options: Asked, sizes: list[int]) -> None:
    """Write the rows of every part, the same for all methods."""
    from clozify.config.recipe import load_recipe
    from clozify.config.task import load_task
    from clozify.data.few_shot import few_shot
    from clozify.data.rows import read_rows

    source, run_path = Path(os.environ["CLOZIFY_AGNEWS_FOLDER"]), Path(options.output) / "data"
    run_path.mkdir(parents=True, exist_ok=True)
    task, recipe = load_task("agnews"), load_recipe(options.recipe, options.settings)
    test = spread_over(read_rows(source / "test.csv", task), options.rows)
    write_rows(test, run_path / "test.jsonl")
    labeled = read_rows(source / "train_first1000_per_class.csv", task)
    for size in sizes:
        chosen = few_shot(labeled, size, recipe.seed if recipe.selection == "random" else None)
        write_rows(chosen, run_path / f"labeled-{size}.jsonl")
    pool = spread_over(read_rows(source / "train_pool.csv", task), options.unlabeled_rows)
    write_rows(pool, run_path / "unlabeled.jsonl")


def clozify_part(options: Asked, part: Part) -> dict[str, Any]:
    """Train with clozify and measure as a user would: `clozify.train`, then predictions of the finished run."""
    import torch
    import transformers

    from clozify import __version__
    from clozify.config.task import load_task
    from clozify.data.rows import read_rows
    from clozify.inference.finished_run import FinishedRun
    from clozify.inference.training import train

    data, folder = Path(options.output) / "data", Path(options.output) / part.name
    task, column_mapping = load_task("agnews"), {"label": "class"}
    began = time.perf_counter()
    train(
        task,
        data / f"labeled-{part.size}.jsonl",
        folder,
        unlabeled=data / "unlabeled.jsonl" if METHODS[part.method][1] else None,
        model=options.model,
        method=part.method.removesuffix("-alone"),
        recipe=options.recipe,
        settings=["repetitions=1", f"seed={part.seed}", *options.settings],
        column_mapping=column_mapping,
        log=lambda line: print(line, flush=True),
    )
    seconds = time.perf_counter() - began
    rows, finished = read_rows(data / "test.jsonl", task, column_mapping), FinishedRun(folder)
    speed = rows_per_second(lambda count: finished.probabilities(rows.select(np.arange(count))), len(rows))
    results = finished.probabilities(rows).argmax(axis=-1)
    return {
        "accuracy": float((results == rows.labels).mean()),
        "training_seconds": seconds,
        "rows_per_second": speed,
        **peak_mib(),
        "threads": torch.get_num_threads(),
        "versions": {"clozify": __version__, "transformers": transformers.__version__, "torch": torch.__version__},
    }


def setfit_model(options: Asked) -> str:
    """The model by folder or name; int8 weights are expanded into a folder that Transformers reads."""
    from clozify.models.cloze import load_model
    from clozify.models.int8 import has_int8_weights
    from clozify.models.loading import model_path

    path = Path(model_path(options.model))
    if not path.is_dir():
        return options.model
    expanded = Path(options.output).resolve() / path.name
    if has_int8_weights(path) and not expanded.exists():
        load_model(options.model, "cpu").save(expanded)
    return str(expanded if has_int8_weights(path) else path.resolve())


def setfit_job(options: Asked, part: Part) -> Path:
    """Write the job file that `setfit_worker.py` reads, and return its path."""
    from clozify.config.recipe import load_recipe

    data, folder = Path(options.output).resolve() / "data", Path(options.output).resolve() / part.name
    folder.mkdir(parents=True)
    job = {
        "model": setfit_model(options),
        "labeled": str(data / f"labeled-{part.size}.jsonl"),
        "test": str(data / "test.jsonl"),
        "max_length": load_recipe(options.recipe, options.settings).max_seq_length,
        "seed": part.seed,
        "least_steps": options.setfit_steps if part.method == "setfit-long" else 0,
        "settings": options.setfit_settings,
        "folder": str(folder),
        "result": str(folder / "result.json"),
    }
    (folder / "job.json").write_text(json.dumps(job, indent=2), encoding="utf-8")
    return folder / "job.json"


def setfit_python(cache: Path) -> str:
    """The Python of SetFit's own environment, which is created if it does not exist."""
    run_path = cache.expanduser() / "-".join(REQUIRED[0].split("=="))
    python = run_path / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (run_path / "ready").exists():
        print(f"installing {', '.join(REQUIRED)} into {run_path}", file=sys.stderr, flush=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(HERE.parent / "constraints.txt")]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(run_path)], check=True)
            subprocess.run([*install, "torch"], check=True)  # first and pinned, as in the Makefile
            subprocess.run([*install, *REQUIRED], check=True)
        except subprocess.CalledProcessError:
            sys.exit(
                "SetFit could not be installed. Without a network, name a Python that has it (--setfit-python) or a "
                "folder that its wheels were installed into (--setfit-site)."
            )
        (run_path / "ready").touch()
    return str(python)


def python_path(site: str | None) -> dict[str, str]:
    """The environment variable that makes Python import from a folder with SetFit first."""
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [site, before]))} if site else {}


def command_of(options: Asked, part: Part) -> tuple[list[str], dict[str, str]]:
    """The command line of a part and its environment: the same threads for all, no calls to the hub for a folder."""
    from clozify.models.loading import model_path

    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(options.threads))
    if Path(model_path(options.model)).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    if not part.method.startswith("setfit"):
        return [sys.executable, __file__, "--part", json.dumps([asdict(options), asdict(part)])], environment
    environment |= python_path(options.setfit_site)
    return [*options.setfit_command, "-P", str(HERE / "setfit_worker.py"), str(setfit_job(options, part))], environment


def inputs_of(options: Asked, part: Part) -> dict[str, Any]:
    """The inputs of a part; if they change, it is measured again."""
    expected = {name: value for name, value in asdict(options).items() if name not in ("output", "setfit_command")}
    return expected | asdict(part)


def result_of(options: Asked, part: Part) -> dict[str, Any] | None:
    """A part's results, if they exist and their inputs have not changed."""
    file = Path(options.output) / f"{part.name}.json"
    if not file.exists():
        return None
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return results if results["inputs"] == inputs_of(options, part) else None


def finish(options: Asked, part: Part, status: int) -> None:
    """Keep a part's results next to its log, and delete what it trained."""
    folder = Path(options.output) / part.name
    if status or not (folder / "result.json").exists():
        print(f"{part.name} failed with status {status}; see {part.name}.log.", file=sys.stderr, flush=True)
        return
    result = json.loads((folder / "result.json").read_text(encoding="utf-8")) | {"inputs": inputs_of(options, part)}
    (Path(options.output) / f"{part.name}.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
    shutil.rmtree(folder)
    print(f"{part.name}: {100 * result['accuracy']:.1f} in {result['training_seconds']:,.0f} s", file=sys.stderr)


def run_parts(options: Asked, parts: list[Part]) -> None:
    """Run the parts without results, several at a time; their logs are written to the output folder."""
    waiting = [part for part in parts if result_of(options, part) is None]
    running: dict[subprocess.Popen[bytes], Part] = {}
    while waiting or running:
        for process in [process for process in running if process.poll() is not None]:
            finish(options, running.pop(process), process.returncode)
        while waiting and len(running) < options.at_once:
            part = waiting.pop(0)
            shutil.rmtree(
                Path(options.output) / part.name, ignore_errors=True
            )  # a half one would resume, and look quick
            command, environment = command_of(options, part)
            with (Path(options.output) / f"{part.name}.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            running[process] = part
        time.sleep(0.2)


def spread(values: list[float], digits: int) -> str:
    """Mean and, of several, standard deviation."""
    deviation = f" ± {np.std(values, ddof=1):,.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):,.{digits}f}{deviation}"


def table(options: Asked, parts: list[Part]) -> Iterator[str]:
    """The lines of a Markdown table, one per size and method."""
    yield "| examples | method | unlabelled rows | accuracy | training, s | prediction, rows/s | memory, MiB |"
    yield "|---|---|---|---|---|---|---|"
    pool = sum(1 for _ in (Path(options.output) / "data" / "unlabeled.jsonl").open(encoding="utf-8"))
    for size, method in dict.fromkeys((part.size, part.method) for part in parts):
        each = [result_of(options, part) for part in parts if (part.size, part.method) == (size, method)]
        results = [result for result in each if result is not None]
        title, with_pool = METHODS[method]
        start = f"| {size} | {title} | {f'{pool:,}' if with_pool else 'none'} | "
        if not results:
            yield start + "not run | | | |"
            continue
        memory = f"{max(result['mib'] for result in results):,.0f}"
        if "gpu_mib" in results[0]:
            memory += f", GPU {max(result['gpu_mib'] for result in results):,.0f}"
        cells = [
            spread([100 * result["accuracy"] for result in results], 1),
            spread([result["training_seconds"] for result in results], 1),
            spread([result["rows_per_second"] for result in results], 0),
            memory,
        ]
        yield start + " | ".join(cells) + " |"


def show(options: Asked, parts: list[Part]) -> None:
    """Print what was compared, and the table."""
    results = [result for part in parts if (result := result_of(options, part)) is not None]
    versions = sorted({f"{name} {version}" for result in results for name, version in result["versions"].items()})
    device = "GPU" if any("gpu_mib" in result for result in results) else f"CPU, {options.threads} threads"
    settings = " ".join(
        options.settings + [f"setfit.{name}={value}" for name, value in options.setfit_settings.items()]
    )
    tests = sum(1 for _ in (Path(options.output) / "data" / "test.jsonl").open(encoding="utf-8"))
    print(f"AG's News, {tests:,} test rows; {options.model}, recipe {options.recipe} {settings}".rstrip())
    print(f"{device}; {', '.join(versions)}")
    if options.at_once > 1:
        print(f"{options.at_once} parts ran side by side: times, speeds and their ratios mean little.")
    print("\n".join(table(options, parts)), flush=True)


def setfit_way(python: str | None, site: str | None, cache: Path) -> list[str]:
    """The command that runs SetFit's Python; exits before any work if it cannot import SetFit."""
    chosen = python or (sys.executable if site else setfit_python(cache))
    environment = os.environ | python_path(site)
    tried = subprocess.run([chosen, "-c", "import setfit"], env=environment, capture_output=True, text=True)
    if tried.returncode:
        sys.exit(f"{chosen} cannot import setfit: {(tried.stderr.strip() or 'no reason given').splitlines()[-1]}")
    return [chosen]


def values_of(settings: list[str]) -> dict[str, Any]:
    """NAME=VALUE as SetFit's TrainingArguments take them: JSON where it is JSON, else text."""
    results: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            sys.exit(f"--setfit-set takes NAME=VALUE, not '{setting}'.")
        try:
            results[name] = json.loads(text)
        except ValueError:
            results[name] = text
    return results


def main(
    output: Annotated[str, typer.Option(help="Output folder; existing results are not computed again.")] = "runs",
    examples: Annotated[str, typer.Option(help="Sizes of T, separated by commas.")] = "10,50,100",
    methods: Annotated[
        str, typer.Option(help=f"Of {', '.join(METHODS)}.")
    ] = "setfit,setfit-long,pet-alone,pet,supervised",
    model: Annotated[str, typer.Option(help="The model: 'builtin', a folder, or a name of the hub.")] = "builtin",
    recipe: Annotated[str, typer.Option(help="clozify's recipe; its max_seq_length holds for SetFit too.")] = "paper",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
    setfit_settings: Annotated[
        list[str] | None, typer.Option("--setfit-set", help="NAME=VALUE of SetFit's TrainingArguments.")
    ] = None,
    steps: Annotated[int, typer.Option("--setfit-steps", help="The minimum number of steps of setfit-long.")] = 250,
    rows: Annotated[int, typer.Option(help="Test rows, evenly spread; 0 is all.")] = 0,
    unlabeled_rows: Annotated[int, typer.Option(help="Unlabelled rows, evenly spread; 0 is all.")] = 0,
    seeds: Annotated[int, typer.Option(help="Trainings of each method, from seed 42 on.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of every part.")] = os.cpu_count() or 1,
    at_once: Annotated[int, typer.Option(help="Parts at a time; times are not comparable then.")] = 1,
    cache: Annotated[Path, typer.Option(help="The folder of SetFit's environment.")] = Path("~/.cache/clozify-setfit"),
    python: Annotated[str | None, typer.Option("--setfit-python", help="A Python that has SetFit.")] = None,
    site: Annotated[str | None, typer.Option("--setfit-site", help="A folder with SetFit, for this Python.")] = None,
    one_part: Annotated[str | None, typer.Option("--part", hidden=True)] = None,
) -> None:
    """Run every method on the same rows and print a Markdown table."""
    if one_part:
        shared, which = json.loads(one_part)
        options, part = Asked(**shared), Part(**which)
        result = clozify_part(options, part)
        (Path(options.output) / part.name / "result.json").write_text(json.dumps(result), encoding="utf-8")
        return
    if not os.environ.get("CLOZIFY_AGNEWS_FOLDER"):
        sys.exit("Set CLOZIFY_AGNEWS_FOLDER to the folder with AG's News' files; see the top of this script.")
    chosen = methods.split(",")
    if unknown := [name for name in chosen if name not in METHODS]:
        sys.exit(f"There is no method {', '.join(unknown)}; there is {', '.join(METHODS)}.")
    options = Asked(
        output,
        model,
        recipe,
        settings or [],
        values_of(setfit_settings or []),
        rows,
        unlabeled_rows,
        threads,
        at_once,
        steps,
    )
    if any(name.startswith("setfit") for name in chosen):
        options.setfit_command, options.setfit_site = (
            setfit_way(python, site, cache),
            site and str(Path(site).resolve()),
        )
    sizes = [int(size) for size in examples.split(",")]
    parts = [Part(size, method, 42 + n) for size in sizes for method in chosen for n in range(seeds)]
    make_data(options, sizes)
    run_parts(options, parts)
    show(options, parts)
    sys.exit(any(result_of(options, part) is None for part in parts))


if __name__ == "__main__":
    typer.run(main)
