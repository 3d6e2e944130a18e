"""Reductions over the processes that train one model together."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from clozify.errors import RunError
from clozify.utils.process_group import ProcessGroup, current_group, require_single_process, use_group


def test_every_row_and_every_batch_belongs_to_exactly_one_process():
    for size in (1, 2, 3, 5):
        groups = [ProcessGroup(rank, size) for rank in range(size)]
        for rows in (0, 1, 4, 7):
            assert [row for group in groups for row in range(rows)[group.local_slice(rows)]] == list(range(rows))
        assert [sum(group.owns_batch(index) for group in groups) for index in range(7)] == [1] * 7


def test_the_current_group_is_a_process_on_its_own_outside_of_a_block():
    assert current_group() == ProcessGroup()
    with use_group(ProcessGroup(1, 2)):
        assert current_group() == ProcessGroup(1, 2)
    assert current_group() == ProcessGroup()


def test_a_method_that_cannot_be_split_is_refused():
    """Each process would take the full step, and the gradients would count twice."""
    with use_group(ProcessGroup(0, 2)), pytest.raises(RunError, match="UDA is not trained by several"):
        require_single_process("UDA")
    require_single_process("UDA")


def test_one_process_reduces_nothing():
    array, parameter = np.ones(2, dtype=np.float32), torch.nn.Parameter(torch.ones(2))
    assert ProcessGroup().sum_arrays(array) is array
    assert ProcessGroup().sum_gradients([parameter], torch.tensor(3.0)) == 3
    assert parameter.grad is None


def parameters_of(rank):
    """Gradients of both processes, of one, of none, in two dtypes, and a frozen parameter."""
    generator = torch.Generator().manual_seed(rank)
    shapes = {"both": (3, 5), "first": (4,), "none": (2,), "half": (7, 2), "frozen": (3,)}
    parameters = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    parameters["half"] = torch.nn.Parameter(torch.zeros(7, 2, dtype=torch.bfloat16))
    parameters["frozen"].requires_grad_(False)
    for name in ("both", "half", *(["first"] if rank == 0 else [])):
        drawn = torch.randn(shapes[name], generator=generator)
        parameters[name].grad = drawn.to(parameters[name].dtype)
    return parameters


class FakeNetwork:
    """All-reduce between two threads, each of which stands for a process."""

    def __init__(self):
        self.barrier, self.tensors = threading.Barrier(2, timeout=10), {}
        self.reductions = []

    def all_reduce(self, tensor):
        self.tensors[threading.get_ident()] = tensor.clone()
        self.barrier.wait()
        first, second = self.tensors.values()
        self.barrier.wait()
        tensor.copy_(first + second)
        self.reductions.append(tensor.shape)


def test_two_processes_get_the_sum_of_their_gradients_to_the_bit(monkeypatch):
    network = FakeNetwork()
    monkeypatch.setattr(torch.distributed, "all_reduce", network.all_reduce)
    parameters = [parameters_of(0), parameters_of(1)]

    def sums(rank):
        group, loss = ProcessGroup(rank, 2), torch.tensor(0.1 + rank, requires_grad=True)
        array = np.full((2, 3), rank + 1, dtype=np.float32)
        return group.sum_gradients(parameters[rank].values(), loss), group.sum_arrays(array)

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(sums, range(2)))
    first, second = parameters_of(0), parameters_of(1)
    for (loss, array), reduced in zip(results, parameters, strict=True):
        assert loss == torch.tensor(0.1) + torch.tensor(1.1)
        assert (array == 3).all()
        gradients = {name: parameter.grad for name, parameter in reduced.items()}
        assert gradients["none"] is None
        assert gradients["frozen"] is None
        assert torch.equal(gradients["first"], first["first"].grad)
        for name in ("both", "half"):
            assert torch.equal(gradients[name], first[name].grad + second[name].grad)
    assert len(network.reductions) == 2 * (1 + 2 + 1)  # losses and counts, a buffer for each dtype, the arrays
