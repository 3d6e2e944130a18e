"""Several labels a row: PET, supervised training and simpler classifiers on NLU++ (hotels), 40 labels, 50 rows of T.

CLOZIFY_NLUPP names the file `rows.csv` with the columns fold (0 to 19), text and labels (`a|b|c`, empty for none).
Each fold of `--folds` is T once. By default the folds 0 to 9 are the unlabelled rows and the others, without T, the
test rows, so that settings could be chosen on the folds 0 to 9; with `--test others` all 19 other folds are test rows,
and there are no unlabelled ones. The thresholds of TF-IDF, pooled states and SetFit are their default, 0.5; clozify
chooses its own on T. Words are the labels' names, or with `--words own` one written by hand for each label.

    python benchmarks/multilabel.py --folds 10,11,12 --methods tfidf,pooled,supervised,pet-alone,pet

A line of JSON is printed for each fold and method, and one with the means at the end. For clozify it also says whether
the 95% intervals that were estimated from T hold the figures, and how many of the sets of `--sets 0.9` have all true
labels. SetFit takes an environment that
has it: `--setfit-python PYTHON`, or `--setfit-site FOLDER` (see `setfit_comparison.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

import clozify
from clozify.config.task import Task
from clozify.inference.training import TrainResult
from clozify.metrics import basic_metrics

HERE = Path(__file__).resolve().parent
SET_LEVEL = 0.9
METHODS = ("tfidf", "pooled", "setfit", "supervised", "pet-alone", "pet", "ipet")
PATTERNS = [
    "{text} This is about {mask}.",
    "{mask}: {text}",
    "{text} Topic: {mask}.",
    "Question about {mask}: {text}",
]
WORDS = {  # what differs from the labels' names
    "accesibility": "access",
    "acknowledge": "okay",
    "affirm": "yes",
    "cancel_close_leave_freeze": "cancel",
    "check_in": "arrival",
    "check_out": "departure",
    "deny": "no",
    "dont_know": "unknown",
    "end_call": "goodbye",
    "greet": "hello",
    "handoff": "agent",
    "housekeeping": "cleaning",
    "how_long": "duration",
    "how_much": "price",
    "less_lower_before": "less",
    "limits": "limit",
    "lost_stolen": "lost",
    "make_open_apply_setup_get_activate": "make",
    "more_higher_after": "more",
    "pets": "dog",
    "refund": "money",
    "repeat": "again",
    "request_info": "information",
    "room_ammenities": "room",
    "room_service": "service",
    "swimming_pool": "swimming",
    "thank": "thanks",
    "wifi": "wireless",
    "wrong_notworking_notshowing": "wrong",
}


def make_task(labels: list[str], words: str) -> Task:
    """The task with the labels' names as words, or with words written by hand."""
    names = {label: label.replace("_", " ") for label in labels}
    own = {label: WORDS.get(label, label) for label in labels}
    return clozify.load_task(
        {
            "name": "hotels",
            "fields": ["text"],
            "multilabel": True,
            "patterns": PATTERNS,
            "labels": names if words == "names" else own,
        }
    )


def split(frame: pd.DataFrame, fold: int, test: str) -> tuple[pd.DataFrame, pd.DataFrame | None, pd.DataFrame]:
    """T, the unlabelled rows and the test rows of a fold."""
    labeled = frame[frame["fold"] == fold]
    if test == "others":
        return labeled, None, frame[frame["fold"] != fold]
    others = frame[frame["fold"] != fold]
    return labeled, others[others["fold"] < 10][["text"]], others[others["fold"] >= 10]


def matrix(frame: pd.DataFrame, labels: list[str]) -> NDArray[np.int8]:
    """The rows' labels as 0 and 1."""
    sets = [set(text.split("|")) for text in frame["label"]]
    return np.array([[label in names for label in labels] for names in sets], dtype=np.int8)


