"""Validates `--devices` and `--at-once`, for this machine and for a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from clozify.errors import RunError


@dataclass(frozen=True)
class Devices:
    """The devices that a run's models are trained on."""

    kind: Literal["cpu", "cuda"]
    count: int  # GPUs; 1 for the CPU
    at_once: int  # models at a time on each

    @property
    def gpus(self) -> int:
        """The number of GPUs; 0 for the CPU."""
        return self.count if self.kind == "cuda" else 0


def choose_devices(
    devices: str | int = "auto", at_once: int | None = None, gpus: int | None = None, owner: str = "this machine"
) -> Devices:
    """The requested devices: `auto` (all GPUs, else the CPU), `cpu` or a number of GPUs.

    `gpus` are those that the `owner`, this machine or a cluster, has.
    """
    gpus = torch.cuda.device_count() if gpus is None else gpus
    at_once = parse_at_once(at_once) or 1
    if devices == "cpu" or (devices == "auto" and not gpus):
        return Devices("cpu", 1, at_once)
    if devices == "auto":
        return Devices("cuda", gpus, at_once)
    if not str(devices).isdecimal() or int(devices) < 1:
        raise RunError(f"--devices is '{devices}'; it takes 'auto', 'cpu' or a number of GPUs.")
    if int(devices) > gpus:
        raise RunError(f"--devices asks for {devices} GPUs, and {owner} has {gpus}; use 'auto' or 'cpu'.")
    return Devices("cuda", int(devices), at_once)


def parse_at_once(at_once: str | int | None) -> int | None:
    """How many models are trained at a time on each device; None for `auto`, which is measured."""
    if at_once == "auto":
        return None
    if at_once is None:
        return 1
    if not str(at_once).isdecimal() or int(at_once) < 1:
        raise RunError(f"--at-once is '{at_once}'; it takes 'auto' or a number of models, at least 1.")
    return int(at_once)
