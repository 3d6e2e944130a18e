"""How many threads PyTorch computes with, and how they wait for each other.

- The number follows the processors that this process may use: its affinity, which PyTorch knows, and the CPU quota of
  its control group (a container's `--cpus`), which it does not. The load is not considered: results on a CPU depend on
  the number of threads in the last bits, so a run that is resumed at a busy hour would differ.
- OpenMP's threads spin while they wait for each other. Where other programs use the processors, too, the thread that
  all wait for is often not running, and training steps took 3 to 19 times as long (benchmarks/threads.py). Threads
  that wait passively give way to it, at a loss of about a quarter on an idle machine. So they wait passively where the
  machine is busy when a command starts. Results do not depend on this.

What the user has set (OMP_NUM_THREADS, OMP_WAIT_POLICY and so on) stays.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
NUMBER_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

BUSY = 0.25  # of the usable processors in use by other programs


def usable_processors(cgroup: Path = CGROUP) -> int:
    """How many processors this process may use, by its affinity and its control group's quota."""
    processors, quota = _processors(), _cpu_quota(cgroup)
    return processors if quota is None else max(1, min(processors, math.ceil(quota)))


def _processors() -> int:
    """The processors of this process's affinity; with hyper-threading, two for each core."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def _cpu_quota(cgroup: Path) -> float | None:
    """The quota in processors (cgroup v2, else v1); None where there is none."""
    try:
        if (cgroup / "cpu.max").is_file():
            quota, period = (cgroup / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota, period = (
                (cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period")
            )
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # no control groups, or "max"
        return None


def is_busy() -> bool:
    """Whether other programs use the processors, by the load average of the last minute."""
    if not hasattr(os, "getloadavg"):  # Windows
        return False
    usable = usable_processors()
    return os.getloadavg()[0] > (os.cpu_count() or 1) - usable + BUSY * usable


def openmp_variables() -> dict[str, str]:
    """The variables for a new process that the user has not set."""
    variables = {}
    if is_busy() and not any(name in os.environ for name in WAIT_VARIABLES):
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    usable = usable_processors()
    # without a quota PyTorch chooses well: a thread for each core, not for each of its hyper-threads
    if usable < _processors() and not any(name in os.environ for name in NUMBER_VARIABLES):
        variables["OMP_NUM_THREADS"] = str(usable)
    return variables


@contextmanager
def openmp_environment() -> Iterator[None]:
    """Sets the variables that OpenMP reads when PyTorch is loaded; for a program that has not loaded it yet."""
    variables = openmp_variables()
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@contextmanager
def threads_within_quota(log: Callable[[str], None]) -> Iterator[None]:
    """PyTorch uses no more threads than there are usable processors within the block, and the log says how many.

    A smaller number stays, and so does any number where a variable sets one.
    """
    import torch

    threads, usable = torch.get_num_threads(), usable_processors()
    chosen = threads if any(name in os.environ for name in NUMBER_VARIABLES) else min(threads, usable)
    log(_describe(chosen, usable))
    if chosen == threads:
        yield
        return
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _describe(threads: int, usable: int) -> str:
    text = f"{threads} thread{'s' if threads > 1 else ''} on {usable} processor{'s' if usable > 1 else ''}"
    if not is_busy():
        return text
    text += f", which other programs use, too (load average {os.getloadavg()[0]:.1f})"
    if threads > 1 and not any(name in os.environ for name in WAIT_VARIABLES):
        text += "; set OMP_WAIT_POLICY=PASSIVE before Python starts, or training may take many times as long"
    return text
