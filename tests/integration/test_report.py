"""Reports, suggestions and cards of real runs with a tiny model, and the page in a real browser."""

import json
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from clozify.errors import ClozifyError
from clozify.inference.suggest import suggest
from clozify.inference.training import train
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.report.findings import collect_findings
from clozify.report.page import report_page
from clozify.report.write import write_report
from clozify.runs.keys import hash_key
from clozify.utils import libraries
from tests.integration.conftest import SETTINGS, TASK
from tests.unit.report.test_report import made

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
EVIL = "<script>alert(1)</script> is no program"
HEBREW = "שלום עולם, תוכנה טובה"
QUICK = [*SETTINGS, "repetitions=1", "finetune_without_lm.max_steps=2", "distill.max_steps=2", "supervised.max_steps=2"]
QUICK += ["language_modeling=false", "uda.max_steps=2", "mixtext.max_steps=2", "augment.method=rewriting"]


@pytest.fixture(scope="module")
def path(tmp_path_factory, tiny_folder):
    """A task, its files, odd texts among them, and a run by PET and by supervised training in one folder."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "task.toml").write_text(TASK)
    frame = pd.DataFrame([(1 + n % 2, f"{'fine game' if n % 3 else 'slow tool'} number {n}") for n in range(40)])
    frame.columns = ["label", "text"]
    frame[:6].to_csv(folder / "labeled.csv", index=False)
    unlabeled_rows = [EVIL, HEBREW, *frame["text"][6:24]]
    pd.DataFrame({"text": unlabeled_rows}).to_csv(folder / "unlabeled.csv", index=False)
    frame[24:].to_csv(folder / "test.csv", index=False)
    inputs = options(folder, tiny_folder)
    train(output=folder / "run", **inputs)
    train(output=folder / "run", **(inputs | {"method": "supervised"}))
    return folder


def options(folder, tiny_folder, **changes):
    return {
        "task": folder / "task.toml",
        "labeled": folder / "labeled.csv",
        "unlabeled": folder / "unlabeled.csv",
        "test": folder / "test.csv",
        "model": str(tiny_folder("bert")),
        "recipe": "paper",
        "settings": QUICK,
    } | changes


def command(monkeypatch, capsys, *words):
    from clozify import cli

    monkeypatch.setattr(sys, "argv", ["clozify", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr()
    assert not end.value.code, shown.err
    return shown.out


def test_a_run_ends_with_its_report_and_the_other_methods_of_the_same_folder_are_compared(path):
    baseline = (path / "run" / "methods" / "supervised" / "report.html").read_text()
    assert "for comparison: PET" in baseline
    write_report(path / "run")
    page = (path / "run" / "report.html").read_text()
    for part in ("task", "numbers", "patterns", "agreement", "soft-labels", "confusion", "next", "costs"):
        assert f'id="{part}"' in page
    assert "for comparison: supervised training" in page
    assert "<script" not in page


def test_the_report_can_be_written_again_with_the_rows_read_anew(path, monkeypatch, capsys):
    result = json.loads(command(monkeypatch, capsys, "report", path / "run", "--json"))
    texts = [text for row in result["next"]["rows"] for text in row["texts"]]
    assert len(texts) == 10
    assert result["next"]["problem"] is None
    assert set(texts) <= set(pd.read_csv(path / "unlabeled.csv")["text"])


def test_test_rows_that_were_relabelled_since_are_not_shown_as_errors_of_the_run(path, tmp_path):
    shutil.copytree(path / "run", tmp_path / "run")
    assert write_report(tmp_path / "run")[1].wrong.problem is None
    test = pd.read_csv(path / "test.csv")
    original = test.copy()
    try:
        test.loc[0, "label"] = 3 - test.loc[0, "label"]
        test.to_csv(path / "test.csv", index=False)
        _, findings = write_report(tmp_path / "run")
    finally:
        original.to_csv(path / "test.csv", index=False)
    assert "labels of the data" in findings.wrong.problem
    assert findings.wrong.rows == []


def test_unlabelled_data_that_has_changed_is_not_shown_for_what_it_was(path, tmp_path):
    """Scores beside the text of another row would send people after phantoms."""
    shutil.copytree(path / "run", tmp_path / "run")
    described = json.loads((path / "run" / "run.json").read_text())
    unlabeled_rows = pd.read_csv(path / "unlabeled.csv")
    unlabeled_rows.loc[3, "text"] = "something else"
    unlabeled_rows.to_csv(tmp_path / "changed.csv", index=False)
    described["data"]["unlabeled"]["source"] = str(tmp_path / "changed.csv")
    (tmp_path / "run" / "run.json").write_text(json.dumps(described))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text()) | {"run": hash_key(**described)}
    (tmp_path / "run" / "metrics.json").write_text(json.dumps(metrics))
    _, findings = write_report(tmp_path / "run")
    assert "have changed" in findings.next.problem
    assert not any(row.texts for row in findings.next.rows)
    with pytest.raises(ClozifyError, match="--unlabeled"):
        suggest(tmp_path / "run", 2, tmp_path / "s.csv")
    assert len(suggest(tmp_path / "run", 2, tmp_path / "s.csv", unlabeled=path / "unlabeled.csv").rows) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "ipet", "labeled": None, "test": None, "settings": [*QUICK, "ipet.generations=1"]},
        {"unlabeled": None},
        {"method": "supervised", "unlabeled": None, "test": None},
        {"method": "uda"},
        {"method": "mixtext"},
    ],
    ids=["zero-shot ipet", "no unlabelled data", "supervised", "uda", "mixtext"],
)
def test_every_method_has_its_report(path, tmp_path, tiny_folder, changes):
    lines = []
    train(output=tmp_path / "run", log=lines.append, **options(path, tiny_folder, **changes))
    assert not any("could not be written" in line for line in lines)
    page = (tmp_path / "run" / "report.html").read_text()
    assert ('id="generations"' in page) == (changes.get("method") == "ipet")
    assert ('id="next"' in page) == (changes.get("method") == "ipet")
    assert ("no test rows" in page) == ("test" in changes)
    assert (tmp_path / "run" / "classifier" / "README.md").exists() == ((tmp_path / "run" / "classifier").exists())
    if "unlabeled" not in changes or changes.get("method") == "supervised":  # the result itself scores unlabelled data
        inputs = None if "unlabeled" not in changes else path / "unlabeled.csv"
        assert len(suggest(tmp_path / "run", 3, tmp_path / "s.csv", unlabeled=inputs).rows) == 3


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_suggested_rows_filled_in_are_labelled_rows(path, tmp_path, tiny_folder, monkeypatch, capsys, kind):
    """A file that training refuses, or a row that is silently taken without its label, wastes a person's work."""
    file = tmp_path / f"next.{kind}"
    messages = command(monkeypatch, capsys, "suggest", path / "run", "--count", 5, "--output", file)
    assert "fill in the column 'label'" in " ".join(messages.split())
    reading = {"csv": pd.read_csv, "jsonl": lambda f: pd.read_json(f, lines=True), "parquet": pd.read_parquet}[kind]
    frame = reading(file)
    assert list(frame.columns) == ["id", "text", "label"]
    assert len(frame) == 5
    labelled = pd.concat([pd.read_csv(path / f"{name}.csv") for name in ("labeled", "test")])
    assert not set(frame["text"]) & set(labelled["text"])
    with pytest.raises(ClozifyError, match="has a label"):
        prepare(TrainInputs(**options(path, tiny_folder, labeled=file)))
    frame["label"] = ["1", "2", "", "", "1"]
    writing = {"csv": frame.to_csv, "jsonl": frame.to_json, "parquet": frame.to_parquet}[kind]
    writing(file, **({"orient": "records", "lines": True} if kind == "jsonl" else {"index": False}))
    plan = prepare(TrainInputs(**options(path, tiny_folder, labeled=file)))
    assert plan.labeled.labels.tolist() == [0, 1, 0]
    assert any("2 of 5 labelled rows have no label" in warning for warning in plan.warnings)
    with pytest.raises(ClozifyError, match="there already"):
        suggest(path / "run", 5, file)


