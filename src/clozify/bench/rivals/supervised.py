"""Supervised training with the settings of clozify, by `clozify.train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clozify.bench.rivals.clozify_run import PACKAGES as PACKAGES
from clozify.bench.rivals.clozify_run import RunModel
from clozify.bench.rivals.clozify_run import load_libraries as load_libraries

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "supervised"
TITLE = "supervised"
SETTINGS = "the bench's recipe: a classification head on the encoder, both trained"
VERSION = 2
REQUIREMENTS: tuple[str, ...] = ()
ENCODER = "model"
UNLABELED = False
MAX_LENGTH = True
NEEDS = ""


def train(job: Job) -> RunModel:
    """Train by the method `supervised`."""
    return RunModel(job, "supervised")
