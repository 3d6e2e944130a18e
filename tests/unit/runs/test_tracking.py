"""What trackers are sent: names that all of them accept, on one axis of steps."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from clozify.errors import RecipeError
from clozify.runs.tracking import Tracking, check_trackers, flatten, tracker_name


def test_nested_settings_become_plain_names_and_lists_are_left_out():
    assert flatten({"a": 1, "b": {"c": "x", "d": {"e": True}}, "f": [1]}) == {"a": 1, "b.c": "x", "b.d.e": True}
    assert tracker_name("member 1/2, pair 3/loss") == "member 1/2_ pair 3/loss"


def test_trainings_share_one_axis_of_steps_also_when_one_is_started_again():
    logged = []
    tracking = Tracking(SimpleNamespace(log=lambda values, step: logged.append((*values, step))))
    for name, step in (("a", 2), ("b", 2), ("a", 4), ("b", 1)):  # b was killed and began anew
        tracking.log_loss(name, step, 0.5)
    assert logged == [("a/loss", 2), ("b/loss", 4), ("a/loss", 6), ("b/loss", 7)]


def test_a_tracker_that_does_not_exist_or_is_not_installed_is_refused(monkeypatch):
    """Accelerate would leave it out silently."""
    check_trackers([])
    with pytest.raises(RecipeError, match="did you mean 'tensorboard'"):
        check_trackers(["tensorbord"])
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(RecipeError, match="pip install comet-ml"):
        check_trackers(["comet_ml"])


def test_every_step_moves_the_bar_and_only_losses_that_were_read_are_logged(monkeypatch):
    shown, logged = [], []
    monkeypatch.setattr("clozify.runs.tracking.progress", lambda *_: nullcontext(shown.append))
    tracking = Tracking(SimpleNamespace(log=lambda values, step: logged.append((*values.values(), step))))
    with tracking.training("a", 3) as on_step:
        for step, loss in ((1, None), (2, 0.5), (3, None)):
            on_step(step, loss)
    assert shown == [1, 1, 1]
    assert logged == [(0.5, 2)]
