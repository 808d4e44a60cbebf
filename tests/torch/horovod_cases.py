"""Horovod's own test cases of its optimizer for PyTorch, as behaviours of
phub.torch.DistributedOptimizer. docs/pytorch.md has the list. Each case runs on every rank, in one
group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import phub
import phub.torch
from optimizer_failure_cases import backward, fails, layers, sgd
from optimizer_reference import OPTIMIZERS, Reference, adam, wrapped
from phub.torch import DistributedOptimizer, NotServed, OptimizerError
from training_cases import identical_on_all_ranks


def case_broadcast_state(rank: int, size: int) -> None:
    """Rank 0 has trained, and the other ranks get its model, state and options."""
    for kind, groups in OPTIMIZERS:
        torch.manual_seed(rank)
        model = torch.nn.Sequential(torch.nn.Linear(4, 90), torch.nn.Linear(90, 100))
        names = dict(model.named_parameters())
        options, _ = groups[-1]
        optimizer = kind(model.parameters(), **{"lr": 0.1, **options})
        if rank == 0:
            for _ in range(2):
                optimizer.zero_grad()
                backward(model)
                optimizer.step()
        else:
            optimizer.param_groups[0]["lr"] = 7.0
        saved = optimizer.state_dict()["state"]
        phub.torch.broadcast_parameters(model.state_dict(), root_rank=0)
        phub.torch.broadcast_optimizer_state(optimizer, root_rank=0)
        before = {name: each.detach().clone() for name, each in names.items()}
        optimizer = DistributedOptimizer(optimizer, names.items())
        identical_on_all_ranks(model)
        assert all(torch.equal(before[name], each) for name, each in names.items())
        assert optimizer.param_groups[0]["lr"] == options.get("lr", 0.1)
        state = optimizer.state_dict()["state"]
        if rank == 0:
            for index, states in saved.items():
                for name, value in states.items():
                    if value is not None:
                        torch.testing.assert_close(state[index][name], value, rtol=0, atol=0)
        optimizer.leave()


def case_broadcast_state_options(rank: int, size: int) -> None:
    """Options keep their values and types, also those that are not numbers."""
    for kind, options in (
        (torch.optim.SGD, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        (torch.optim.Adam, {"lr": 0.2, "betas": (0.8, 0.99), "eps": 1e-6, "foreach": False}),
    ):
        model = layers()
        given = options if rank == 0 else {"lr": 0.1}
        optimizer = kind(model.parameters(), **given)
        phub.torch.broadcast_optimizer_state(optimizer, root_rank=0)
        DistributedOptimizer(optimizer, model.named_parameters())
        for name, value in options.items():
            found = optimizer.param_groups[0][name]
            assert found == value and type(found) is type(value), (name, found)
        backward(model)
        optimizer.step()
        identical_on_all_ranks(model)
        optimizer.leave()


def case_broadcast_state_no_grad(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3))
    model[0].requires_grad_(False)
    optimizer = wrapped(model, sgd)
    phub.torch.broadcast_parameters(model.state_dict(), root_rank=0)
    identical_on_all_ranks(model)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    identical_on_all_ranks(model)
    optimizer.leave()


def case_dynamic_requires_grad(rank: int, size: int) -> None:
    """As in a GAN: each step trains one of two models, and freezes the other one."""
    torch.manual_seed(1)
    maker, judge = torch.nn.Linear(4, 90), torch.nn.Linear(90, 100)
    optimizers = [wrapped(each, sgd) for each in (maker, judge)]
    expected = [Reference(each) for each in (maker, judge)]
    for step, trained in enumerate(((True, False), (False, True), (True, True), (False, True))):
        for model, is_trained, optimizer in zip((maker, judge), trained, optimizers):
            model.requires_grad_(is_trained)
            optimizer.zero_grad()
        judge(maker(torch.full((2, 4), 1.0 + rank + step))).square().mean().backward()
        for index, model in enumerate((maker, judge)):
            if trained[index]:
                expected[index].step(model, phub.Sgd(0.01), size)
                optimizers[index].step()
            expected[index].check(model, f"{index} in step {step}")
    for optimizer in optimizers:
        optimizer.leave()


def case_gradient_clipping(rank: int, size: int) -> None:
    """Horovod averages gradients in place, so scripts clip them between synchronize() and step().
    Here the averages are in the daemon, which clips them with clip_norm."""
    model = layers()
    optimizer = wrapped(model, sgd)
    backward(model)
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with optimizer.skip_synchronize():
        fails(OptimizerError, ["was changed after it was pushed"], optimizer.step)
    optimizer.leave()
    optimizer = wrapped(model, sgd)
    optimizer.zero_grad()
    backward(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # to learn the norm
    optimizer.step()
    optimizer.leave()


def case_step_after_synchronize(rank: int, size: int) -> None:
    """Horovod warns, since its step() would average twice. Here the gradients are pushed once."""
    model = layers()
    optimizer = wrapped(model, sgd)
    expected = Reference(model)
    backward(model)
    expected.step(model, phub.Sgd(0.01), size)
    optimizer.synchronize()
    optimizer.step()
    expected.check(model, "once")
    optimizer.leave()


def case_no_named_parameters(rank: int, size: int) -> None:
    model = layers()
    for options in ({}, {"named_parameters": iter(model.named_parameters())}):
        optimizer = DistributedOptimizer(adam(model.parameters()), **options)
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        identical_on_all_ranks(model)
        optimizer.leave()


def case_process_sets(rank: int, size: int) -> None:
    """An optimizer of some ranks: groups of torch."""
    groups = [dist.new_group([each]) for each in range(size)]
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 90)
    optimizer = wrapped(model, sgd, process_group=groups[rank])
    expected = [each.detach().clone() for each in model.parameters()]
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    for mine, each in zip(expected, model.parameters()):
        assert torch.equal(mine - 0.01 * each.grad, each)
    if rank == 0 and size > 1:
        words = ["not in the process group"]
        fails(OptimizerError, words, lambda: wrapped(model, sgd, process_group=groups[1]))
    optimizer.leave()


def case_what_horovod_has_and_phub_does_not(rank: int, size: int) -> None:
    def refused(kind: Any, words: list[str], **options: Any) -> None:
        fails(kind, words, lambda: wrapped(layers(), sgd, **options))

    refused(ValueError, ["'adasum'", "mean, sum"], op="adasum")
    refused(TypeError, ["gradient_predivide_factor"], gradient_predivide_factor=2.0)
    refused(TypeError, ["num_groups"], num_groups=2)
    refused(TypeError, ["sparse_as_dense"], sparse_as_dense=True)
    fails(NotServed, ["no such formula"], lambda: wrapped(layers(), torch.optim.Adadelta))
