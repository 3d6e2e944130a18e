"""Everything from Python, without a file: a task as a dict, rows as lists and DataFrames."""

import pandas as pd
import pytest

import clozify

TASK = {
    "fields": ["text"],
    "labels": {"good": "great", "bad": "bad"},
    "patterns": ["It was {mask}. {text}", "Just {mask}! || {text}"],
}
LABELED = [("a fine game", "good"), ("a slow tool", "bad"), ("the music player", "good"), ("mail for all", "bad")]
UNLABELED = [f"fonts and more number {n}" for n in range(12)]
SETTINGS = {"repetitions": 1, "finetune.max_steps": 3, "distill.max_steps": 3, "max_seq_length": 40}


def test_a_run_needs_no_file(tiny_folder, tmp_path):
    model = str(tiny_folder("bert"))
    frame = pd.DataFrame(LABELED, columns=["text", "label"])
    result = clozify.train(TASK, LABELED, tmp_path / "a", UNLABELED, test=frame, model=model, settings=SETTINGS)
    again = clozify.train(TASK, frame, tmp_path / "b", pd.Series(UNLABELED), LABELED, model=model, settings=SETTINGS)
    assert "4 of 4 labelled rows are test rows too" in " ".join(result.metrics.warnings)
    assert result.metrics.classifier == again.metrics.classifier
    assert set(result.predict(["a joy"]).labels) <= set(TASK["labels"])
    suggestions = clozify.suggest(tmp_path / "a", 2, unlabeled=UNLABELED)
    assert {row.text for row in suggestions.rows} <= set(UNLABELED)
    assert suggestions.members == 2  # the members' scores of the run, not new ones
    with pytest.raises(clozify.RunError, match="were passed to the run in memory"):
        clozify.suggest(tmp_path / "a", 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": 5},
        {"task": TASK | {"patterns": []}},
        {"labeled": 5},
        {"labeled": UNLABELED},
        {"labeled": [("a", "good"), ("b", "neither")]},
        {"unlabeled": [1, 2]},
        {"recipe": 5},
        {"settings": {"distil.max_steps": 3}},
        {"settings": 3},
        {"settings": {"seed": object()}},
        {"output": None},
        {"output": ""},
        {"examples": "4"},
    ],
)
def test_what_cannot_be_used_is_an_error_of_clozify(changes, tmp_path):
    arguments = {"task": TASK, "labeled": LABELED, "unlabeled": UNLABELED, "output": tmp_path / "run"}
    with pytest.raises(clozify.ClozifyError):
        clozify.train(**(arguments | changes))
    assert not (tmp_path / "run" / "run.json").exists()
