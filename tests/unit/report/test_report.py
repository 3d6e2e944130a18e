"""The report's page from hand-made run folders: any number of labels, any text, no test set, no unlabelled rows."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.special import softmax
from scipy.stats import binomtest

from clozify import report
from clozify.config.recipe import Recipe
from clozify.config.task import Task
from clozify.data.rows import read_rows
from clozify.errors import ClozifyError
from clozify.methods.ensemble import combine_scores
from clozify.metrics import BasicMetrics, basic_metrics, detailed_metrics
from clozify.report.findings import collect_findings
from clozify.report.format import duration
from clozify.report.page import pattern_parts, report_page
from clozify.report.run import RunRecord
from clozify.report.terminal import show_run, show_warnings
from clozify.report.write import compare, write_report
from clozify.runs.context import RunContext
from clozify.runs.keys import hash_key
from clozify.runs.metrics import ClassifierMetrics

STYLE = (Path(report.__file__).parent / "templates" / "style.css").read_text()


def made(folder, labels=3, pairs=3, tested=True, names=None, odd=None, method="pet", text="a row", groups=None):
    """A run as training leaves it, with random scores; pair `odd` says something else than the others."""
    names = names or [f"label {number}" for number in range(labels)]
    words = {name: (f"w{number}",) for number, name in enumerate(names)}
    patterns = [f"P{number} {{mask}} {{text}}" for number in range(pairs)]
    task = Task(name="made", fields=["text"], patterns=patterns, verbalizers=[{"words": words}], groups=groups or {})
    rng, rows = np.random.default_rng(0), 60
    truth = rng.integers(len(names), size=rows)
    shared = 3 * np.eye(len(names))[truth] + rng.normal(size=(rows, len(names)))
    members, each = [], []
    for number, pair in enumerate(task.pairs):
        scores = (rng.permutation(shared) if number == odd else shared) + rng.normal(size=shared.shape)
        run_path = folder / "members" / f"key{number}"
        run_path.mkdir(parents=True)
        np.save(run_path / "unlabeled.npy", scores.astype(np.float32))
        np.save(run_path / "test.npy", scores.astype(np.float32))
        (run_path / "member.json").write_text(json.dumps({"seconds": 2.0, "training_seconds": 1.5}))
        members.append({"member": run_path.name, "pair": pair.name, "seed": 1, "weight": 0.5})
        each.append(
            {
                "pair": pair.name,
                "seed": 1,
                "job": f"members/{run_path.name}",
                **basic_metrics(truth, scores.argmax(axis=1), len(names)).model_dump(),
            }
        )
    shares = softmax(shared, axis=-1)
    frame = {"id": range(rows), "label": [names[n] for n in shares.argmax(axis=1)]}
    frame |= {f"probability_{name}": shares[:, n] for n, name in enumerate(names)}
    pd.DataFrame(frame).to_parquet(folder / "labels.parquet")
    kinds = {"labeled": 6, "unlabeled": rows} | ({"test": rows} if tested else {})
    described = {
        "clozify": "0", "torch": "0", "method": method, "model": "builtin", "student": "builtin",
        "task": task.model_dump(), "recipe": Recipe().model_dump(),
        "data": {kind: {"rows": n, "texts": "?", "source": f"nowhere/{text}.csv"} for kind, n in kinds.items()},
    }  # fmt: skip
    described = json.loads(json.dumps(described))
    metrics = {"warnings": [], "rows": kinds, "run": hash_key(**described), "method": method}
    metrics |= {"task": task.name, "model": "builtin", "recipe": "paper"}
    metrics["untrained"] = {"accuracy_on_labeled": [0.5] * pairs, "job": "before"}
    (folder / "untrained" / "before").mkdir(parents=True)
    (folder / "untrained" / "before" / "untrained.json").write_text('{"seconds": 1.0}')
    if tested:
        result = [basic_metrics(truth, truth, len(names)).model_dump()] * pairs
        metrics["unsupervised"] = {"accuracy": 0.5, "macro_f1": 0.5, "best": 1.0, "pairs": result}
        pair_metrics = {line["pair"]: {key: line[key] for key in ("accuracy", "macro_f1")} for line in each}
        metrics["members"] = {"accuracy": 0.5, "macro_f1": 0.4, "min": 0.4, "max": 0.6}
        metrics["members"] |= {"each": each, "pairs": pair_metrics}
        metrics["ensemble"] = detailed_metrics(truth, shares, names, task.label_groups).model_dump()
        metrics["trivial"] = {"majority": {"accuracy": 0.4, "macro_f1": 0.1}, "majority_label": names[0]}
        metrics["trivial"]["tfidf"] = {"accuracy": 0.6, "macro_f1": 0.5}
    (folder / "run.json").write_text(json.dumps(described))
    (folder / "ensemble.json").write_text(json.dumps({"weights": members}))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return RunRecord.load(folder)


@pytest.mark.parametrize("labels", [2, 20, 21, 150, 1200])
def test_a_page_stays_readable_with_any_number_of_labels(tmp_path, labels):
    """150 labels as a matrix are 22,500 cells that nobody can read and a phone cannot show."""
    findings = collect_findings(made(tmp_path, labels))
    page = report_page(findings)
    assert ('aria-label="Confusion matrix"' in page) == (labels <= 20)
    assert ("most often confused" in page) or labels <= 20
    assert len(page) < (150_000 if labels <= 150 else 400_000)
    assert ('class="sortable' in page) == ("<script>" in page) == (labels > 20)
    assert len(findings.confusion.label_scores) == min(labels, 1000)
    assert findings.confusion.truncated == (labels > 1000)


def test_the_script_that_sorts_is_the_only_one_that_the_page_allows(tmp_path):
    page = report_page(collect_findings(made(tmp_path, 30)))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert not re.search(r"https?:|<link|<img|src=|@import|url\(", page)


@pytest.mark.parametrize("labels", [4, 30, 120])
def test_both_levels_of_a_task_with_groups_are_reported(tmp_path, labels):
    names = [f"label {number}" for number in range(labels)]
    groups = {"even": names[::2], "third": names[1:4:2]}
    run = made(tmp_path, labels, groups=groups)
    findings = collect_findings(run)
    scores, metrics = findings.confusion.groups, run.metrics.ensemble.groups
    assert scores.accuracy >= findings.confusion.groups.accuracy == metrics.accuracy
    assert scores.errors == round(60 * (1 - run.metrics.ensemble.accuracy))
    assert scores.errors_across == round(60 * (1 - metrics.accuracy))
    page = report_page(findings)
    assert 'id="groups"' in page
    assert f"{scores.errors_across} of the {scores.errors} errors leave the group" in page
    console = Console(file=io.StringIO(), width=200)
    show_run(console, run.metrics)
    assert f"{scores.errors_across} of {scores.errors} errors leave the group" in console.file.getvalue()


def test_the_most_confused_labels_come_first_with_their_groups(tmp_path):
    run = made(tmp_path, 120, groups={"low": [f"label {number}" for number in range(60)]})
    confused = [("label 3", "label 99", 4), ("label 7", "label 8", 2)]
    ensemble = run.metrics.ensemble.model_copy(update={"confused": confused})
    run = replace(run, metrics=run.metrics.model_copy(update={"ensemble": ensemble}))
    worst = collect_findings(run).confusion.worst
    assert [(pair.true, pair.predicted, pair.rows) for pair in worst] == confused
    assert [pair.groups for pair in worst] == [("low", "label 99"), ("low", "low")]


def test_what_comes_from_data_cannot_become_markup(tmp_path):
    """An unlabelled row is anybody's text; in a page that colleagues open it would run as theirs."""
    evil = "<script>alert(1)</script>\"'&"
    run = made(tmp_path, names=[evil, "b", "مرحبا"], text=evil)
    run.metrics.warnings.append(evil)
    page = report_page(collect_findings(run))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<bdi>مرحبا</bdi>" in page or 'dir="auto">مرحبا' in page


