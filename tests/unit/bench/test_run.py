"""The time that a bench has left."""

import time

import pytest

from clozify.bench.run import TimeLeft


def test_the_time_left_is_known_once_every_method_has_run(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    left = TimeLeft(["tfidf", "pet", "tfidf", "pet", "pet"])
    left.add("tfidf", 2.0)
    assert left.estimate is None
    left.add("pet", 40.0)
    now[0] += 42.0
    assert left.estimate == pytest.approx(2.0 + 80.0)
    now[0] -= 21.0  # two cells at a time
    assert left.estimate == pytest.approx(41.0)
