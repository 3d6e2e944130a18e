"""What `--executor`, `--devices` and `--at-once` mean, on this machine and on a cluster."""

import pytest

from clozify.errors import RunError
from clozify.executors.devices import Devices, choose_devices, parse_at_once
from clozify.executors.local import LocalExecutor
from clozify.executors.processes import ProcessExecutor
from clozify.executors.ray import RayExecutor, WorkerResources, worker_resources
from clozify.executors.select import choose_executor, executor_on, single_worker_executor


def test_auto_takes_all_gpus_or_else_the_cpu():
    assert choose_devices("auto", 2, gpus=4) == Devices("cuda", 4, 2)
    assert choose_devices("auto", gpus=0) == Devices("cpu", 1, 1)
    assert choose_devices("cpu", 3, gpus=4) == Devices("cpu", 1, 3)
    assert choose_devices("2", gpus=4) == choose_devices(2, gpus=4) == Devices("cuda", 2, 1)
    assert [choose_devices(devices, gpus=4).gpus for devices in ("cpu", "3")] == [0, 3]


def test_devices_that_are_missing_or_make_no_sense_are_refused():
    for devices, message in (("9", "asks for 9 GPUs, and the cluster has 8"), ("all", "is 'all'"), ("0", "is '0'")):
        with pytest.raises(RunError, match=message):
            choose_devices(devices, gpus=8, owner="the cluster")
    with pytest.raises(RunError, match="and this machine has 0; use 'auto' or 'cpu'"):
        choose_devices("1", gpus=0)
    with pytest.raises(RunError, match="--at-once is '0'"):
        choose_devices("cpu", 0)


def test_at_once_is_a_number_or_auto():
    assert [parse_at_once(text) for text in (None, "3", 2, "auto")] == [1, 3, 2, None]
    for wrong in ("0", "-1", "many", 0):
        with pytest.raises(RunError, match="at least 1"):
            parse_at_once(wrong)


def test_a_cluster_is_divided_by_gpus_or_by_machines():
    two = [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 4.0}, {}]
    assert worker_resources(two, at_once=2) == WorkerResources(workers=16, gpus=0.5, cpus=0, threads=1)
    assert worker_resources(two, "2") == WorkerResources(workers=2, gpus=1, cpus=0, threads=2)
    assert worker_resources(two, "cpu", 3) == WorkerResources(workers=6, gpus=0, cpus=8 / 3, threads=2)
    assert worker_resources([{"CPU": 2.0}], at_once=4) == WorkerResources(workers=4, gpus=0, cpus=0.5, threads=1)
    with pytest.raises(RunError, match="the cluster has 8"):
        worker_resources(two, "9")
    with pytest.raises(RunError, match="neither a GPU nor a CPU"):
        worker_resources([{}])


def test_the_executor_follows_from_its_name_and_the_number_of_models_at_a_time(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with executor_on(Devices("cpu", 1, 1)) as executor:
        assert isinstance(executor, LocalExecutor)
    with executor_on(Devices("cpu", 1, 3)) as executor:
        assert isinstance(executor, ProcessExecutor)
        assert executor.workers == 3
    device, executor = choose_executor("ray", "auto", "cpu", 2)
    assert device == "cpu"
    assert isinstance(executor, RayExecutor)
    assert single_worker_executor(devices="cpu").workers == 1
    assert single_worker_executor("ray", "auto").max_workers == 1


def test_an_executor_or_an_address_that_makes_no_sense_is_refused():
    with pytest.raises(RunError, match="did you mean 'ray'"):
        choose_executor("rai")
    with pytest.raises(RunError, match="ask for --executor ray too"):
        choose_executor(address="auto")
    with pytest.raises(RunError, match="on a machine of the cluster"), RayExecutor("ray://head:10001"):
        pass


def test_the_launcher_excludes_other_ways_to_run(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for options in ({"name": "ray"}, {"at_once": 2}, {"devices": "2"}):
        with pytest.raises(RunError, match="has started 2 processes"):
            choose_executor(**options)
