"""Progress on terminals, in notebooks and in logs."""

import io
import sys

import pytest

from clozify.utils import progress as module
from clozify.utils.progress import NotebookBar, ProgressLines, TerminalBar, TimedLines, hide_progress, progress


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_line_every_thirty_seconds_says_what_is_done_and_the_time_left():
    """A log that is silent for ten minutes looks like a program that hangs."""
    clock, lines = Clock(), []
    display = ProgressLines("member 1/3", 1_000, "steps", clock, lines.append)
    for second in range(1, 121):
        clock.now = 100.0 + second
        display.advance(2)
        display.write_if_due()
    assert lines == [
        "member 1/3: 60 of 1,000 steps in 30 s, about 8 min left",
        "member 1/3: 120 of 1,000 steps in 60 s, about 7 min left",
        "member 1/3: 180 of 1,000 steps in 90 s, about 7 min left".replace("in 90 s", "in 2 min"),
        "member 1/3: 240 of 1,000 steps in 2 min, about 6 min left",
    ]


def test_a_step_of_which_nothing_is_done_yet_is_told_without_a_guess():
    clock, lines = Clock(), []
    display = ProgressLines("scoring", 50, "rows", clock, lines.append)
    clock.now += 31
    display.write_if_due()
    assert lines == ["scoring: 0 of 50 rows in 31 s"]


def test_a_line_comes_even_while_one_unit_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(module, "LINE_EVERY", 0.01)
    written = module.threading.Event()
    monkeypatch.setattr(module, "_write_line", lambda line: written.set())
    with progress("pretraining", 5, "steps"):
        assert written.wait(20)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_display_fits_where_it_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert module._choose_display() is TimedLines
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert module._choose_display() is TerminalBar
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert module._choose_display() is NotebookBar


def test_a_notebook_gets_tqdms_bar(monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(module, "DELAY", 0.0)
    with progress("scoring", 4) as advance:
        advance(2)
    shown = capsys.readouterr()
    assert "scoring" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_can_be_hidden(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(module, "_choose_display", lambda: pytest.fail("shown"))
    with hide_progress(), progress("scoring", 4) as advance:
        advance(2)
