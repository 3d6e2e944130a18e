"""The model card: `README.md` in the classifier's folder, as the Hugging Face hub shows it.

In: a run and its findings. Out: a card with the task, the data's sizes, patterns, numbers, recipe, how to use it, and
its limits. Of files on this machine only their names are told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from clozify.models.cloze import BUILTIN
from clozify.report.run import Run
from clozify.report.svg import percent
from clozify.utils.atomic import atomic_write

CARD = "README.md"
TEMPLATES = Path(__file__).parent / "templates"
MANY = 30  # labels whose numbers are listed


def write_card(run: Run, found: dict[str, Any]) -> Path | None:
    """Write the card beside the classifier's weights; where the result is an ensemble, there is none."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    folder = run.folder / "classifier"
    if run.result == "ensemble" or not folder.is_dir():
        return None
    name, main = run.task.name, found["main"]
    results = None
    if main is not None:
        test = found["rows"]["test"]["source"]
        results = [
            EvalResult("text-classification", name, test, kind, round(main[key], 4), metric_name=said)
            for kind, key, said in (("accuracy", "accuracy", "accuracy"), ("f1", "macro_f1", "macro-F1"))
        ]
    student = str(run.described["student"])
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-classification",
        tags=["clozify", "few-shot", "pattern-exploiting-training", run.method],
        base_model=student if is_hub_name(student) else None,
        model_name=name if results else None,
        metrics=["accuracy", "f1"] if results else None,
        eval_results=results,
    )
    made = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True)
    made.filters |= {"percent": percent, "plain": plain}
    text = made.get_template("card.md").render(
        found,
        length=run.described["recipe"]["max_seq_length"],
        base=_named(student),
        teacher=_named(found["run"]["model"]),
        by_label=_by_label(found),
        fields=run.task.fields,
    )
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text.strip()}\n", ignore_metadata_errors=True)
    place = folder / CARD
    with atomic_write(place) as tmp_path:
        card.save(tmp_path)
    return place


def is_hub_name(model: str) -> bool:
    """Whether a model was named by its place on the hub."""
    return model != "builtin" and not Path(model).exists() and not Path(model).is_absolute() and model.count("/") <= 1


def _named(model: str) -> str:
    if model == "builtin":
        return f"{BUILTIN.name}, which comes with clozify"
    return model if is_hub_name(model) else Path(model).name


def _by_label(found: dict[str, Any]) -> list[dict[str, Any]]:
    if found["confusion"] is None or len(found["task"]["labels"]) > MANY:
        return []
    return list(found["confusion"]["by_label"])


def plain(text: object) -> str:
    """Text that Markdown shows as it is, within a line of a table."""
    shown = " ".join(str(text).split())
    for mark in "\\`*_[]<>|#":
        shown = shown.replace(mark, f"\\{mark}")
    return shown
