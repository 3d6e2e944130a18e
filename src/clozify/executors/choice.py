"""Which executor does a run's work, by name.

In: `local` or `ray`, a cluster's address, the devices, and how many models are trained at a time on each. Out: what
this process itself works on, and the executor, which ends with its block.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from clozify.bench import Executor
from clozify.errors import RunError, did_you_mean, listed
from clozify.executors.local import choose_devices, executor_for
from clozify.executors.ray import Ray

EXECUTORS = ("local", "ray")


def choose_executor(
    name: str = "local", address: str | None = None, devices: str | int = "auto", at_once: int | None = None
) -> tuple[str, AbstractContextManager[Executor]]:
    """The kind of this process's device, and where the work is done; `devices` are this machine's or the cluster's."""
    if name not in EXECUTORS:
        raise RunError(f"There is no executor '{name}'{did_you_mean(name, EXECUTORS)}; there is {listed(EXECUTORS)}.")
    if name == "ray":
        return choose_devices("cpu" if devices == "cpu" else "auto").kind, Ray(address, devices, at_once)
    if address is not None:
        raise RunError(f"--address {address} is a cluster's; ask for --executor ray too.")
    place = choose_devices(devices, at_once)
    return place.kind, executor_for(place)