def test_a_page_needs_nothing_from_outside(tmp_path):
    page = report_page(collect_findings(made(tmp_path)))
    assert not re.search(r"https?:|<script|<link|<img|src=|@import|url\(", page)


def test_every_drawing_and_every_table_that_scrolls_has_a_text(tmp_path):
    page = report_page(collect_findings(made(tmp_path)))
    drawings = re.findall(r"<svg[^>]*>", page)
    assert drawings
    assert all('aria-label="' in drawing and 'role="img"' in drawing for drawing in drawings)
    assert all('aria-label="' in region for region in re.findall(r'<div class="scroll"[^>]*>', page))


def test_a_pattern_that_agrees_with_no_other_is_pointed_out(tmp_path):
    """Without a test set there is no other sign of a pattern that asks the wrong question."""
    agreement = collect_findings(made(tmp_path, pairs=4, odd=2, tested=False)).agreement
    assert agreement.outliers == ["p3"]
    matrix = np.array(agreement.matrix)
    assert np.allclose(matrix, matrix.T)
    assert agreement.means[2] < min(agreement.means[n] for n in (0, 1, 3))


def test_a_pattern_that_max_pairs_left_out_is_shown_as_not_trained(tmp_path):
    made(tmp_path, pairs=3)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    metrics["members"]["each"] = metrics["members"]["each"][1:]  # p1 has no member
    ensemble = json.loads((tmp_path / "ensemble.json").read_text())
    ensemble["weights"] = ensemble["weights"][1:]
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "ensemble.json").write_text(json.dumps(ensemble))
    page = write_report(tmp_path)[0].read_text()
    assert page.count("not trained") == 1