def fit_regressions(train: Any, targets: NDArray[np.int8], test: Any) -> NDArray[np.int8]:
    """One logistic regression for each label that some rows have, at its default threshold."""
    from sklearn.linear_model import LogisticRegression

    predicted = np.zeros((test.shape[0], targets.shape[1]), dtype=np.int8)
    for label in np.flatnonzero(targets.any(axis=0)):
        classifier = LogisticRegression(C=10.0, max_iter=1_000).fit(train, targets[:, label])
        predicted[:, label] = classifier.predict(test)
    return predicted


def pooled_states(model: Any, texts: list[str]) -> NDArray[np.float32]:
    """The mean of each text's last hidden states, with unit length: (texts, hidden)."""
    import torch

    tokenizer, vectors = model.tokenizer.hf_tokenizer, []
    for start in range(0, len(texts), 64):
        inputs = tokenizer(texts[start : start + 64], padding=True, truncation=True, max_length=64, return_tensors="pt")
        inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        with torch.inference_mode():
            states = model.model.base_model(**inputs)[0].float()
        mask = inputs["attention_mask"][..., None]
        vectors.append(((states * mask).sum(dim=1) / mask.sum(dim=1)).cpu().numpy())
    stacked = np.concatenate(vectors)
    return np.asarray(stacked / np.linalg.norm(stacked, axis=1, keepdims=True), dtype=np.float32)


def run_setfit(command: list[str], site: str | None, job: dict[str, Any]) -> dict[str, Any]:
    """SetFit with a logistic regression for each label, in its own environment."""
    folder = Path(job["folder"])
    for name in ("labeled", "test"):
        content = "".join(json.dumps(row) + "\n" for row in job[name])
        (folder / f"{name}.jsonl").write_text(content, encoding="utf-8")
        job[name] = str(folder / f"{name}.jsonl")
    job["result"] = str(folder / "result.json")
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if site:
        environment["PYTHONPATH"] = site
    subprocess.run(
        [*command, "-P", str(HERE / "setfit_worker.py"), str(folder / "job.json")], check=True, env=environment
    )
    result: dict[str, Any] = json.loads(Path(job["result"]).read_text(encoding="utf-8"))
    return result


def measure_estimate(trained: TrainResult, test: pd.DataFrame, truth: NDArray[np.int8]) -> dict[str, float]:
    """Whether the estimated intervals hold the figures on the test rows, and what prediction sets contain."""
    estimate, result = trained.metrics.estimate, trained.metrics.result
    if estimate is None or result is None:
        return {}
    assert result.micro_f1 is not None
    assert result.accuracy is not None
    micro_f1, low, high = estimate.main
    sets = clozify.predict(trained.run, test, sets=SET_LEVEL).answers.sets
    assert sets is not None
    return {
        "estimated_micro_f1": micro_f1,
        "micro_f1_covered": float(low <= result.micro_f1 <= high),
        "estimated_accuracy": estimate.accuracy,
        "accuracy_covered": float(estimate.low <= result.accuracy <= estimate.high),
        "sets_with_all_labels": float((sets | (truth == 0)).all(axis=1).mean()),
        "labels_in_a_set": float(sets.sum(axis=1).mean()),
    }


