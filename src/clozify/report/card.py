"""Writes the model card: `README.md` in the classifier's folder, as the Hugging Face hub shows it.

Files of this machine appear by their names alone, without folders.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from clozify.models.builtin import builtin_folder, is_builtin
from clozify.report.findings import Findings
from clozify.report.format import percent
from clozify.report.run import RunRecord
from clozify.report.scores import LabelScore
from clozify.utils.atomic import atomic_write

CARD = "README.md"
TEMPLATES = Path(__file__).parent / "templates"
MAX_LABELS = 30  # with more labels, the card lists no scores of single labels


def write_card(run: RunRecord, findings: Findings) -> Path | None:
    """Write the card into the classifier's folder and return its path; None where the result is an ensemble."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    folder = run.folder / "classifier"
    if not run.has_classifier or not folder.is_dir():
        return None
    score, results = findings.main, None
    if score is not None:
        source = findings.rows["test"].source
        results = [
            EvalResult("text-classification", run.task.name, source, kind, round(value, 4), metric_name=name)
            for kind, value, name in (
                ("f1" if run.task.multilabel else "accuracy", score.accuracy, findings.task.headline),
                ("f1", score.macro_f1, "macro-F1"),
            )
        ]
    student = run.inputs.student
    metadata = ModelCardData(
        library_name="transformers" if run.metrics.static is None else "clozify",
        pipeline_tag="text-classification",
        tags=["clozify", "few-shot", "pattern-exploiting-training", run.method],
        base_model=student if is_hub_name(student) else None,
        model_name=run.task.name if results else None,
        metrics=(["f1"] if run.task.multilabel else ["accuracy", "f1"]) if results else None,
        eval_results=results,
    )
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"percent": percent, "plain": escape_markdown}
    text = environment.get_template("card.md").render(
        vars(findings),
        max_seq_length=run.recipe.max_seq_length,
        base=_model_title(student),
        teacher=_model_title(run.inputs.model),
        label_scores=_label_scores(findings),
        static=run.metrics.static,
    )
    card = ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n{text.strip()}\n", ignore_metadata_errors=True)
    path = folder / CARD
    with atomic_write(path) as tmp_path:
        card.save(tmp_path)
    return path


def is_hub_name(model: str) -> bool:
    """Whether a model was named by its name on the hub."""
    is_path = Path(model).exists() or Path(model).is_absolute() or model.count("/") > 1
    return not is_builtin(model) and not is_path


def _model_title(model: str) -> str:
    if is_builtin(model):
        return f"{builtin_folder(model).name}, which comes with clozify"
    return model if is_hub_name(model) else Path(model).name


def _label_scores(findings: Findings) -> list[LabelScore]:
    if findings.confusion is None or len(findings.task.labels) > MAX_LABELS:
        return []
    return findings.confusion.label_scores


def escape_markdown(text: object) -> str:
    """Text in one line that Markdown shows as it is, also in a table."""
    line = " ".join(str(text).split())
    for character in "\\`*_[]<>|#":
        line = line.replace(character, f"\\{character}")
    return line