def test_without_a_test_set_the_page_says_so_and_shows_the_rest(tmp_path):
    page = report_page(collect_findings(made(tmp_path, tested=False)))
    assert "The run had no test rows" in page
    assert 'id="agreement"' in page
    assert 'id="numbers"' not in page


def test_rows_that_cannot_be_read_again_are_shown_by_id_with_the_reason(tmp_path):
    following = collect_findings(made(tmp_path)).next
    assert len(following.rows) == 10
    assert all(row.texts == [] for row in following.rows)
    assert "does not exist" in following.problem


def test_every_accuracy_has_its_wilson_interval_and_stands_next_to_trivial_baselines(tmp_path):
    """A number without a yardstick says nothing: 60% may be less than a bag of words reaches."""
    findings = collect_findings(made(tmp_path))
    assert [score.name for score in findings.numbers][-2:] == ["TF-IDF, logistic regression", "always 'label 0'"]
    for score in findings.numbers:
        expected = binomtest(round(score.accuracy * 60), 60).proportion_ci(method="wilson")
        if abs(score.accuracy * 60 - round(score.accuracy * 60)) < 1e-9:
            assert score.interval == pytest.approx((expected.low, expected.high), abs=1e-6)
    page = report_page(findings)
    assert "TF-IDF, logistic regression" in page
    assert "always &#39;label 0&#39;" in page
    assert "95% interval" in page
    assert not collect_findings(made(tmp_path / "untested", tested=False)).numbers


def test_the_most_confident_errors_are_shown_with_their_text_which_cannot_become_markup(tmp_path):
    run = made(tmp_path, labels=2)
    scores = combine_scores([np.load(path) for path in sorted(tmp_path.glob("members/*/test.npy"))], [1.0] * 3)
    wrong = np.argsort(-np.abs(scores[:, 0] - scores[:, 1]))[:25]
    truth = scores.argmax(axis=1)
    truth[wrong] = 1 - truth[wrong]
    texts = [f"<b>text</b> {number} " + "long " * 200 for number in range(len(truth))]
    frame = {"text": texts, "label": [run.task.labels[index] for index in truth]}
    pd.DataFrame(frame).to_csv(tmp_path / "test.csv", index=False)
    test = read_rows(tmp_path / "test.csv", run.task)
    findings = collect_findings(run, {"test": test})
    assert findings.wrong.total == 25
    assert [row.texts[0].split()[1] for row in findings.wrong.rows] == [str(index) for index in wrong[:20]]
    assert all(len(row.texts[0]) < 410 for row in findings.wrong.rows)
    page = report_page(findings)
    assert "The 20 most confident of 25 errors" in page
    assert "&lt;b&gt;text&lt;/b&gt;" in page
    assert "<b>" not in page


