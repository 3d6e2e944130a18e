"""Which executor does a run's work, by name.

In: `local` or `ray`, a cluster's address, the devices, and how many models are trained at a time on each. Out: what
this process itself works on, and the executor, which ends with its block.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from clozify.errors import RunError, did_you_mean, quoted
from clozify.executors.accelerate_launch import Launched, device_of, launched
from clozify.executors.base import Executor
from clozify.executors.local import choose_devices, executor_for
from clozify.executors.processes import Processes
from clozify.executors.ray import Ray

EXECUTORS = ("local", "ray")


def parse_at_once(at_once: str | int | None) -> int | None:
    """How many models are trained at a time on each device; None for `auto`, which is to be measured."""
    if at_once == "auto":
        return None
    if at_once is None:
        return 1
    if not str(at_once).isdecimal() or int(at_once) < 1:
        raise RunError(f"--at-once is '{at_once}'; it takes 'auto' or a number of models, at least 1.")
    return int(at_once)


def choose_executor(
    name: str = "local", address: str | None = None, devices: str | int = "auto", at_once: int = 1
) -> tuple[str, AbstractContextManager[Executor]]:
    """The kind of this process's device, and where the work is done; `devices` are this machine's or the cluster's."""
    if name not in EXECUTORS:
        raise RunError(f"There is no executor '{name}'{did_you_mean(name, EXECUTORS)}; there is {quoted(EXECUTORS)}.")
    if launched() > 1:
        if name != "local" or at_once > 1 or str(devices) not in ("auto", "cpu"):
            raise RunError(
                f"Accelerate's launcher has started {launched()} processes, which train one model together; leave out "
                "--executor, --at-once and --devices N, or start the command without the launcher."
            )
        return device_of(devices), Launched(device_of(devices))
    if name == "ray":
        return choose_devices("cpu" if devices == "cpu" else "auto").kind, Ray(address, devices, at_once)
    if address is not None:
        raise RunError(f"--address {address} is a cluster's; ask for --executor ray too.")
    place = choose_devices(devices, at_once)
    return place.kind, executor_for(place)


def single_worker_executor(
    name: str = "local", address: str | None = None, devices: str | int = "auto"
) -> AbstractContextManager[Executor]:
    """An executor with one worker, in a process of its own, whose memory is free again when it ends."""
    if name == "ray":
        return Ray(address, devices, 1, workers=1)
    place = choose_devices(devices)
    worker = Processes(1, 1 if place.kind == "cuda" else 0)
    worker.threads = max(1, worker.threads // place.count)  # those of one device
    return worker
