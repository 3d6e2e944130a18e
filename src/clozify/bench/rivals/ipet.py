"""iPET, by `clozify.train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clozify.bench.rivals.clozify_run import PACKAGES as PACKAGES
from clozify.bench.rivals.clozify_run import RunModel
from clozify.bench.rivals.clozify_run import load_libraries as load_libraries

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "ipet"
TITLE = "iPET"
SETTINGS = "the bench's recipe; the models label rows for each other before the classifier is trained"
VERSION = 2
REQUIREMENTS: tuple[str, ...] = ()
ENCODER = "model"
UNLABELED = True
MAX_LENGTH = True
NEEDS = ""


def train(job: Job) -> RunModel:
    """Train by the method `ipet`."""
    return RunModel(job, "ipet")
