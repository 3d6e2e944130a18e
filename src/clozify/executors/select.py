"""Chooses the executor of a run from `--executor`, `--address`, `--devices` and `--at-once`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from clozify.errors import RunError, did_you_mean, quoted
from clozify.executors.accelerate_launch import AccelerateExecutor, launch_device, launched_processes
from clozify.executors.base import Executor
from clozify.executors.devices import Devices, choose_devices
from clozify.executors.local import LocalExecutor
from clozify.executors.mps import mps_service
from clozify.executors.processes import ProcessExecutor
from clozify.executors.ray import RayExecutor

EXECUTORS = ("local", "ray")


def choose_executor(
    name: str = "local", address: str | None = None, devices: str | int = "auto", at_once: int | None = 1
) -> tuple[str, AbstractContextManager[Executor]]:
    """The kind of this process's device, and a context manager that yields the executor.

    `devices` are this machine's or the cluster's; `at_once` is None where a trial decides it later.
    """
    if name not in EXECUTORS:
        raise RunError(f"There is no executor '{name}'{did_you_mean(name, EXECUTORS)}; there is {quoted(EXECUTORS)}.")
    if launched_processes() > 1:
        if name != "local" or at_once != 1 or str(devices) not in ("auto", "cpu"):
            raise RunError(
                f"Accelerate's launcher has started {launched_processes()} processes, which train one model together; "
                "leave out --executor, --at-once and --devices N, or start the command without the launcher."
            )
        return launch_device(devices), AccelerateExecutor(launch_device(devices))
    if name == "ray":
        return choose_devices("cpu" if devices == "cpu" else "auto").kind, RayExecutor(address, devices, at_once or 1)
    if address is not None:
        raise RunError(f"--address {address} is a cluster's; ask for --executor ray too.")
    chosen = choose_devices(devices, at_once or 1)
    return chosen.kind, executor_on(chosen)


@contextmanager
def executor_on(devices: Devices) -> Iterator[Executor]:
    """An executor on devices of this machine; its processes end with the block."""
    count = devices.count * devices.at_once
    if count == 1:
        yield LocalExecutor()
        return
    with (
        mps_service(enabled=devices.gpus > 0) as variables,
        ProcessExecutor(count, devices.gpus, variables) as executor,
    ):
        yield executor


def single_worker_executor(
    name: str = "local", address: str | None = None, devices: str | int = "auto"
) -> AbstractContextManager[Executor]:
    """An executor with one worker, in a process of its own, whose memory is free again when it ends."""
    if name == "ray":
        return RayExecutor(address, devices, 1, max_workers=1)
    chosen = choose_devices(devices)
    executor = ProcessExecutor(1, min(1, chosen.gpus))
    executor.threads = max(1, executor.threads // chosen.count)  # those of one device
    return executor