def test_suggestions_may_come_with_the_rows_that_are_labelled_already(path, tmp_path):
    suggest(path / "run", 4, tmp_path / "next.csv", with_labeled=True)
    frame = pd.read_csv(tmp_path / "next.csv", dtype=str)
    assert frame["text"][:6].tolist() == pd.read_csv(path / "labeled.csv")["text"].tolist()
    assert frame["label"][:6].tolist() == ["1", "2"] * 3
    assert frame["label"][6:].isna().all()


def test_rows_labelled_already_are_not_suggested_even_where_the_unlabelled_data_holds_them(path, tmp_path, tiny_folder):
    everything = pd.concat([pd.read_csv(path / f"{name}.csv")[["text"]] for name in ("labeled", "test", "unlabeled")])
    everything.to_csv(tmp_path / "all.csv", index=False)
    inputs = options(path, tiny_folder, unlabeled=tmp_path / "all.csv", allow_overlap=True)
    train(output=tmp_path / "run", **inputs)
    result = suggest(tmp_path / "run", 40, tmp_path / "next.csv")
    assert {row.text for row in result.rows} == set(pd.read_csv(path / "unlabeled.csv")["text"])
    assert any("Only 20 rows" in note for note in result.warnings)


def test_the_card_tells_the_task_the_numbers_and_the_limits_and_no_folder(path):
    from huggingface_hub import ModelCard

    card = ModelCard.load(path / "run" / "classifier" / "README.md")
    assert card.data.pipeline_tag == "text-classification"
    accuracy = json.loads((path / "run" / "metrics.json").read_text())["classifier"]["accuracy"]
    assert card.data.eval_results[0].metric_value == round(accuracy, 4)
    for part in ("It was {mask}", "| labelled | 6 |", "## Limits", "pipeline("):
        assert part in card.text
    assert str(path) not in card.content