def measure(method: str, task: Task, data: tuple[Any, Any, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The metrics of one method on one fold."""
    labeled, unlabeled, test = data
    truth, targets = matrix(test, task.labels), matrix(labeled, task.labels)
    if method == "tfidf":
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
        train_vectors = vectorizer.fit_transform(labeled["text"])
        predicted = fit_regressions(train_vectors, targets, vectorizer.transform(test["text"]))
        return basic_metrics(truth, predicted, len(task.labels)).model_dump()
    if method == "pooled":
        model = clozify.load_model(options["model"])
        vectors = [pooled_states(model, list(part["text"])) for part in (labeled, test)]
        predicted = fit_regressions(vectors[0], targets, vectors[1])
        return basic_metrics(truth, predicted, len(task.labels)).model_dump()
    folder = Path(tempfile.mkdtemp(prefix="multilabel"))
    try:
        if method == "setfit":
            from clozify.models.loading import model_path

            rows = [
                [
                    {"text": text, "label": row.tolist()}
                    for text, row in zip(part["text"], matrix(part, task.labels), strict=True)
                ]
                for part in (labeled, test)
            ]
            job: dict[str, Any] = {
                "folder": str(folder),
                "model": options["setfit_model"] or model_path(options["model"]),
                "max_length": 64,
                "labeled": rows[0],
                "test": rows[1],
                "settings": {},
                "least_steps": 0,
                "seed": 42,
                "multi_target_strategy": "one-vs-rest",
            }
            return run_setfit(options["setfit_command"], options["setfit_site"], job)
        trained = clozify.train(
            task,
            labeled=labeled,
            unlabeled=unlabeled if method in ("pet", "ipet") else None,
            test=test,
            method="pet" if method == "pet-alone" else method,
            model=options["model"],
            settings=options["settings"],
            output=folder / "run",
            devices=options["device"],
        )
        result = trained.metrics
        assert result.result is not None
        names = ("accuracy", "macro_f1", "micro_f1")
        values = {name: getattr(result.result, name) for name in names}
        if result.ensemble is not None:
            values["ensemble_micro_f1"] = result.ensemble.micro_f1
        if result.unsupervised is not None:
            values["untrained_micro_f1"] = result.unsupervised.micro_f1
        return values | measure_estimate(trained, test, truth)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(
    folds: Annotated[str, typer.Option(help="The folds that are T in turn, with commas.")] = "10,11,12",
    methods: Annotated[str, typer.Option(help="The methods, with commas.")] = "tfidf,pooled,supervised,pet-alone,pet",
    model: Annotated[str, typer.Option(help="The masked language model.")] = "builtin",
    words: Annotated[str, typer.Option(help="names or own.")] = "names",
    test: Annotated[str, typer.Option(help="halves, or others for all other folds.")] = "halves",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe auto.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, or GPUs as clozify train takes them.")] = "auto",
    setfit_python: Annotated[str | None, typer.Option(help="A Python that has SetFit.")] = None,
    setfit_site: Annotated[str | None, typer.Option(help="A folder that SetFit was installed into.")] = None,
    setfit_model: Annotated[str | None, typer.Option(help="Another model for SetFit.")] = None,
) -> None:
    """Measure every method on every fold."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    frame = pd.read_csv(os.environ["CLOZIFY_NLUPP"], keep_default_na=False).rename(columns={"labels": "label"})
    labels = sorted({name for text in frame["label"] for name in text.split("|") if name})
    task = make_task(labels, words)
    options = {
        "model": model,
        "settings": settings or [],
        "device": "auto" if device == "cpu" else device,
        "setfit_command": [setfit_python or sys.executable],
        "setfit_site": setfit_site,
        "setfit_model": setfit_model,
    }
    results: dict[str, list[dict[str, float]]] = {}
    for fold in map(int, folds.split(",")):
        data = split(frame, fold, test)
        for method in methods.split(","):
            if method not in METHODS:
                sys.exit(f"There is no method '{method}'; there is {', '.join(METHODS)}.")
            if method in ("pet", "ipet") and data[1] is None:
                continue
            began = time.perf_counter()
            values = measure(method, task, data, options)
            seconds = round(time.perf_counter() - began, 1)
            results.setdefault(method, []).append({name: v for name, v in values.items() if isinstance(v, float)})
            line = {"fold": fold, "method": method, "labeled": len(data[0]), "test": len(data[2]), "seconds": seconds}
            print(json.dumps(line | values), flush=True)
    means = {
        method: {
            name: [round(float(np.mean(v)), 4), round(float(np.std(v, ddof=1)), 4) if len(v) > 1 else 0.0]
            for name in of_method[0]
            for v in [[each[name] for each in of_method]]
        }
        for method, of_method in results.items()
    }
    print(json.dumps({"mean and standard deviation over the folds": means, "words": words, "model": model}))


if __name__ == "__main__":
    typer.run(main)
