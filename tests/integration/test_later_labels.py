"""Labels that are added, removed or renamed after a run has finished: what is kept, what is done anew, what is said."""

import json

import pandas as pd
import pytest

import clozify
from clozify.errors import RunError
from tests.integration.conftest import SETTINGS, TASK

QUICK = [*SETTINGS, "repetitions=1", "finetune.max_steps=2", "distill.max_steps=2"]


def add_label(files):
    (files / "task.toml").write_text(TASK + '3 = "okay"\n')
    labeled = pd.read_csv(files / "labeled.csv")
    more = pd.DataFrame({"label": [3, 3], "text": ["neither good nor bad", "all right"]})
    pd.concat([labeled, more]).to_csv(files / "labeled.csv", index=False)


def rename_label(files, old, new):
    text = (files / "task.toml").read_text()
    (files / "task.toml").write_text(text.replace(f"{old} = ", f"{new} = "))
    for name in ("labeled", "test"):
        frame = pd.read_csv(files / f"{name}.csv", dtype=str)
        frame["label"] = frame["label"].replace(old, new)
        frame.to_csv(files / f"{name}.csv", index=False)


def test_a_label_more_takes_no_state_again_with_a_frozen_encoder(run, files):
    run(method="frozen")
    states = {path.name for path in (files / "run" / "states").iterdir()}
    add_label(files)
    with pytest.raises(RunError, match=r"other labels \(new: '3'\).*--replace: the rows' states are kept"):
        run(method="frozen", replace=False)
    lines = []
    metrics = run(method="frozen", log=lines.append)
    assert any("(new: '3')" in line and "states are kept" in line for line in lines)
    assert any("2 rows computed" in line and "100 were kept" in line for line in lines)
    assert states < {path.name for path in (files / "run" / "states").iterdir()}
    assert list(metrics["ensemble"]["labels"]) == ["1", "2", "3"]
    assert "3" in clozify.load_run(files / "run").task.labels


def test_a_label_more_trains_models_anew_and_says_why(run, files):
    run(settings=QUICK)
    before = {path.name for path in (files / "run" / "members").iterdir()}
    classifier = (files / "run" / "classifier" / "config.json").read_text()
    add_label(files)
    with pytest.raises(RunError, match=r"new: '3'.*trained anew, since each of them chooses among all labels"):
        run(settings=QUICK, replace=False)
    assert (files / "run" / "classifier" / "config.json").read_text() == classifier
    lines = []
    run(settings=QUICK, log=lines.append)
    assert any("trained anew" in line for line in lines)
    assert not any("already done" in line for line in lines)
    assert len({path.name for path in (files / "run" / "members").iterdir()} - before) == 2


def test_a_label_that_is_gone_is_named(run, files):
    add_label(files)
    run(settings=QUICK, method="supervised")
    (files / "task.toml").write_text(TASK)
    labeled = pd.read_csv(files / "labeled.csv")
    labeled[labeled["label"] != 3].to_csv(files / "labeled.csv", index=False)
    with pytest.raises(RunError, match=r"other labels \(gone: '3'\)"):
        run(settings=QUICK, method="supervised", replace=False)


def test_a_label_that_is_renamed_keeps_every_model(run, files):
    """A name changes no number; training for hours to mend a spelling would be a waste."""
    first = run(settings=QUICK)
    jobs = sorted((files / "run" / "classifiers").iterdir())
    for old, new in (("1", "poor"), ("poor", "dull"), ("2", "fine")):
        rename_label(files, old, new)
        with pytest.raises(RunError, match=f"renamed: '{old} -> {new}'.*every model is kept"):
            run(settings=QUICK, replace=False)
        lines = []
        metrics = run(settings=QUICK, log=lines.append)
        done = [line for line in lines if "already done" in line]
        assert len(done) == 3  # two members and the classifier
        assert metrics["classifier"]["accuracy"] == first["classifier"]["accuracy"]
    run(settings=QUICK, replace=False)  # the same inputs
    assert sorted((files / "run" / "classifiers").iterdir()) == jobs
    predictions = clozify.load_run(files / "run").predict(["a fine game"])
    assert predictions.labels[0] in ("dull", "fine")
    config = json.loads((files / "run" / "classifier" / "config.json").read_text())
    assert config["id2label"] == {"0": "dull", "1": "fine"}
    kept = json.loads((jobs[0] / "model" / "config.json").read_text())
    assert kept["id2label"] == {"0": "1", "1": "2"}  # a job's files stay as they were written