def test_a_classifier_is_pushed_with_its_card_and_refused_without_a_network(path, monkeypatch, capsys):
    import huggingface_hub

    from clozify.inference.push import push

    with pytest.raises(ClozifyError, match="cannot be reached"):
        push(path / "run", "me/stars")
    sent = []

    class Api:
        def create_repo(self, name, **more):
            assert more == {"private": False, "exist_ok": True}
            return type("Url", (), {"repo_id": f"me/{name}"})

        def upload_folder(self, **more):
            sent.append(more)

        def upload_file(self, **more):
            sent.append(more)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(libraries, "hub_reachable", lambda: True)
    assert "me/stars" in command(monkeypatch, capsys, "push", path / "run", "stars")
    assert sent[0]["folder_path"] == path / "run" / "classifier"
    assert b'pipeline("text-classification", "me/stars")' in sent[1]["path_or_fileobj"]
    with pytest.raises(ClozifyError, match="cannot be a model's name"):
        push(path / "run", "no/such/name")


def test_several_runs_are_compared(path, tmp_path, tiny_folder, monkeypatch, capsys):
    train(output=tmp_path / "other", **options(path, tiny_folder, method="supervised"))
    page = tmp_path / "page.html"
    messages = command(monkeypatch, capsys, "report", path / "run", tmp_path / "other", "--output", page)
    assert "supervised training" in messages
    assert "on the same 16 test rows" in " ".join(messages.split())
    assert "other" in page.read_text()
    by_method = command(
        monkeypatch, capsys, "report", path / "run", path / "run" / "methods" / "supervised", "--output", page
    )
    assert "'run (supervised training)' is" in by_method
    assert "than 'run (PET)'" in " ".join(by_method.split())


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine to open the page in")
def test_a_browser_shows_the_page_on_wide_and_narrow_screens_without_a_sideways_scroll(path, tmp_path):
    """A table that pushes the page aside makes all of it unreadable on a phone."""
    page = (path / "run" / "report.html").as_uri()
    frames = "".join(f'<iframe src="{page}" style="width:{width}px;height:600px"></iframe>' for width in (390, 1280))
    script = (
        "onload = () => document.body.dataset.found = JSON.stringify([...document.querySelectorAll('iframe')].map("
        "f => { const d = f.contentDocument; return [f.clientWidth, d.documentElement.scrollWidth, d.title, "
        "getComputedStyle(d.body).maxWidth, d.querySelectorAll('svg rect').length, d.scripts.length]; }))"
    )
    (tmp_path / "frames.html").write_text(f"<!doctype html><body>{frames}<script>{script}</script>")
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    words += [f"--user-data-dir={tmp_path / 'browser'}", (tmp_path / "frames.html").as_uri()]
    shown = subprocess.run([BROWSER, *words], capture_output=True, text=True, timeout=120)
    result = re.search(r'data-found="([^"]*)"', shown.stdout)
    assert result, shown.stderr
    narrow, wide = json.loads(result[1].replace("&quot;", '"'))
    for width, needed, title, most, drawings, scripts in (narrow, wide):
        assert needed <= width
        assert title == "stars: PET"
        assert most != "none"  # the style is there
        assert drawings > 10
        assert scripts == 0


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine to open the page in")
def test_a_click_on_a_header_sorts_the_labels_and_without_scripts_they_are_a_plain_table(tmp_path):
    names = [f"a_rather_long_label_name_{number}" for number in range(150)]
    (tmp_path / "run").mkdir()
    run = made(tmp_path / "run", names=names, groups={"a_group_with_a_long_name": names[:90]})
    (tmp_path / "report.html").write_text(report_page(collect_findings(run)))
    frames = "".join(
        f'<iframe src="report.html" style="width:{width}px;height:600px"{sandbox}></iframe>'
        for width, sandbox in ((390, ""), (1280, ' sandbox="allow-same-origin"'))
    )
    script = """
    const column = (table, index) => [...table.tBodies[0].rows].map(row => row.cells[index].firstChild.textContent);
    onload = () => document.body.dataset.result = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {
      const page = frame.contentDocument, table = page.querySelectorAll("table.scores")[0];
      const heads = [...table.tHead.rows[0].cells], rows = heads.length - 1;
      const [before, sorted] = [column(table, rows), []];
      for (const head of [heads[rows], heads[rows], heads[0]]) {
        head.querySelector("button")?.click();
        sorted.push([head.getAttribute("aria-sort"), column(table, heads.indexOf(head))]);
      }
      return [page.documentElement.scrollWidth <= frame.clientWidth, before, sorted];
    }))"""
    (tmp_path / "frames.html").write_text(f"<!doctype html><body>{frames}<script>{script}</script>")
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    words += [f"--user-data-dir={tmp_path / 'browser'}", (tmp_path / "frames.html").as_uri()]
    shown = subprocess.run([BROWSER, *words], capture_output=True, text=True, timeout=120)
    result = re.search(r'data-result="([^"]*)"', shown.stdout)
    assert result, shown.stderr
    (narrow, before, sorted_rows), (wide, plain, unsorted) = json.loads(result[1].replace("&quot;", '"'))
    assert narrow
    assert wide
    up, down, by_name = sorted_rows
    assert up == ["ascending", sorted(before, key=float)]
    assert down == ["descending", sorted(before, key=float)[::-1]]
    assert by_name[0] == "ascending"
    assert by_name[1] == sorted(by_name[1])
    assert [state for state, _ in unsorted] == [None] * 3
    assert unsorted[0][1] == plain