def test_test_rows_that_cannot_be_read_again_are_counted_with_the_reason(tmp_path):
    wrong = collect_findings(made(tmp_path)).wrong
    assert wrong.rows == []
    assert "does not exist" in wrong.problem


def test_the_report_says_what_to_do_next(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    steps = " ".join(collect_findings(made(tmp_path / "a", tested=False)).steps)
    assert "--test" in steps
    run = made(tmp_path / "b", labels=2, pairs=4, odd=2)
    trivial = run.metrics.trivial.model_copy(update={"tfidf": BasicMetrics(accuracy=1.0, macro_f1=1.0)})
    run = replace(run, metrics=run.metrics.model_copy(update={"trivial": trivial}))
    steps = collect_findings(run).steps
    assert "TF-IDF" in steps[0]
    assert any("Reword or remove p3" in step for step in steps)
    assert len(steps) <= 5


def test_what_more_labels_bring_is_told_where_the_accuracy_is_measured_or_estimated(tmp_path):
    run = made(tmp_path, tested=False)  # with 6 labelled rows

    def step():
        return next(step for step in collect_findings(run).steps if step.startswith("Label more rows"))

    assert "points" not in step()
    record = {"rows": 0, "folds": 5, "low": 0, "high": 1, "temperature": 1}
    record |= {"confidence": [], "correct": [], "true_probability": []}
    (tmp_path / "reliability.json").write_text(json.dumps(record | {"accuracy": 0.9}))
    assert f"{100 * (0.1 - 0.1 * (6 / 26) ** 0.15):+.1f} points" in step()
    (tmp_path / "reliability.json").write_text(json.dumps(record | {"accuracy": 0.99}))
    assert "only if small gains count" in step()


def test_a_legend_explains_only_what_is_on_the_page(tmp_path):
    page = report_page(collect_findings(made(tmp_path)))
    assert "Whiskers" in page  # of the patterns
    assert "standard deviation" not in page  # a single training
    run = made(tmp_path / "supervised", method="supervised")
    metrics = run.metrics.model_copy(
        update={"unsupervised": None, "members": None, "ensemble": None, "supervised": classifier_metrics(run)}
    )
    page = report_page(collect_findings(replace(run, metrics=metrics)))
    assert "Whiskers" not in page


def classifier_metrics(run):
    ensemble = run.metrics.ensemble.model_dump()
    return ClassifierMetrics(jobs=["j"], accuracy_std=0.0, accuracy_each=[ensemble["accuracy"]], **ensemble)


@pytest.mark.parametrize(("lost", "is_told"), [(0.02, False), (0.05, True)])
def test_a_static_classifier_that_loses_much_to_its_transformer_is_pointed_out(tmp_path, lost, is_told):
    run = made(tmp_path)
    static = classifier_metrics(run).model_copy(update={"accuracy": 0.8})
    transformer = static.model_copy(update={"accuracy": 0.8 + lost})
    run = replace(run, metrics=run.metrics.model_copy(update={"classifier": transformer, "static": static}))
    page = report_page(collect_findings(run))
    assert ("The static classifier is 5.0 points less accurate" in page) == is_told


def test_columns_of_the_confusion_matrix_are_named(tmp_path):
    page = report_page(collect_findings(made(tmp_path, names=["sad", "glad"])))
    header = re.search(r'<table class="heat named">.*?</thead>', page, re.S)[0]
    assert re.findall(r"<bdi>(\w+)</bdi>", header) == ["sad", "glad"]


def test_escaped_braces_of_a_pattern_are_words_not_fields():
    assert pattern_parts("{{7*7}} {mask} || {text:no_final_punctuation}") == [
        ("words", "{7*7} "), ("mask", "____"), ("border", "||"), ("field", "text:no_final_punctuation"),
    ]  # fmt: skip


def test_seconds_are_those_of_the_jobs_whenever_they_were_done(tmp_path):
    """A resumed run that counted its last start alone would promise others a run in minutes."""
    costs = collect_findings(made(tmp_path, pairs=4)).costs
    assert [stage.seconds for stage in costs.stages] == [1.0, 8.0]
    assert costs.total == 9.0
    assert [duration(s) for s in (None, 1.23, 59.6, 61, 3600, 7500)] == [
        "not recorded", "1.2 s", "60 s", "1 min 01 s", "1 h 00 min", "2 h 05 min",
    ]  # fmt: skip


def test_a_run_that_was_started_again_and_has_not_finished_is_not_reported(tmp_path):
    """The numbers of one run under the settings of another would be believed."""
    made(tmp_path)
    described = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(described | {"method": "ipet"}))
    with pytest.raises(ClozifyError, match="has not finished"):
        write_report(tmp_path)
    (tmp_path / "metrics.json").unlink()
    with pytest.raises(ClozifyError, match="has not finished"):
        write_report(tmp_path)
    with pytest.raises(ClozifyError, match="holds no run"):
        write_report(tmp_path / "members")


