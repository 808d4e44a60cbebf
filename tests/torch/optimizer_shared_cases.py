"""phub.torch.DistributedOptimizer with share_parameters. Each case runs on every rank, in one
group."""

from __future__ import annotations

import copy
import logging
import pathlib
import warnings
from typing import Any

import torch

import phub
from optimizer_failure_cases import fails
from optimizer_reference import Reference, adam, backward, wrapped
from phub.torch import Options, OptimizerError, broadcast_parameters
from training_cases import identical_on_all_ranks, network


def sharing(model: Any, **options: Any) -> Any:
    return wrapped(model, adam, share_parameters=model, **options)


def inside(optimizer: Any, model: Any) -> list[bool]:
    """For each parameter, whether it lies in the memory of its key."""
    places = [
        (bundle.key.parameters.ctypes.data, bundle.key.parameters.nbytes)
        for bundle in optimizer._phub._bundles
    ]
    return [
        any(begin <= each.data_ptr() < begin + size for begin, size in places)
        for each in model.parameters()
    ]


def flags_of(address: int) -> str:
    """Of the mapping at an address: "r--s" if it is shared and can only be read."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split()[1]
    return "not mapped"


def train(optimizer: Any, model: Any, expected: Any, step: int, rank: int, size: int) -> None:
    optimizer.zero_grad()
    backward(model, step, rank, size)
    expected.step(model, phub.Adam(0.01), size)
    optimizer.step()


def case_bits(rank: int, size: int) -> None:
    for options in ({}, {"push": "step"}, {"skip_unused": True}):
        model = network(buffers=True)
        optimizer = sharing(model, **options)
        assert all(inside(optimizer, model)), inside(optimizer, model)
        for each in model.parameters():
            assert flags_of(each.data_ptr()) == "r--s", flags_of(each.data_ptr())
        expected = Reference(model)
        for step in range(3):
            train(optimizer, model, expected, step, rank, size)
            expected.check(model, str(options))
        assert all(inside(optimizer, model))
        identical_on_all_ranks(model)
        optimizer.leave()


def case_modules_that_wait(rank: int, size: int) -> None:
    model = network()
    optimizer = sharing(model, wait_in_forward=model)
    expected = Reference(model)
    for step in range(3):
        train(optimizer, model, expected, step, rank, size)
    optimizer.wait_for_parameters()
    expected.check(model, "wait_in_forward")


def case_steps_are_seen_by_autograd(rank: int, size: int) -> None:
    model = network()
    optimizer = sharing(model)
    backward(model, 0, rank, size)
    kept = model(torch.ones(2, 16)).sum()
    optimizer.step()
    fails(RuntimeError, ["modified by an inplace operation"], kept.backward)


def case_loading_a_model(rank: int, size: int) -> None:
    model = network()
    saved = copy.deepcopy(model.state_dict())
    optimizer = sharing(model)
    expected = Reference(model)
    train(optimizer, model, expected, 0, rank, size)
    model.load_state_dict(saved)
    assert not any(inside(optimizer, model))
    for name, each in model.named_parameters():
        assert torch.equal(each, saved[name]), name
    broadcast_parameters(model.state_dict(), root_rank=0)
    assert all(inside(optimizer, model))
    for name, each in model.named_parameters():
        assert torch.equal(each, saved[name]), name
    expected.parameters = [each.detach().clone() for each in model.parameters()]
    train(optimizer, model, expected, 1, rank, size)
    expected.check(model, "after load_state_dict")


def case_state_of_the_optimizer(rank: int, size: int) -> None:
    model = network()
    optimizer = sharing(model)
    expected = Reference(model)
    train(optimizer, model, expected, 0, rank, size)
    state = optimizer.state_dict()
    train(optimizer, model, Reference(model), 1, rank, size)
    model.load_state_dict(dict(zip(dict(model.named_parameters()), expected.parameters)), False)
    optimizer.load_state_dict(state)
    assert all(inside(optimizer, model))
    train(optimizer, model, expected, 1, rank, size)
    expected.check(model, "after load_state_dict of the optimizer")


def case_after_leaving(rank: int, size: int) -> None:
    model = network()
    optimizer = sharing(model)
    expected = Reference(model)
    train(optimizer, model, expected, 0, rank, size)
    optimizer.leave()
    expected.check(model, "after leave()")
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1.0)


def case_parameters_that_were_taken_out(rank: int, size: int) -> None:
    model = network()
    optimizer = sharing(model)
    model[0].weight.data = model[0].weight.detach().clone()
    fails(
        OptimizerError,
        ["parameter 0.weight does not lie in phub's memory"],
        lambda: (backward(model, 0, rank, size), optimizer.step()),
    )


def case_what_cannot_be_shared(rank: int, size: int) -> None:
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fails(
            ValueError,
            ["share_parameters", "parameter_dtype=torch.float16"],
            lambda: sharing(model, parameter_dtype=torch.float16),
        )
        fails(TypeError, ["share_parameters must be the model"], lambda: wrapped(
            model, adam, share_parameters=list(model.parameters())))
        fails(ValueError, ["a model that does not have parameter 0.weight"], lambda: wrapped(
            model, adam, share_parameters=torch.nn.Linear(2, 2)))


def case_private_memory_over_tcp(rank: int, size: int) -> None:
    model = network()
    with _Lines("phub") as lines:
        optimizer = sharing(model, options=Options(transport="tcp"))
    assert any("workers have one copy only over shared memory" in each for each in lines), lines
    expected = Reference(model)
    train(optimizer, model, expected, 0, rank, size)
    expected.check(model, "tcp")
    assert all(inside(optimizer, model))
    optimizer.leave()


class _Lines:
    """The lines of a logger inside the `with` block."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._lines: list[str] = []
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self._lines.append(record.getMessage())  # type: ignore

    def __enter__(self) -> list[str]:
        self._logger.addHandler(self._handler)
        return self._lines

    def __exit__(self, *_: Any) -> None:
        self._logger.removeHandler(self._handler)
