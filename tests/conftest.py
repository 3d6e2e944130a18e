from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

with suppress(ImportError):  # tests marked `gpu` run without it
    import hypothesis

    # The first example pays for making a model; the same examples every time, so that CI does not fail by chance.
    hypothesis.settings.register_profile("clozify", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("clozify")

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may need a network
# One thread for each of pytest-xdist's workers and the processes they start: tiny models gain nothing from more.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LONGEST = ("test_tutorial.py", "test_ray.py", "test_memory.py", "test_llm.py")  # by their slow tests, in minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, so that none is left alone at the end; skip tests marked `gpu` without a GPU."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Data sets read in tests are cached in a folder that goes away."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = str(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory):
    """A function from an architecture's name to the folder of a tiny model of it, each made once."""
    from tests.tiny import make_model

    made: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = make_model(architecture, tmp_path_factory.mktemp(architecture))
        return made[architecture]

    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """A function from an architecture's name to a loaded tiny model."""
    from clozify.models.cloze import load_model

    made = {}

    def load(architecture: str = "bert"):
        if architecture not in made:
            made[architecture] = load_model(tiny_folder(architecture))
        return made[architecture]

    return load


@pytest.fixture(scope="session")
def builtin():
    """The smaller built-in model; tests that name a model write `builtin:mini`, too."""
    from clozify.models.cloze import load_model

    return load_model("builtin:mini")


TASK = """
name = "stars"
fields = ["text"]
patterns = ["It was {mask}. {text}", "{text}. All in all, it was {mask}.", "Just {mask}! || {text}"]
[labels]
1 = "bad"
2 = "okay"
3 = "great"
"""


@pytest.fixture
def stars():
    from clozify.config.task import parse_task

    return parse_task(TASK)


FOUR_PATTERNS = """
name = "stars"
fields = ["title", "text"]
patterns = [
  "It was {mask}. {title} {text}",
  "{text}. All in all, it was {mask}.",
  "Just {mask}! || {text}",
  '"{title:no_final_punctuation}"? || {mask}, "{text}"',
]
[labels]
1 = ["bad", "terrible"]
2 = "okay"
3 = "great"
"""
TEXTS = ["a game for children", "", "utility for analysis of data. " * 9, "Mail! server?", "x"]


@pytest.fixture
def rows():
    """Five rows of odd lengths for a task with four patterns of all shapes."""
    from datasets import Dataset

    from clozify.config.task import parse_task
    from clozify.data.rows import Rows

    return Rows(Dataset.from_dict({"title": TEXTS[::-1], "text": TEXTS}), parse_task(FOUR_PATTERNS))
