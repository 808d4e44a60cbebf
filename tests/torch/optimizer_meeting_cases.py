"""Calls of phub.torch's optimizers that every rank must make, on some ranks only, or together with
other calls. All of them end with an error that names the ranks."""

from __future__ import annotations

import tempfile
from typing import Any, Callable

import torch
import torch.distributed as dist

import phub.torch
from optimizer_failure_cases import fails, layers, sgd, train_step
from optimizer_reference import adam, wrapped
from phub.torch import DiLoCo, OptimizerError

TIMEOUT_S = 1.0


def trained() -> tuple[Any, Any]:
    """A model and its optimizer after a step."""
    model = layers()
    optimizer = wrapped(model, adam)
    train_step(model, optimizer)
    optimizer.zero_grad()
    optimizer._phub.timeout = TIMEOUT_S
    return model, optimizer


def calls(model: Any, optimizer: Any, folder: str) -> dict[str, Callable[[], Any]]:
    saved = optimizer.state_dict()
    return {
        "load_state_dict()": lambda: optimizer.load_state_dict(saved),
        "load_checkpoint()": lambda: optimizer.load_checkpoint(folder),
        "broadcast_parameters(root_rank=0)":
            lambda: phub.torch.broadcast_parameters(model.state_dict()),
    }


def case_calls_of_one_rank(rank: int, size: int) -> None:
    if size == 1:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("load_state_dict()", "load_checkpoint()", "broadcast_parameters(root_rank=0)"):
            for alone in range(2):
                model, optimizer = trained()
                call = calls(model, optimizer, folder)[name]
                dist.barrier()
                if rank == alone:
                    words = [f"rank {rank} of job", f"in {name}, which every rank must call",
                             f"rank {1 - rank} has not called it within 1 s"]
                    fails(OptimizerError, words, call)
                    fails(OptimizerError, ["earlier error", name], call)
                dist.barrier()
                optimizer.leave()


def case_different_calls(rank: int, size: int) -> None:
    if size == 1:
        return
    with tempfile.TemporaryDirectory() as folder:
        model, optimizer = trained()
        every = calls(model, optimizer, folder)
        optimizer._phub.timeout = 100.0
        names = ["load_state_dict()", "load_checkpoint()"]
        fails(OptimizerError, [f"in {names[rank]}", f"rank {1 - rank} is in {names[1 - rank]}"],
              every[names[rank]])
    model, optimizer = trained()
    optimizer._phub.timeout = 100.0
    words = [f"root_rank={rank}", f"rank {1 - rank} is in", f"root_rank={1 - rank}"]
    fails(OptimizerError, words,
          lambda: phub.torch.broadcast_parameters(model.state_dict(), root_rank=rank))
    dist.barrier()


def case_a_call_that_one_rank_refuses(rank: int, size: int) -> None:
    """Both ranks can go on."""
    if size == 1:
        return
    model, optimizer = trained()
    optimizer._phub.timeout = 100.0
    saved = optimizer.state_dict()
    other = torch.nn.Linear(4, 4)
    wrong = adam(other.parameters()).state_dict()
    dist.barrier()
    words = ["parameter group 0 of the saved state has 2 parameters", "another model"]
    if rank == 1:
        fails(ValueError, words, lambda: optimizer.load_state_dict(wrong))
    else:
        fails(OptimizerError, ["in load_state_dict()", "rank 1: ", *words],
              lambda: optimizer.load_state_dict(saved))
    train_step(model, optimizer)
    optimizer.load_state_dict(saved)
    assert float(optimizer.state_dict()["state"][0]["step"]) == 1.0
    phub.torch.broadcast_parameters(model.state_dict())
    optimizer.leave()


def case_a_refused_call_of_one_rank_is_counted(rank: int, size: int) -> None:
    """Rank 1 alone called something, and failed: then the next call of both must not hang."""
    if size == 1:
        return
    model, optimizer = trained()
    optimizer._phub.timeout = 2.0
    saved = optimizer.state_dict()
    if rank == 1:
        fails(ValueError, ["not of an optimizer"], lambda: optimizer.load_state_dict({}))
    dist.barrier()
    words = ["in load_state_dict(), which every rank must call"]
    fails(OptimizerError, words, lambda: optimizer.load_state_dict(saved))
    dist.barrier()


def case_an_optimizer_that_one_rank_wraps(rank: int, size: int) -> None:
    """In a group of its own: the ranks of a group must wrap the same optimizers."""
    if size == 1:
        return

    def outer(group: Any) -> None:
        model = layers()
        DiLoCo(sgd(model.parameters()), model.named_parameters(), sync_every=2,
               timeout=TIMEOUT_S, process_group=group)

    def plain(group: Any) -> None:
        wrapped(layers(), adam, timeout=TIMEOUT_S, process_group=group)

    for alone, make in ((0, plain), (1, outer)):
        group = dist.new_group([0, 1])
        if rank == alone:
            words = [f"rank {rank} wraps optimizer 1", f"rank {1 - rank} has not called",
                     "within 1 s", "the same optimizers, in the same order"]
            fails(OptimizerError, words, lambda: make(group))
        dist.barrier()


def case_zz_a_hook_that_one_rank_has(rank: int, size: int) -> None:
    """The last case: it ends the group."""
    if size == 1:
        return
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    if rank == 0:
        state = phub.torch.CompressionState(phub.Int8())
        model.register_comm_hook(state, phub.torch.compression_hook)
    words = ["ranks called different collectives", "all_gather", "all_reduce(SUM)"]
    fails(RuntimeError, words, lambda: model(torch.ones(2, 8)).sum().backward())
