"""bf16 on a CPU is taken only where a child process lived through it, faster than float32 and close to it."""

import sys

import pytest

from clozify.config.recipe import load_recipe
from clozify.errors import RecipeError
from clozify.models import cpu_precision as precision
from clozify.models.cpu_precision import Trial, choose_precision, try_bf16


@pytest.fixture
def child(monkeypatch):
    """A function that puts a program in the place of the trial."""

    def put(program, patience=20.0):
        try_bf16.cache_clear()
        monkeypatch.setattr(precision, "CHILD", (sys.executable, "-c", program))
        monkeypatch.setattr(precision, "TIMEOUT", patience)

    yield put
    try_bf16.cache_clear()


@pytest.mark.parametrize(
    ("program", "patience", "problem"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", 20, r"refused by the processor \(SIGILL\)"),
        ("import time; time.sleep(20)", 0.3, r"no answer within 0.3 s"),
        ("raise RuntimeError('no such kernel')", 20, "failed: RuntimeError: no such kernel"),
    ],
)
def test_a_processor_that_refuses_bf16_is_found_out_by_a_child(child, program, patience, problem):
    """An announced instruction may still be refused, which would kill the run itself."""
    child(program, patience)
    notes = []
    chosen = choose_precision(load_recipe("quick", ["scoring=auto"]), "builtin", "cpu", notes)
    assert chosen.scoring == "float32"
    with pytest.raises(RecipeError, match=problem):
        choose_precision(load_recipe("quick", ["scoring=bf16"]), "builtin", "cpu", notes)
    assert len(notes) == 1
    assert "scored in float32" in notes[0]


@pytest.mark.parametrize(
    ("gain", "difference", "pays"), [(2.0, 0.01, True), (1.05, 0.01, False), (0.6, 0.01, False), (2.0, 0.2, False)]
)
def test_auto_takes_bf16_only_where_it_is_faster_and_close(child, gain, difference, pays):
    child(f'print(\'{{"gain": {gain}, "difference": {difference}}}\')')
    chosen = choose_precision(load_recipe("quick", ["scoring=auto"]), "builtin", "cpu", [])
    assert (chosen.scoring == "bf16") == pays == Trial("", gain, difference).pays
    forced = choose_precision(load_recipe("quick", ["scoring=bf16"]), "builtin", "cpu", [])
    assert forced.scoring == "bf16"


def test_nothing_is_tried_unless_it_is_asked_for(child):
    child("raise SystemExit(1)")
    recipe = load_recipe("quick")
    assert choose_precision(recipe, "builtin", "cpu", []) is recipe
    options = load_recipe("quick", ["scoring=auto"])
    assert choose_precision(options, "builtin", "cuda", []) is options
