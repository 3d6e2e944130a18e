import json

import pytest

from clozify.runs.label_changes import LabelChanges
from clozify.runs.results import key_labels


def run_of(**words):
    return {"task": {"verbalizers": [{"words": {label: list(of) for label, of in words.items()}}]}}


def test_the_same_labels_have_no_changes():
    assert LabelChanges.between(run_of(a=["x"], b=["y"]), run_of(a=["x"], b=["z"])) is None
    assert LabelChanges.between({}, run_of(a=["x"], b=["y"])) is None
    assert LabelChanges.between({"task": 3}, run_of(a=["x"])) is None


def test_added_and_removed_labels_are_told_apart_from_renamed_ones():
    before = run_of(a=["x"], b=["y"])
    assert str(LabelChanges.between(before, run_of(a=["x"], b=["y"], c=["z"]))) == "new: 'c'"
    assert str(LabelChanges.between(before, run_of(a=["x"]))) == "gone: 'b'"
    assert str(LabelChanges.between(before, run_of(a=["x"], c=["z"]))) == "new: 'c'; gone: 'b'"
    renamed = LabelChanges.between(before, run_of(a=["x"], c=["y"]))
    assert renamed.renamed == {"c": "b"}
    assert str(renamed) == "renamed: 'b -> c'"
    many = run_of(a=["x"], **{f"l{number}": [f"w{number}"] for number in range(9)})
    assert str(LabelChanges.between(run_of(a=["x"]), many)) == "new: 'l0', 'l1', 'l2' and 6 more"


def test_labels_in_another_order_are_no_renaming():
    """The words would be the same set, but a label's index is its place in every score."""
    assert LabelChanges.between(run_of(a=["x"], b=["y"]), run_of(b=["y"], a=["x"])) is None


@pytest.mark.parametrize(
    ("previous", "now", "expected"),
    [
        ({}, run_of(a=["x"]), None),
        (run_of(a=["x"], b=["y"]), run_of(a=["x"], b=["y"]), None),
        (run_of(a=["x"], b=["y"]), run_of(a=["x"], c=["y"]), ["a", "b"]),
        (run_of(a=["x"], c=["y"]) | {"key_labels": ["a", "b"]}, run_of(d=["x"], c=["y"]), ["a", "b"]),
        (run_of(a=["x"], c=["y"]) | {"key_labels": ["a", "b"]}, run_of(a=["x"], c=["y"]), ["a", "b"]),
        (run_of(a=["x"], c=["y"]) | {"key_labels": ["a", "b"]}, run_of(a=["x"], c=["y"], d=["z"]), None),
        (run_of(a=["x"], b=["y"]), run_of(b=["y"], a=["x"]), None),
    ],
)
def test_jobs_keep_the_names_of_the_first_run_as_long_as_only_names_change(tmp_path, previous, now, expected):
    (tmp_path / "run.json").write_text(json.dumps(previous))
    assert key_labels(tmp_path, now) == expected
