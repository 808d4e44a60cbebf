"""Bad input of phub.torch.DistributedOptimizer and DiLoCo: parameters on other devices, parameters
that the model has replaced or two optimizers have, calls of one rank only, states of others."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from optimizer_failure_cases import backward, fails, layers, sgd
from optimizer_reference import adam, wrapped
from phub.torch import DiLoCo, DistributedOptimizer, NotServed, OptimizerError

# A device that no machine needs hardware for. What refuses it refuses cuda, too.
AWAY = "meta"
ADVICE = ["on the CPU only", "DistributedDataParallel", "takes CUDA tensors"]


def on_one_rank(rank: int) -> Any:
    return layers().to(AWAY) if rank == 1 else layers()


def case_parameters_on_another_device(rank: int, size: int) -> None:
    words = ["parameter 0.weight is on meta", *ADVICE]
    model = layers().to(AWAY)
    fails(NotServed, words, lambda: wrapped(model, sgd))
    fails(NotServed, words, lambda: wrapped(model, sgd, share_parameters=model))
    fails(NotServed, words, lambda: wrapped(model, sgd, wait_in_forward=model))
    fails(NotServed, words, lambda: DiLoCo(
        sgd(model.parameters()), model.named_parameters(), sync_every=2))
    some = layers()
    some[1].bias = torch.nn.Parameter(some[1].bias.detach().to(AWAY))
    fails(NotServed, ["parameter 1.bias is on meta", *ADVICE], lambda: wrapped(some, sgd))


def case_parameters_on_another_device_on_one_rank(rank: int, size: int) -> None:
    if size == 1:
        return
    words = ["parameter 0.weight is on meta", *ADVICE]

    def make(**options: Any) -> None:
        model = on_one_rank(rank)
        if options.pop("outer", False):
            DiLoCo(sgd(model.parameters()), model.named_parameters(), sync_every=2)
        else:
            wrapped(model, sgd, **{name: model for name in options})

    for options in ({}, {"share_parameters": True}, {"outer": True}):
        if rank == 1:
            fails(NotServed, words, lambda: make(**options))
        else:
            fails(OptimizerError, ["rank 1: ", *words], lambda: make(**options))
        dist.barrier()


def case_added_parameters_on_another_device(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, sgd)
    late = torch.nn.Parameter(torch.ones(3, device=AWAY))
    words = ["parameter group 1 parameter 0 is on meta", *ADVICE]
    fails(NotServed, words, lambda: optimizer.add_param_group({"params": [late]}))
    assert len(optimizer.param_groups) == 1
    backward(model)
    optimizer.step()  # it still works
    optimizer.leave()
    if size == 1:
        return
    optimizer = wrapped(model, sgd)
    late = torch.nn.Parameter(torch.ones(3, device=AWAY if rank == 1 else "cpu"))
    if rank == 1:
        fails(NotServed, words, lambda: optimizer.add_param_group({"params": [late]}))
        optimizer.leave()
    else:
        fails(OptimizerError, ["in add_param_group()", "rank 1: parameter group 1 parameter 0",
                               "is on meta"],
              lambda: optimizer.add_param_group({"params": [late]}))


def case_parameters_that_are_moved(rank: int, size: int) -> None:
    """As .to("cuda") does, which keeps the parameter and replaces its data."""
    model = layers()
    optimizer = wrapped(model, sgd, push="step")
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    away = torch.nn.Parameter(torch.ones(2, device=AWAY))
    torch.utils.swap_tensors(model[1].bias, away)
    model[1].bias.grad = torch.ones(2, device=AWAY)
    model[0](torch.ones(2, 4)).sum().backward()
    model[1].weight.grad = torch.ones(2, 3000)
    words = ["parameter 1.bias was moved to meta after the optimizer was wrapped", *ADVICE]
    fails(OptimizerError, words, optimizer.step)


def case_parameters_that_the_model_replaces(rank: int, size: int) -> None:
    """.to("meta") makes new parameters, and so does load_state_dict(assign=True)."""
    words = ["no parameter of the optimizer has a gradient", "0.weight", "1.bias", ".to()",
             "assign=True", "Wrap the optimizer after"]
    for options in ({}, {"push": "step"}):
        model = layers()
        optimizer = wrapped(model, sgd, **options)
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        model.load_state_dict(layers().state_dict(), assign=True)
        backward(model)
        fails(OptimizerError, words, optimizer.step)

    model = layers()
    inner = sgd(model.parameters())
    outer = DiLoCo(sgd(model.parameters(), lr=1.0), model.named_parameters(), sync_every=1)

    def step() -> list[str]:
        inner.zero_grad()
        backward(model)
        inner.step()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            outer.step()
        return [str(each.message) for each in found]

    assert step() == []
    model.load_state_dict(layers().state_dict(), assign=True)
    [warning] = step()
    for word in ("no parameter of the outer optimizer was written", "assign=True"):
        assert word in warning, warning
    outer.leave()


def case_two_optimizers_of_one_parameter(rank: int, size: int) -> None:
    model = layers()
    first = wrapped(model, adam)
    words = ["parameter 0.weight belongs to another", first._phub.job.name, "leave()"]
    fails(ValueError, words, lambda: wrapped(model, adam))
    fails(ValueError, words, lambda: DiLoCo(
        sgd(model.parameters()), model.named_parameters(), sync_every=2))
    first.leave()
    second = wrapped(model, adam)
    del second  # nobody has it
    third = wrapped(model, adam)
    backward(model)
    third.step()


def case_a_group_that_one_rank_adds(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam)
    optimizer._phub.timeout = 3.0
    call = "add_param_group() for parameter group 1"
    late = torch.nn.Parameter(torch.ones(3))
    if rank == 1:
        fails(OptimizerError, [f"in {call}, which every rank must call", "rank 0", "within 3 s"],
              lambda: optimizer.add_param_group({"params": [late]}))
    else:
        backward(model)
        fails(OptimizerError, ["within 3 s", "rank 1: ", f"in {call}, which every rank must call"],
              optimizer.step)
    dist.barrier()


def case_a_state_that_one_rank_loads(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam)
    backward(model)
    optimizer.step()
    saved = optimizer.state_dict()
    optimizer.zero_grad()
    optimizer._phub.timeout = 3.0
    dist.barrier()
    if rank == 0:
        words = ["in load_state_dict(), which every rank must call", "rank 1"]
        fails(OptimizerError, words, lambda: optimizer.load_state_dict(saved))
    else:
        backward(model)
        fails(OptimizerError, ["within 3 s", "rank 0: ", "in load_state_dict(), which every rank"],
              optimizer.step)
        optimizer.leave()


def case_states_of_others(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, adam)
    backward(model)
    optimizer.step()
    own = optimizer.state_dict()

    def state_of(other: Any, make: Any) -> Any:
        plain = make(other.parameters())
        other(torch.ones(2, 4)).sum().backward()
        plain.step()
        return plain.state_dict()

    def refused(words: list[str], saved: Any) -> None:
        fails(ValueError, words, lambda: optimizer.load_state_dict(saved))

    momentum = state_of(layers(), lambda p: sgd(p, momentum=0.9))
    refused(["not of Adam", "parameter group 0 has no betas", "momentum"], momentum)
    small = state_of(torch.nn.Linear(4, 4), adam)
    refused(["parameter group 0", "has 2 parameters", "has 4 (the first is 0.weight)"], small)
    two = {**own, "param_groups": own["param_groups"] * 2}
    refused(["has 2 parameter groups", "the optimizer has 1"], two)
    refused(["not of an optimizer"], {"model": {}})
    optimizer.zero_grad()
    backward(model)
    optimizer.step()  # nothing was lost
    assert float(optimizer.state_dict()["state"][0]["step"]) == 2.0


def case_nan_in_a_scalar(rank: int, size: int) -> None:
    scale = torch.nn.Parameter(torch.tensor(2.0))
    optimizer = DistributedOptimizer(adam([scale]), [("scale", scale)])
    (scale * (float("nan") if rank == size - 1 else 1.0)).backward()
    words = [f"rank {size - 1}: the gradient of parameter scale is nan"]
    fails(OptimizerError, words, optimizer.step)


def case_ranks_that_step_in_another_order(rank: int, size: int) -> None:
    if size == 1:
        return
    pairs = []
    for model in (layers(), layers()):
        pairs.append((model, wrapped(model, sgd, timeout=2.0)))
    model, optimizer = pairs[rank]
    backward(model)
    words = ["within 2 s", f"waits in step 1 for rank {1 - rank}:", "another optimizer"]
    fails(OptimizerError, words, optimizer.step)
    dist.barrier()
