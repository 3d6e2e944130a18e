"""`clozify audit` on small files with every kind of fault."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

import clozify
from clozify.data import languages
from clozify.errors import DataError
from clozify.inference import audit_scores

TASK = """
name = "stars"
fields = ["title", "text"]
optional = ["title"]
patterns = ["It was {mask}. {title} {text}", "Just {mask}! || {title} {text}"]
aliases = [["bad", "good", "odd"]]
[labels]
1 = "bad"
2 = "great"
3 = "okay"
"""
NOUNS = "film story actor music scene ending dialogue camera plot cast colour costume hero villain song".split()
VERBS = "shows follows forgets finds loses repeats explains hides wants makes helps leaves".split()
LINE = {"bad": "I walked out of this long and boring", "good": "What a lovely and moving"}
GERMAN = "Ein wunderbarer Film mit großartigen Schauspielern und einer Geschichte, die man nicht vergisst"
FLIPPED = [4, 9]
DECODED = {"bad": 0, "good": 1}


def make_rows(count, name):
    labels = ["bad" if row % 2 else "good" for row in range(count)]
    rng = np.random.default_rng(len(name))
    story = [" ".join(f"the {rng.choice(NOUNS)} {rng.choice(VERBS)}" for _ in range(5)) for _ in labels]
    texts = [f"{LINE[label]} {rng.choice(NOUNS)}: {words}" for label, words in zip(labels, story, strict=True)]
    return pd.DataFrame({"label": labels, "title": name, "text": texts})


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A task, labelled rows with faults, unlabelled rows and test rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(TASK)
    labeled, test = make_rows(40, "training"), make_rows(20, "evaluation")
    labeled["truth"] = labeled["label"]
    labeled.loc[FLIPPED, "label"] = labeled.loc[FLIPPED, "label"].map({"bad": "good", "good": "bad"})
    labeled["section"] = labeled["label"].map({"bad": "section 7", "good": "section 8"})
    labeled.loc[1, "label"] = "goood"
    labeled.loc[2, "text"] = ""
    labeled.loc[3, "text"] = GERMAN
    labeled.loc[5, "text"] = "long " * 200
    conflict = labeled.loc[[6]].assign(label="bad")
    labeled = pd.concat([labeled, conflict, test.loc[[7]].assign(truth="bad", section="section 7")])
    labeled.to_csv("labeled.csv", index=False)
    make_rows(30, "other").drop(columns="label").to_csv("unlabeled.csv", index=False)
    test.to_csv("test.csv", index=False)
    return tmp_path


@pytest.fixture
def _states_of_texts(monkeypatch):
    """States that tell which line a text is made of, so that labels are predicted from the text."""

    def states(model, rows, advance=lambda count: None):
        width, rng = model.head.word_vectors.shape[1], np.random.default_rng(0)
        batch = rows.batch(np.arange(len(rows)))
        decoded = [model.tokenizer.decode(ids) for ids in batch.input_ids]
        is_bad = np.array(["boring" in text for text in decoded], dtype=float)
        advance(len(rows))
        values = 0.01 * rng.normal(size=(len(rows), 2 * width))
        values[:, -1] += 5 * is_bad
        return values.astype(np.float16)

    monkeypatch.setattr(audit_scores, "compute_states", states)


@pytest.fixture
def audit(files, tiny_folder):
    """Audit the files, with changes to the call."""

    def call(**changes):
        inputs = {
            "task": "task.toml",
            "labeled": "labeled.csv",
            "unlabeled": "unlabeled.csv",
            "test": "test.csv",
            "model": str(tiny_folder("bert")),
            "settings": ["max_seq_length=60"],
        }
        return clozify.audit(**(inputs | changes))

    return call


@pytest.mark.usefixtures("_states_of_texts")
def test_every_fault_is_reported(audit):
    result = audit()
    kinds = {finding.kind: finding for finding in result.findings}
    assert [finding.level for finding in result.findings] == sorted(
        (finding.level for finding in result.findings), key=("error", "warning", "note").index
    )
    assert "did you mean 'good'?" in kinds["unknown label"].text
    assert [(row.row.row, row.suggestion) for row in result.unknown_labels] == [(2, "good")]
    assert kinds["labelled rows in test"].rows == 1
    assert "word for word" in kinds["labelled rows in test"].text
    assert result.duplicates[0].labels_differ
    assert {row.row for row in result.duplicates[0].rows} == {7, 41}
    assert "'odd'" in kinds["labels without rows"].text
    assert [(leak.column, leak.is_field) for leak in result.leaks] == [("section", False)]
    assert [row.row.row for row in result.other_languages] == [4]
    assert [(row.row.row, row.fields) for row in result.empty] == [(3, ["text"])]
    assert result.truncated[0].row.row == 6
    assert 0 < result.truncated[0].lost < result.truncated[0].tokens
    labeled_errors = [error for error in result.label_errors if error.row.data == "labeled"]
    assert {row + 1 for row in FLIPPED} <= {error.row.row for error in labeled_errors}
    flipped = next(error for error in labeled_errors if error.row.row == FLIPPED[0] + 1)
    assert (flipped.row.label, flipped.suggestion) == ("bad", "good")
    assert flipped.probability > 0.5 > flipped.label_probability
    assert [each.rows for each in result.data] == [42, 30, 20]
    assert result.labels[2].model_dump() == {"label": "odd", "labeled": 0, "test": 0}
    assert result.agreement > 0.5


@pytest.mark.usefixtures("_states_of_texts")
def test_the_file_to_correct_has_the_suspects_first_and_serves_as_labelled_rows(audit, files):
    audit(output="correct.csv", test_output="test.parquet")
    table = pd.read_csv("correct.csv", keep_default_na=False)
    assert list(table.columns[:5]) == ["label", "title", "text", "truth", "section"]
    assert len(table) == 42
    assert table["audit_row"][0] == 2
    assert table["audit_suggestion"][0] == "good"
    assert table["audit_reason"][0] == "the task has no label 'goood'"
    assert {7, 41, *(row + 1 for row in FLIPPED)} <= set(table["audit_row"][:8])
    assert table.set_index("audit_row")["audit_lost_tokens"][6] > 0
    table["label"] = np.where(table["label"].isin(DECODED), table["label"], "bad")
    table.to_csv("corrected.csv", index=False)
    rows = clozify.read_rows("corrected.csv", clozify.load_task("task.toml"))
    assert len(rows.labels) == 42
    again = audit(labeled="corrected.csv", output="again.jsonl")
    assert not again.unknown_labels
    assert [leak.column for leak in again.leaks] == ["section"]
    lines = [json.loads(line) for line in (files / "again.jsonl").read_text().splitlines()]
    assert set(lines[0]) == set(table.columns)
    assert len(pd.read_parquet("test.parquet")) == 20


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command in this process: (exit status, stdout, stderr)."""
    from clozify import cli

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["clozify", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return command


@pytest.mark.usefixtures("_states_of_texts")
def test_the_command_prints_a_page_and_exits_with_0(files, run, tiny_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    inputs = ["--labeled", "labeled.csv", "--unlabeled", "unlabeled.csv", "--test", "test.csv"]
    inputs += ["--model", tiny_folder("bert"), "--output", "correct.csv"]
    status, out, err = run("audit", "task.toml", *inputs)
    assert (status, err) == (0, "")
    for text in (
        "42 rows: bad 21, good 20, odd 0",
        "1 labelled row is a test row, too, word for word",
        "Labels of labelled rows that may be wrong, the likeliest first",
        "Rows in another language than en",
        "correct.csv, those to look at first",
    ):
        assert text in out
    status, out, _ = run("audit", "task.toml", *inputs[:-2], "--json")
    assert status == 0
    assert json.loads(out)["findings"][0]["level"] == "error"


def test_clean_rows_have_no_findings_and_rows_in_memory_are_rows(files, tiny_folder):
    rows = [(f"number {row} " + "abcdefghij"[row], "1") for row in range(4)]
    task = {"fields": ["text"], "patterns": ["It was {mask}. {text}"], "labels": {"1": "bad", "2": "great"}}
    result = clozify.audit({"name": "x", **task}, rows, model=str(tiny_folder("bert")))
    assert [finding.kind for finding in result.findings] == ["labels without rows"]
    assert any("fewer than 5 labelled rows" in note for note in result.notes)


def make_label_sets(count, name):
    rows = make_rows(count, name)
    rng = np.random.default_rng(7)
    rows["text"] = np.where(rng.random(count) < 0.5, "A fight. ", "No word. ") + rows["text"]
    rows["label"] = [
        "|".join(label for label, word in (("1", "boring"), ("3", "fight")) if word in text) for text in rows["text"]
    ]
    return rows


@pytest.fixture
def _states_of_words(monkeypatch):
    """States that tell whether a text has each of two words."""

    def states(model, rows, advance=lambda count: None):
        rng, batch = np.random.default_rng(0), rows.batch(np.arange(len(rows)))
        decoded = [model.tokenizer.decode(ids) for ids in batch.input_ids]
        values = 0.01 * rng.normal(size=(len(rows), 2 * model.head.word_vectors.shape[1]))
        values[:, -2:] += [[5.0 * ("boring" in text), 5.0 * ("fight" in text)] for text in decoded]
        advance(len(rows))
        return values.astype(np.float16)

    monkeypatch.setattr(audit_scores, "compute_states", states)


@pytest.mark.usefixtures("_states_of_words", "files")
def test_missing_and_superfluous_labels_are_found_and_written_to_the_file_to_correct(tiny_folder):
    labeled, test = make_label_sets(60, "training"), make_label_sets(20, "evaluation")
    truth = labeled["label"].tolist()
    both = truth.index("1|3")
    none = truth.index("")
    labeled.loc[both, "label"] = "3"  # one is missing
    labeled.loc[none, "label"] = "1"  # one is superfluous
    labeled.to_csv("several.csv", index=False)
    test.loc[2, "label"] = {"1": "", "3": "1|3", "": "1", "1|3": "3"}[test.loc[2, "label"]]
    test.to_csv("several_test.csv", index=False)
    task = clozify.load_task("task.toml").with_changes(multilabel=True, aliases=[])
    inputs = (task, "several.csv", None, "several_test.csv", str(tiny_folder("bert")), "out.csv", "test_out.csv")
    result = clozify.audit(*inputs, settings=["max_seq_length=60"])
    errors = {(error.row.data, error.row.row): error for error in result.label_errors}
    assert set(errors) == {("labeled", both + 1), ("labeled", none + 1), ("test", 3)}
    missing, superfluous = errors["labeled", both + 1], errors["labeled", none + 1]
    assert (missing.suggestion, list(missing.missing), missing.superfluous) == ("1|3", ["1"], {})
    assert (superfluous.suggestion, superfluous.missing, list(superfluous.superfluous)) == ("", {}, ["1"])
    assert superfluous.superfluous["1"] < 0.5 < missing.missing["1"] == missing.probability
    findings = {finding.kind: finding.text for finding in result.findings}
    assert findings["label errors in labelled rows"] == (
        "2 of 60 labelled rows may have wrong labels: 1 may be missing, 1 superfluous"
    )
    table = pd.read_csv("out.csv", keep_default_na=False)
    first = table[:2].set_index("audit_row")
    assert set(first.index) == {both + 1, none + 1}
    assert first.loc[both + 1, "audit_suggestion"] == "1|3"
    assert first.loc[both + 1, "audit_reason"].startswith("'1' may be missing (")
    assert first.loc[none + 1, "audit_reason"].startswith("'1' may be superfluous (")
    assert pd.read_csv("test_out.csv", keep_default_na=False).loc[0, "audit_row"] == 3
    table["label"] = table["audit_suggestion"].where(table["audit_reason"] != "", table["label"])
    table.to_csv("corrected.csv", index=False)
    targets = clozify.read_rows("corrected.csv", task).label_matrix
    assert ["|".join(np.array(["1", "2", "3"])[row == 1]) for row in targets] == [
        truth[row - 1] for row in table["audit_row"]
    ]
    assert result.agreement > 0.9


def test_few_rows_with_several_labels_and_unknown_names_are_audited(files, tiny_folder):
    rows = pd.DataFrame({"label": ["1|2", "", "x", "1"], "title": "", "text": ["a b", "c d", "e f", "a b"]})
    rows.to_csv("several.csv", index=False)
    task = clozify.load_task("task.toml").with_changes(multilabel=True, aliases=[])
    result = clozify.audit(task, "several.csv", model=str(tiny_folder("bert")))
    assert [row.row.row for row in result.unknown_labels] == [3]
    assert result.duplicates[0].labels_differ
    assert any("fewer than 5 labelled rows" in note for note in result.notes)


def test_without_py3langid_a_note_says_what_to_install(audit, monkeypatch):
    monkeypatch.setattr(languages, "is_available", lambda: False)
    result = audit(unlabeled=None, test=None)
    assert (result.languages, result.other_languages) == ([], [])
    assert any("pip install 'clozify[audit]'" in note for note in result.notes)


def test_at_most_so_many_rows_are_searched_as_asked_for(audit):
    result = audit(max_rows=10)
    assert [each.scored for each in result.data] == [10, 0, 10]
    assert any("--max-rows 41 takes all" in note for note in result.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labeled": "unlabeled.csv"}, "lacks the label column"),
        ({"labeled": "none.csv"}, "does not exist"),
        ({"labeled": "unknown.csv"}, "which the task does not know"),
        ({"labeled": "blank.csv"}, "is labelled"),
        ({"output": "labeled.csv"}, "that is the data"),
        ({"output": "there.csv"}, "is there already"),
        ({"output": "x.txt"}, "let its name end in"),
        ({"test": None, "test_output": "x.csv"}, "no test rows"),
        ({"output": "x.csv", "test_output": "x.csv"}, "choose two names"),
        ({"max_rows": 0}, "ask for 1 or more"),
    ],
)
def test_bad_input_ends_in_a_sentence(audit, files, changes, message):
    (files / "there.csv").write_text("x\n")
    (files / "unknown.csv").write_text("label,title,text\nx,y,z\n")
    (files / "blank.csv").write_text("label,title,text\n,y,z\n")
    with pytest.raises(DataError, match=message):
        audit(**changes)
    assert not (files / "x.csv").exists()
