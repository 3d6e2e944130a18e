"""How many models are trained at a time: never more than fit, and never without a reason."""

import pytest

from clozify.errors import RunError
from clozify.executors.devices import parse_at_once
from clozify.pipeline.concurrency import MemoryUse, _longest_rows, fit_models

GIB = 1 << 30


@pytest.mark.parametrize(
    ("measured", "models", "count", "reason"),
    [
        (MemoryUse("cuda", 12 * GIB, 24 * GIB, 16), 12, 1, "the memory"),  # two would leave nothing to the run itself
        (MemoryUse("cuda", 4 * GIB, 24 * GIB, 16), 12, 4, "the memory"),
        (MemoryUse("cuda", 4 * GIB, 140 * GIB, 16), 12, 8, "the largest number that is worth it"),
        (MemoryUse("cuda", 4 * GIB, 140 * GIB, 16), 3, 3, "the number of models"),
        (MemoryUse("cuda", 4 * GIB, 140 * GIB, 2), 12, 2, "the number of threads, 2"),
        (MemoryUse("cpu", 1 * GIB, 64 * GIB, 16), 12, 4, "the number of threads, 16"),
        (MemoryUse("cpu", 1 * GIB, 64 * GIB, 2), 12, 1, "the number of threads, 2"),
        (MemoryUse("cpu", 8 * GIB, 20 * GIB, 64), 12, 1, "the memory"),
        (MemoryUse("cpu", 30 * GIB, 20 * GIB, 64), 12, 1, "the memory"),  # one at a time is always tried
    ],
)
def test_memory_threads_and_models_decide_how_many_are_trained_at_a_time(measured, models, count, reason):
    """One too many, and all of them run out of memory in the middle of the night."""
    result, why = fit_models(measured, models)
    assert result == count
    assert why.endswith(f"the limit is {reason}")
    assert why.startswith(f"at once: {count} on each {'GPU' if measured.device == 'cuda' else 'machine'}; one takes ")
    assert f"{measured.peak / GIB:.1f} of {measured.free / GIB:.1f} GiB" in why


def test_the_longest_rows_are_measured(rows):
    """A trial of short rows finds room that the long ones take later."""
    assert _longest_rows(rows).texts("text")[2].startswith("utility")
    from clozify.pipeline import concurrency as space

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "TRIAL_ROWS", 1)
        assert _longest_rows(rows).texts("text")[0].startswith("utility")


def test_a_number_or_auto_is_taken_and_nothing_else():
    assert [parse_at_once(options) for options in (None, "3", 2, "auto")] == [1, 3, 2, None]
    for wrong in ("0", 0, "-1", "all", "1.5"):
        with pytest.raises(RunError, match="it takes 'auto' or a number"):
            parse_at_once(wrong)
