"""What commands print of many labels: a page, not a list of all."""

import io

import numpy as np
import pytest
from rich.console import Console

from clozify.cli.tables import show_evaluation
from clozify.config.groups import LabelGroups
from clozify.inference.finished_run import EvaluationResult
from clozify.metrics import detailed_metrics


@pytest.mark.parametrize("labels", [20, 21, 150])
def test_an_evaluation_of_many_labels_prints_those_with_the_lowest_f1(labels):
    names = [f"label {number}" for number in range(labels)]
    truth = np.repeat(np.arange(labels), 2)[:-2]  # the last label has no row
    predicted = truth.copy()
    predicted[4:6] = 0
    groups = LabelGroups(names, {"first": names[:3]})
    evaluation = detailed_metrics(truth, np.eye(labels)[predicted], names, groups)
    result = EvaluationResult(model="m", data="d", rows=len(truth), warnings=[], **evaluation.model_dump())
    console = Console(file=io.StringIO(), width=120)
    show_evaluation(console, result)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 25
    assert ("the 20 of" in console.file.getvalue()) == (labels > 20)
    if labels > 20:
        assert lines[1].startswith("label 2 ")
        assert not any(line.startswith(f"{names[-1]} ") for line in lines)
    assert "Groups: accuracy 100.0, macro-F1" in console.file.getvalue()
    assert "0 of 2 errors leave the group" in console.file.getvalue()