def test_runs_measured_on_other_rows_are_not_set_against_each_other(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
        made(tmp_path / name, labels=2 if name == "c" else 3)
    described = json.loads((tmp_path / "b" / "run.json").read_text())
    described["data"]["test"]["texts"] = "others"
    (tmp_path / "b" / "run.json").write_text(json.dumps(described))
    metrics = json.loads((tmp_path / "b" / "metrics.json").read_text()) | {"run": hash_key(**described)}
    (tmp_path / "b" / "metrics.json").write_text(json.dumps(metrics))
    result = compare([tmp_path / name for name in "abc"], tmp_path / "page.html")
    assert [run.difference is None for run in result.runs] == [True, True, False]
    assert any("same test rows" in note for note in result.notes)
    described["method"] = "supervised"
    (tmp_path / "b" / "run.json").write_text(json.dumps(described))
    (tmp_path / "b" / "metrics.json").write_text(json.dumps(metrics | {"run": hash_key(**described)}))
    with pytest.raises(ClozifyError, match="cannot be compared"):
        write_report(tmp_path / "a", baseline=tmp_path / "b")
    assert (tmp_path / "page.html").read_text().count("<section") >= 2


def luminance(colour: tuple[float, ...]) -> float:
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_in_light_and_dark(scheme):
    """4.5 to 1 is what WCAG asks of text; below, some readers see none."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    names = dict(re.findall(r"--([\w-]+):\s*(#\w{6}|\d+%)", blocks[scheme == "dark"]))
    colour = {k: tuple(int(v[n : n + 2], 16) / 255 for n in (1, 3, 5)) for k, v in names.items() if v[0] == "#"}
    most = int(names["most"][:-1]) / 100
    hot = tuple(most * a + (1 - most) * b for a, b in zip(colour["heat"], colour["back"], strict=True))
    pairs = [(colour[a], colour[b]) for a in ("ink", "soft", "own") for b in ("back", "panel")]
    for text, ground in [*pairs, (colour["ink"], hot), (colour["warn"], colour["warn-back"])]:
        light, dark = sorted((luminance(text), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_a_warning_that_occurs_often_is_printed_once_with_a_count():
    console = Console(file=io.StringIO(), width=200)
    show_warnings(console, ["one", "two", "one", "one"])
    assert console.file.getvalue().splitlines() == ["note: one (3 times)", "note: two"]
    lines = []
    context = RunContext("cpu", lines.append)
    for _ in range(3):
        context.warn("again")
    assert (context.warnings, lines) == (["again"], ["note: again"])
