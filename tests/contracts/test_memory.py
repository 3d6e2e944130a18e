"""Memory does not grow with the number of rows."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def messages(benchmark: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / benchmark), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_million_short_rows_are_scored_within_a_gibibyte_and_a_half():
    used = messages("memory.py", "--rows", "1000000").split("rows:")[1].split("MiB")[0]
    assert float(used.replace(",", "")) < 1536


@pytest.mark.slow
def test_a_run_on_four_times_the_rows_takes_hardly_more_memory():
    """Unlabelled rows held in memory, as text, tokens, scores or labels, would cost hundreds of bytes each."""
    header, _, *lines = messages("scale.py", "--rows", "110000,440000", "--members", "1").splitlines()
    column = header.split("|").index(" MiB beyond the model ")
    small, large = (float(line.split("|")[column].replace(",", "")) for line in lines)
    assert large < small + 60  # 330,000 more rows: under 200 bytes each, with the allocator's variation of some 20 MiB
