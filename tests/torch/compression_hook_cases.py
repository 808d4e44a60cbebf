"""phub.torch.compression_hook with DistributedDataParallel. Each case runs on every rank."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import phub
from optimizer_failure_cases import fails
from phub.torch import CompressionState, NotServed, compression_hook
from training_cases import close, identical_on_all_ranks, network, serial, sgd, train


def hooked(model: Any, compression: Any, group: Any = None) -> Any:
    wrapped = DistributedDataParallel(model, process_group=group)
    wrapped.register_comm_hook(CompressionState(compression, group), compression_hook)
    return wrapped


def case_training(rank: int, size: int) -> None:
    for compression, distance in (
        (phub.Int8(), 0.02),
        (phub.Int8(error_feedback=True), 0.02),
        (phub.TopK(0.5), 0.2),
        (phub.RandomK(0.5), 0.4),
    ):
        model = network()
        wrapped = hooked(model, compression)
        train(wrapped, sgd(model), rank, size)
        identical_on_all_ranks(model)
        close(model.parameters(), serial(size), distance)


def case_what_is_left_out_is_sent_later(rank: int, size: int) -> None:
    """With a rate of 1, the parameter moves by all that was sent."""
    for compression in (phub.TopK(0.25), phub.RandomK(0.25), phub.Int8(error_feedback=True)):
        model = torch.nn.Linear(8, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        wrapped = hooked(model, compression)
        given = torch.zeros(8)
        steps = 40
        for step in range(steps):
            x = torch.arange(8.0).roll(step).add(rank)
            model.zero_grad()
            wrapped(x).sum().backward()
            with torch.no_grad():
                model.weight -= model.weight.grad
            # The first step's rest is lost: DistributedDataParallel makes new buckets after it.
            for other in range(size):
                given += torch.arange(8.0).roll(step).add(other) / size
        moved = -model.weight.detach().reshape(-1)
        # Without error feedback, TopK would never send the least elements, and RandomK 3 of 4.
        # An element may wait for RandomK for many steps.
        missing = (given - moved).abs()
        assert missing.max() < 0.6 * given.max(), (compression, given, moved)
        assert missing.mean() < 0.2 * given.max(), (compression, given, moved)


def case_nan_reaches_all_ranks(rank: int, size: int) -> None:
    for compression in (phub.Int8(), phub.TopK(0.1), phub.RandomK(0.1)):
        model = network()
        wrapped = hooked(model, compression)
        for bad in (True, False):
            loss = wrapped(torch.ones(3, list(model.parameters())[0].shape[1])).sum()
            model.zero_grad()
            (loss * (math.nan if bad and rank == size - 1 else 1.0)).backward()
            finite = all(bool(each.grad.isfinite().all()) for each in model.parameters())
            assert finite != bad, (compression, bad)


def case_other_types_are_refused(rank: int, size: int) -> None:
    model = torch.nn.Linear(3, 3).double()
    wrapped = hooked(model, phub.Int8())
    loss = wrapped(torch.ones(2, 3, dtype=torch.float64)).sum()
    fails((NotServed, RuntimeError), ["float32", "float64"], loss.backward)
    dist.barrier()
