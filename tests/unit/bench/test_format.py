"""Sizes and times as texts."""

import pytest

from clozify.bench import format as fmt
from clozify.report.format import rough_duration


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, ""),
        (0, "0.0 KiB"),
        (2_000, "2.0 KiB"),
        (58_000, "57 KiB"),
        (300_000, "0.3 MiB"),
        (1547 * 2**20, "1,547 MiB"),
    ],
)
def test_a_size_is_never_shown_as_nothing(size, text):
    assert fmt.mib(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 second"), (45, "45 seconds"), (100, "2 minutes"), (2_400, "40 minutes"), (12_600, "3.5 hours")],
)
def test_an_estimate_in_a_sentence_has_its_unit_in_the_right_number(seconds, text):
    assert rough_duration(seconds) == text
