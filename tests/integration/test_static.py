"""`--student static`: a run whose classifier is static, and what is done with it."""

import json
import subprocess
import sys

import numpy as np
import pytest

import clozify
from clozify.errors import ClozifyError
from tests.integration.checks import assert_metrics_are_those_of_the_scores


def test_a_static_student_becomes_the_classifier_of_the_run(run, files):
    metrics = run(student="static")
    folder = files / "run"
    assert_metrics_are_those_of_the_scores(folder, files / "test.csv")
    print(json.dumps(metrics["static"], indent=1))
    print((folder / "classifier" / "README.md").read_text())
