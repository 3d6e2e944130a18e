"""Memory does not grow with the number of rows."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"


def used(rows: int) -> float:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--rows", str(rows)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split("rows:")[1].split("MiB")[0].replace(",", ""))


@pytest.mark.slow
def test_a_million_short_rows_are_scored_within_a_gibibyte_and_a_half():
    assert used(1_000_000) < 1536
