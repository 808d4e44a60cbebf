"""Ranks of one optimizer that differ in what they wrap, in hyper-parameters, or in what they call.
The errors name the parameter or the parameter group, and the values of both ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

import phub.torch
from optimizer_failure_cases import backward, fails, layers, sgd, train_step
from optimizer_reference import adam, wrapped
from phub.torch import DistributedOptimizer, OptimizerError


def case_hyper_parameters_that_differ(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam)
    train_step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank)
    optimizer.zero_grad()
    words = ["parameter group 0", "learning_rate=0.1", "learning_rate=0.2", "rank 0", "rank 1"]

    fails(OptimizerError, words, lambda: train_step(model, optimizer))


def case_values_of_a_later_group_that_differ(rank: int, size: int) -> None:
    """The error names the group that differs, not the one that waits."""
    if size == 1:
        return
    for name, values, words in (
        ("lr", (0.1, 0.2), ["learning_rate=0.1", "learning_rate=0.2"]),
        ("betas", ((0.9, 0.99), (0.8, 0.99)), ["beta1=0.9", "beta1=0.8"]),
        ("weight_decay", (0.1, 0.2), ["weight_decay=0.1", "weight_decay=0.2"]),
    ):
        model = layers()
        first, second = model[0].parameters(), model[1].parameters()
        optimizer = DistributedOptimizer(
            torch.optim.AdamW([{"params": first}, {"params": second}], 0.01),
            model.named_parameters(), timeout=30.0)
        train_step(model, optimizer)
        optimizer.zero_grad()
        optimizer.param_groups[1][name] = values[rank]

        fails(OptimizerError, ["parameters 1.weight, 1.bias of parameter group 1", *words],
              lambda: train_step(model, optimizer))
        dist.barrier()
        optimizer.leave()


def case_a_value_that_one_rank_must_not_have(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam, timeout=30.0)
    optimizer.param_groups[0]["lr"] = -1.0 if rank == 1 else 0.1

    fails(OptimizerError, ["of parameter group 0", "learning_rate is -1", "rank 1"],
          lambda: train_step(model, optimizer))
    if rank == 1:
        optimizer.leave()
    dist.barrier()


def case_a_backward_pass_of_one_rank_without_a_step(rank: int, size: int) -> None:
    """Its gradients were pushed, so the other rank fails one step later."""
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam, timeout=30.0)

    def discard() -> None:
        backward(model)
        optimizer.zero_grad()

    if rank == 1:
        fails(OptimizerError, ["step 1", "zero_grad() was called before step()"], discard)
        dist.barrier()
        optimizer.leave()
        return
    train_step(model, optimizer)
    dist.barrier()
    optimizer.zero_grad()

    fails(OptimizerError, ["step 2", "rank 1: zero_grad() was called before step()"],
          lambda: train_step(model, optimizer))


def case_ranks_that_wrap_different_optimizers(rank: int, size: int) -> None:
    if size == 1:
        return
    first = rank == 0
    model = layers()

    def shapes() -> None:
        wrapped(torch.nn.Linear(4, 9000 + rank), adam)

    def transposed() -> None:  # as many elements
        weight = torch.nn.Parameter(torch.ones((300, 40) if first else (40, 300)))
        DistributedOptimizer(adam([weight]), [("weight", weight)])

    def counts() -> None:
        wrapped(torch.nn.Linear(4, 3, bias=first), adam)

    def names() -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        DistributedOptimizer(adam([weight]), [("one" if first else "other", weight)])

    def frozen() -> None:
        part = torch.nn.Linear(4, 3)
        part.bias.requires_grad_(first)
        wrapped(part, adam)

    def outer() -> None:
        if first:
            wrapped(model, sgd)
        else:
            phub.torch.DiLoCo(sgd(model.parameters()), model.named_parameters(), sync_every=2)

    def kinds() -> None:
        wrapped(model, adam if first else sgd)

    def rates() -> None:
        wrapped(model, lambda p: sgd(p, lr=0.1 if first else 0.2))

    def options() -> None:
        wrapped(model, adam, clip_norm=1.0 if first else 2.0)

    def sums() -> None:
        wrapped(model, adam, sum="float" if first else "fixed")

    shape_of_weight = "shape and type of parameter weight is"
    for words, make in (
        (["sum", "float", "fixed"], sums),
        ([shape_of_weight, "(9000, 4) of float32", "(9001, 4) of float32"], shapes),
        ([shape_of_weight, "(300, 40) of float32", "(40, 300) of float32"], transposed),
        (["rank 0 has 2", "rank 1 has 1", "only rank 0 has bias"], counts),
        (["parameter one of parameter group 0", "parameter other of parameter group 0"], names),
        (["requires_grad of parameter bias is", "True on rank 0", "False on rank 1"], frozen),
        (["rank 0 calls DistributedOptimizer()", "rank 1 calls DiLoCo()"], outer),
        (["rank 0 has Adam", "rank 1 has SGD"], kinds),
        (["lr of parameter group 0 is", "0.1 on rank 0", "0.2 on rank 1"], rates),
        (["clip_norm", "1", "2"], options),
    ):
        fails(OptimizerError, ["rank 0", "rank 1", *words], make)
        dist.barrier()
