"""The commands as a person types them, with the real model; every kind of bad input ends in a sentence."""

import csv
import json
import subprocess
import sys

import pandas as pd
import pytest

from clozify.cli import app

GOOD_TASK = """
name = "reviews"
fields = ["text"]
patterns = ["It was {mask}. {text}", "{text} All in all, it was {mask}."]
[labels]
neg = "terrible"
pos = "great"
"""
WORDS = ["great", "boring", "long", "funny", "sad", "dull", "lovely", "bad", "slow", "new"]
ROWS = "id,label,text\na,pos,I loved every minute of this film\nb,neg,A boring waste of time\nc,pos,\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(GOOD_TASK)
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path


@pytest.fixture
def run(capsys, monkeypatch, builtin):
    """Run a command in this process: (exit status, stdout, stderr); `builtin` is `builtin:mini`, loaded once."""
    from clozify import cli
    from clozify.config.recipe import Generative
    from clozify.inference import zero_shot
    from clozify.models import cloze, language_model
    from clozify.pipeline import find_words

    load = cloze.load_model

    def load_once(name="builtin", *args, generative=None, **settings):
        assert generative in (None, Generative())
        return builtin if name == "builtin" and not args and not settings else load(name, *args, **settings)

    for module in (cloze, language_model, zero_shot, find_words):
        monkeypatch.setattr(module, "load_model", load_once)

    def command(*words: str):
        monkeypatch.setattr(sys, "argv", ["clozify", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return command


def test_the_help_names_every_command(run):
    status, out, _ = run("--help")
    assert status == 0
    for name in ("tasks", "init", "check", "zero-shot", "demo"):
        assert name in out
    assert app.info.name == "clozify"


def test_tasks_lists_the_paper_s_five_and_the_sample(run):
    status, out, _ = run("tasks", "--json")
    names = {task["name"] for task in json.loads(out)}
    assert status == 0
    assert names >= {"agnews", "yelp-full", "yahoo", "mnli", "xstance", "xstance-de", "xstance-fr", "debian"}


def test_check_shows_what_the_model_reads(folder, run):
    status, out, err = run("check", "task.toml", "--data", "rows.csv")
    assert (status, err) == (0, "")
    assert "[CLS] it was [MASK]. i loved every minute of this film [SEP]" in " ".join(out.split())
    assert "The task can be used" in out


REQUESTS = "label,text\n" + "".join(
    f"{label},{text} {number}\n"
    for number in range(3)
    for label, text in (("play_music", "play a song"), ("set_alarm", "wake me up at"), ("get_news", "headlines of"))
)


def test_init_writes_a_task_that_check_and_zero_shot_take(folder, run):
    (folder / "requests.csv").write_text(REQUESTS)
    status, out, err = run("init", "requests.csv", "-o", "new.toml")
    assert (status, err) == (0, "")
    assert "3 labels" in out
    assert "clozify check new.toml --data requests.csv" in out
    status, out, _ = run("check", "new.toml", "--data", "requests.csv")
    assert status == 0
    assert "play_music = play + music" in out
    assert run("zero-shot", "new.toml", "--data", "requests.csv")[0] == 0


def test_labels_from_a_file_are_those_of_the_task(folder, run):
    (folder / "task.toml").write_text('name = "t"\nfields = ["text"]\npatterns = ["{mask}: {text}"]\n')
    (folder / "requests.csv").write_text(REQUESTS)
    (folder / "labels.txt").write_text("set_alarm\nget_news\nplay_music\n")
    command = ["zero-shot", "task.toml", "--data", "requests.csv", "--json", "--labels-from"]
    assert list(json.loads(run(*command, "labels.txt")[1])["predicted"]) == ["set_alarm", "get_news", "play_music"]
    assert list(json.loads(run(*command, "requests.csv")[1])["predicted"]) == ["get_news", "play_music", "set_alarm"]


def test_check_prints_a_page_for_many_labels(folder, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    names = [f"{first}_{second}" for first in WORDS for second in WORDS]
    (folder / "many.csv").write_text("label,text\n" + "".join(f"{name},a text about {name}\n" for name in names))
    run("init", "many.csv", "-o", "many.toml", "--text", "text")
    status, out, _ = run("check", "many.toml", "--data", "many.csv")
    assert status == 0
    assert "100 labels." in out
    assert "1 of each label" in out
    assert "great+boring, great+dull" in " ".join(out.split())
    assert len(out.splitlines()) < 60
    report = json.loads(run("check", "many.toml", "--data", "many.csv", "--json")[1])
    assert len(report["label_checks"]) == 100
    assert [len(word["ids"]) for word in report["patterns"][0]["pairs"][0]["words"]["great_boring"]] == [2]


RULES = """
[[rules]]
label = "pos"
any = ["lov*"]
[[rules]]
label = "neg"
regex = "boring|minute"
name = "boredom"
[[rules]]
label = "neg"
any = ["unheard of"]
"""


def test_check_shows_what_rules_cover_how_often_they_are_right_and_conflicts(folder, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (folder / "rules.toml").write_text(GOOD_TASK + RULES)
    status, out, _ = run("check", "rules.toml", "--data", "rows.csv")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0
    assert "3 rules vote on 2 of 3 rows (66.7%); 1 of them have votes for different labels." in lines
    assert "rule 1 (pos) pos 1 33.3 1 of 1 1 boredom" in lines
    assert "boredom neg 2 66.7 1 of 2 1 rule 1 (pos)" in lines
    assert "note: In these 3 rows nothing matches 'rule 3 (neg)'." in lines
    report = json.loads(run("check", "rules.toml", "--data", "rows.csv", "--json")[1])["rules"]
    assert [rule["correct"] for rule in report["rules"]] == [1, 1, 0]
    assert json.loads(run("check", "task.toml", "--data", "rows.csv", "--json")[1])["rules"] is None


def test_check_prints_a_page_for_many_rules(folder, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rules = "".join(f'[[rules]]\nlabel = "pos"\nany = ["loved {number}", "film"]\n' for number in range(100))
    (folder / "rules.toml").write_text(GOOD_TASK + rules + RULES)
    status, out, _ = run("check", "rules.toml", "--data", "rows.csv")
    assert status == 0
    assert "the 15 of 103 rules to look at first" in out
    assert "rule 103 (neg)" in out
    assert len(out.splitlines()) < 60


def test_a_rule_that_runs_away_is_a_problem_of_the_task(folder, run, monkeypatch):
    from clozify.teachers import rules

    monkeypatch.setattr(rules, "SEARCH_SECONDS", 0.05)
    (folder / "rules.toml").write_text(GOOD_TASK + '[[rules]]\nlabel = "pos"\nregex = "(a|aa)+$"\nname = "slow"\n')
    (folder / "slow.csv").write_text("text\n" + f"{'a' * 80}!\n" * 9)
    status, out, _ = run("check", "rules.toml", "--data", "slow.csv")
    assert status == 2
    assert "problem: The rule 'slow' was stopped after 0.05 s in row 1" in " ".join(out.split())


def test_zero_shot_predicts_writes_and_reports(folder, run):
    status, out, _ = run("zero-shot", "task.toml", "--data", "rows.csv", "--output", "p.csv", "--json")
    report = json.loads(out)
    assert status == 0
    assert set(report["accuracy"]) == {"mean", "best", "ensemble", "patterns"}
    assert len(report["accuracy"]["patterns"]) == 2
    assert any("empty in 1 of 3 rows" in remark for remark in report["warnings"])
    written = list(csv.DictReader((folder / "p.csv").open()))
    assert [row["prediction"] for row in written][:2] == ["pos", "neg"]
    assert all(abs(float(row["probability_pos"]) + float(row["probability_neg"]) - 1) < 1e-4 for row in written)
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_predictions_join_back_to_the_input_by_the_row_s_id(kind, folder, run):
    (folder / "task.toml").write_text('id = "id"\n' + GOOD_TASK)
    assert run("zero-shot", "task.toml", "--data", "rows.csv", "--output", f"p.{kind}")[0] == 0
    read = {"csv": pd.read_csv, "jsonl": lambda p: pd.read_json(p, lines=True), "parquet": pd.read_parquet}[kind]
    results = read(folder / f"p.{kind}")
    assert results["id"].tolist() == ["a", "b", "c"]
    assert results.columns.tolist() == ["id", "label", "prediction", "probability_neg", "probability_pos"]


def test_rows_without_labels_are_shown_with_their_predictions(folder, run):
    (folder / "plain.csv").write_text("text\nI loved every minute of this film\n")
    status, out, _ = run("zero-shot", "task.toml", "--data", "plain.csv")
    assert status == 0
    assert "I loved every minute" in out
    assert "pos" in out


def test_a_row_longer_than_the_model_is_shortened_and_counted(folder, run):
    (folder / "long.csv").write_text("text\n" + "good " * 2000 + "\nshort\n")
    status, out, _ = run("zero-shot", "task.toml", "--data", "long.csv", "--json")
    assert status == 0
    assert any("1 of 2 rows are longer than 256 tokens" in remark for remark in json.loads(out)["warnings"])


@pytest.mark.parametrize(
    ("rows", "options", "calibrated", "line"),
    [
        (9, [], False, "Probabilities are not calibrated: with 2 labels that takes 10 rows or more."),
        (10, [], True, "Probabilities are calibrated on these 10 rows."),
        (2, ["--calibrate"], True, "Probabilities are calibrated on these 2 rows."),
        (10, ["--no-calibrate"], False, "Probabilities are not calibrated, as requested."),
    ],
)
def test_probabilities_are_calibrated_where_there_are_enough_rows(rows, options, calibrated, line, folder, run):
    (folder / "rows.csv").write_text("text\n" + "".join(f"It was a {word} film\n" for word in WORDS[:rows]))
    status, out, _ = run("zero-shot", "task.toml", "--data", "rows.csv", "--output", "p.csv", *options)
    assert (status, line in out.splitlines()) == (0, True)
    same = []
    for option in ("--no-calibrate", "--calibrate"):
        run("zero-shot", "task.toml", "--data", "rows.csv", "--output", "q.csv", option)
        same.append((folder / "p.csv").read_text() == (folder / "q.csv").read_text())
    assert same == [not calibrated, calibrated]


@pytest.mark.parametrize(("positive", "warns"), [(8, False), (15, True)])
def test_calibration_warns_of_labels_that_are_known_to_be_unbalanced(positive, warns, folder, run):
    labels = ["pos"] * positive + ["neg"] * (16 - positive)
    (folder / "rows.csv").write_text("label,text\n" + "".join(f"{label},a film\n" for label in labels))
    for option, expected in (("--calibrate", warns), ("--no-calibrate", False)):
        report = json.loads(run("zero-shot", "task.toml", "--data", "rows.csv", "--json", option)[1])
        assert any("--no-calibrate" in warning for warning in report["warnings"]) == expected


BAD = {
    "missing task": ("", ["check", "nope.toml"], "'nope.toml' is neither a file nor a shipped task"),
    "missing file": ("", ["zero-shot", "task.toml", "--data", "nope.csv"], "'nope.csv' does not exist"),
    "missing column": ("title\nx\n", ["zero-shot", "task.toml", "--data", "bad.csv"], "lacks the column 'text'"),
    "unknown label": ("label,text\nmeh,x\n", ["zero-shot", "task.toml", "--data", "bad.csv"], "the label 'meh'"),
    "empty file": ("", ["zero-shot", "task.toml", "--data", "bad.csv"], "is empty"),
    "no rows": ("text\n", ["zero-shot", "task.toml", "--data", "bad.csv"], "has no rows"),
    "no model": ("", ["check", "task.toml", "--model", "./nothing"], "'./nothing' does not exist"),
    "no network": ("", ["check", "task.toml", "--model", "roberta-large"], "hf download roberta-large"),
    "bad output": ("", ["zero-shot", "task.toml", "--data", "rows.csv", "--output", "p.xlsx"], "end in '.csv'"),
    "no output folder": ("", ["zero-shot", "task.toml", "--data", "rows.csv", "--output", "no/p.csv"], "'no'"),
    "output is the data": (
        "text\nx\n",
        ["zero-shot", "task.toml", "--data", "bad.csv", "--output", "bad.csv"],
        "that is the data",
    ),
    "output in no place to write": (
        "",
        ["zero-shot", "task.toml", "--data", "rows.csv", "--output", "/proc/p.csv"],
        "cannot be written to '/proc/p.csv'",
    ),
    "init over a file": ("label,text\na,x\nb,y\n", ["init", "bad.csv"], "'task.toml' exists already"),
    "init without labels": ("text\nx y z\nv w\n", ["init", "bad.csv", "-o", "new.toml"], "--labels-from FILE"),
    "labels twice": (
        "",
        ["init", "rows.csv", "-o", "new.toml", "--labels", "a,b,a"],
        "'a' stands twice in 'labels'",
    ),
    "near label": (
        "label,text\nnegg,x\nnep,x\n",
        ["zero-shot", "task.toml", "--data", "bad.csv"],
        "the label 'negg' (did you mean 'neg'?) and 'nep' (did you mean 'neg'?), which the task does not know",
    ),
    "no file of labels": ("", ["check", "task.toml", "--labels-from", "nope.txt"], "'nope.txt', does not exist"),
    "a name too long": ("", ["check", "x" * 300], "too long"),
    "bad mapping": ("", ["zero-shot", "task.toml", "--data", "rows.csv", "--map", "text"], "FIELD=COLUMN"),
    "empty path": ("", ["zero-shot", "task.toml", "--data", ""], "The value of --data is empty"),
    "empty output": ("", ["suggest", "run", "--output="], "The value of --output is empty"),
    "empty folder": ("", ["report", ""], "The value is empty"),
    "unknown mapping": ("", ["zero-shot", "task.toml", "--data", "rows.csv", "--map", "txt=text"], "no field 'txt'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_with_exit_status_two(case, folder, run):
    content, command, part = BAD[case]
    (folder / "bad.csv").write_text(content)
    before = set(folder.iterdir())
    status, out, err = run(*command)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("error: ")
    assert part in err
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('neg = "terrible"\n', "", "only the label 'pos'"),
        ('neg = "terrible"', "neg = []", "no word for the label 'neg'"),
        ('"terrible"', '"great"', "the same word 'great'"),
        ('"terrible"', '"\u0378"', "the model does not know the word '\u0378' of the label 'neg'; near words that it"),
        ('"terrible"', '"Great"', "the labels 'neg' and 'pos' have the same words for this model"),
        ('"terrible"', f'"{"so " * 600}bad"', "has 601 tokens, which leaves none for the pattern and the text"),
        ("It was {mask}. {text}", "It was. {text}", "no {mask}"),
        ("It was {mask}. {text}", "{mask} {mask} {text}", "2 times {mask}"),
        ("It was {mask}. {text}", "{mask} {txt}", "did you mean 'text'?"),
        (
            'pos = "great"\n',
            'pos = "great"\n[[rules]]\nlabel = "pos"\nregex = "great("\n',
            "The rule 1 (pos) has a regex that is not valid at character 7 (missing )): great(; correct it.",
        ),
    ],
)
def test_a_bad_task_is_one_sentence_with_exit_status_two(old, new, part, folder, run):
    (folder / "task.toml").write_text(GOOD_TASK.replace(old, new))
    status, out, err = run("zero-shot", "task.toml", "--data", "rows.csv")
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert part in err


def test_text_that_is_not_utf8_names_the_line(folder, run):
    (folder / "bad.csv").write_bytes(b"text\nok\ncaf\xe9\n")
    status, _, err = run("zero-shot", "task.toml", "--data", "bad.csv")
    assert status == 2
    assert "line 3 holds the byte 0xe9" in err


def test_check_reports_problems_of_words_and_data_at_once(folder, run):
    (folder / "task.toml").write_text(GOOD_TASK.replace('"terrible"', '"\u0378"'))
    (folder / "bad.csv").write_text("title\nx\n")
    status, out, _ = run("check", "task.toml", "--data", "bad.csv", "--json")
    results = json.loads(out)
    assert status == 2
    assert len(results["problems"]) == 2


def test_the_same_command_twice_gives_the_same_numbers(folder, run):
    reports = [json.loads(run("zero-shot", "task.toml", "--data", "rows.csv", "--json")[1]) for _ in range(2)]
    for report in reports:
        del report["seconds"]
    assert reports[0] == reports[1]


def test_ids_stay_as_they_are_in_csv_although_one_is_missing(folder, run):
    """As floating-point numbers, long ids would lose their last digits and join to nothing."""
    (folder / "task.toml").write_text('id = "uid"\n' + GOOD_TASK)
    (folder / "d.jsonl").write_text('{"uid": 12345678901234567, "text": "x"}\n{"uid": null, "text": "y"}\n')
    assert run("zero-shot", "task.toml", "--data", "d.jsonl", "--output", "p.csv")[0] == 0
    assert [row["id"] for row in csv.DictReader((folder / "p.csv").open())] == ["12345678901234567", ""]


def test_rows_without_a_label_are_counted(folder, run):
    (folder / "some.csv").write_text("label,text\npos,good\n,unknown\n")
    report = json.loads(run("zero-shot", "task.toml", "--data", "some.csv", "--json")[1])
    assert report["labeled_rows"] == 1
    assert any("1 of 2 rows have no label" in remark for remark in report["warnings"])


def test_zero_shot_from_python_works_more_than_once(folder, builtin):
    """A module of the same name would hide the function after the first call."""
    import clozify

    for _ in range(2):
        result = clozify.zero_shot("task.toml", "rows.csv", builtin)
        assert result.probabilities.shape == (3, 2)
        assert result.labels[:2] == ["pos", "neg"]
        assert len(result.rows) == 3


def test_the_installed_command_prints_its_version():
    done = subprocess.run([sys.executable, "-m", "clozify", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "clozify 0.1.0\n")


@pytest.mark.slow
def test_the_demo_trains_every_way_and_ends_in_a_table_and_a_path(tmp_path, run, monkeypatch):
    monkeypatch.setattr("clozify.models.builtin.DEFAULT", "mini")
    import clozify.demo as space

    steps = [f"{name}.max_steps=1" for name in ("finetune_without_lm", "distill", "supervised")]
    monkeypatch.setattr(
        space.demo,
        "__defaults__",
        (
            space.demo.__defaults__[0],
            (14, 20, 15),
            [*steps, "max_seq_length=24", "ipet.enough=20", "distillation=true"],
        ),
    )
    status, out, err = run("demo", "--output", str(tmp_path / "demo"))
    assert status == 0, err
    for part in (
        "supervised training on the same 14 rows",
        "PET: classifier trained on 20 rows",
        "iPET: classifier",
        "95% interval",
    ):
        assert part in out
    assert f"clozify predict {tmp_path / 'demo'}/pet" in "".join(out.split("\n"))
    assert (tmp_path / "demo" / "pet" / "classifier" / "config.json").is_file()
    status, out, err = run("demo", "--output", str(tmp_path / "demo"), "--json")
    assert set(json.loads(out)) == {"supervised", "pet", "ipet", "rows", "output"}
    assert "already done" in err


def test_words_found_on_the_command_line_make_a_task_that_check_takes(folder, run):
    settings = [
        word for s in ("words.candidates=40", "words.k=5", "words.m=2", "max_seq_length=40") for word in ("--set", s)
    ]
    status, out, _ = run("find-words", "task.toml", "--labeled", "rows.csv", "--output", "found.toml", *settings)
    assert status == 0
    assert "words, with their score in points" in out
    assert run("check", "found.toml")[0] == 0
    status, _, err = run(
        "find-words", "task.toml", "--labeled", "rows.csv", "--seed-words", "bad", "--output", "f.toml"
    )
    assert status == 2
    assert "--seed-words takes LABEL=WORD,WORD" in err


def test_a_model_pretrained_on_the_command_line_is_one_that_model_takes(folder, run, tiny_folder):
    from clozify.models.cloze import load_model

    (folder / "texts.csv").write_text("text\n" + "a fine game for all players\n" * 60)
    settings = [word for s in ("pretrain.max_steps=2", "pretrain.block_size=16") for word in ("--set", s)]
    command = ["pretrain", "--data", "texts.csv", "--model", str(tiny_folder("bert")), "--output", "model", *settings]
    status, out, err = run(*command, "--quiet")
    assert status == 0, err
    assert "Use the model with --model model" in out
    assert load_model("model").max_length > 0
    assert run("pretrain", "--data", "texts.csv", "--field", "body", "--output", "other")[0] == 2
