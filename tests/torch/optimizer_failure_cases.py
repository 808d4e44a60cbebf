"""Wrong uses of phub.torch.DistributedOptimizer. Each case runs on every rank, in one group; a
failed optimizer harms no other, since each is a job of its own."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any, Callable

import torch
import torch.distributed as dist

import phub
import phub.torch
from optimizer_reference import adam, wrapped
from phub.torch import DistributedOptimizer, NotServed, OptimizerError


def fails(kind: Any, words: list[str], call: Callable[[], Any]) -> str:
    """The call raises an error of this class with all the words."""
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in {error}"
        return str(error)
    raise AssertionError(f"no {kind.__name__} with {words}")


def layers() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(4, 3000), torch.nn.Linear(3000, 2))


def backward(model: Any) -> None:
    model(torch.ones(2, 4)).square().sum().backward()


def train_step(model: Any, optimizer: Any) -> None:
    backward(model)
    optimizer.step()


def sgd(parameters: Any, **values: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, **{"lr": 0.01, **values})


class Own(torch.optim.SGD):
    pass


class Part(torch.Tensor):
    pass


def case_not_served(rank: int, size: int) -> None:
    def refused(words: list[str], make: Callable[[Any], Any], *parameters: Any) -> None:
        given = list(parameters) or [torch.nn.Parameter(torch.ones(3))]
        fails(NotServed, words, lambda: DistributedOptimizer(make(given)))

    refused(["Adamax", "no such formula"], torch.optim.Adamax)
    refused(
        ["centered=True with momentum=0.9 of parameter group 0", "three states"],
        lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    )
    refused(["LBFGS", "closure"], torch.optim.LBFGS)
    refused(["Own", "no subclasses"], lambda p: Own(p, lr=0.1))
    refused(["maximize", "parameter group 0"], lambda p: sgd(p, maximize=True))
    refused(["amsgrad"], lambda p: torch.optim.Adam(p, amsgrad=True))
    refused(["lr of parameter group 0", "tensor"], lambda p: sgd(p, lr=torch.tensor(0.1)))
    refused(
        ["complex64", "group 0 parameter 0"],
        sgd,
        torch.nn.Parameter(torch.ones(3, dtype=torch.complex64)),
    )
    refused(["int32", "bfloat16"], sgd, torch.nn.Parameter(torch.ones(3, dtype=torch.int32), False))
    refused(["Part"], sgd, torch.nn.Parameter(torch.ones(3).as_subclass(Part)))
    away = torch.nn.Parameter(torch.ones(3, device="meta"))
    refused(["parameter 0 is on meta", "CPU only", "DistributedDataParallel"], sgd, away)
    refused(["no elements"], sgd, torch.nn.Parameter(torch.ones(0)))
    fails(TypeError, ["Linear"], lambda: DistributedOptimizer(torch.nn.Linear(1, 1)))


def case_names(rank: int, size: int) -> None:
    model = layers()
    pairs = list(model.named_parameters())

    def named(given: Any, **options: Any) -> Callable[[], Any]:
        return lambda: DistributedOptimizer(adam(model.parameters()), given, **options)

    fails(ValueError, ["no name", "parameter 3 of parameter group 0"], named(pairs[:3]))
    fails(ValueError, ["pairs", "Parameter"], named(model.parameters()))
    fails(ValueError, ["'0.weight' twice"], named(pairs + pairs[:1]))
    fails(ValueError, ["backward_passes_per_step"], named(pairs, backward_passes_per_step=0))
    fails(ValueError, ["'later'", "backward, step"], named(pairs, push="later"))
    fails(ValueError, ["'max'", "mean, sum"], named(pairs, op="max"))
    fails(ValueError, ["skip_unused"], named(pairs, skip_unused=True, clip_norm=1.0))
    fails(TypeError, ["'later'"], named(pairs, later=1))


def case_what_an_optimizer_of_the_daemon_cannot_do(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, adam)
    fails(NotServed, ["closure"], lambda: optimizer.step(lambda: 0.0))
    fails(NotServed, ["copied"], lambda: copy.deepcopy(optimizer))
    fails(NotServed, ["pickled"], lambda: pickle.dumps(optimizer))
    fails(OptimizerError, ["synchronize()"], lambda: optimizer.skip_synchronize().__enter__())
    backward(model)
    fails(OptimizerError, ["between backward() and step()"], optimizer.state_dict)
    optimizer.step()  # it still works


def case_scaled_gradients(rank: int, size: int) -> None:
    model = layers()
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters(), fused=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    fails(NotServed, ["GradScaler", "skip_nonfinite"], lambda: scaler.step(optimizer))


def case_state_of_another_model(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, adam)
    backward(model)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][1]["exp_avg"] = torch.ones(7)
    words = ["exp_avg of parameter 0.bias", "(7,)", "(3000,)", "another model"]
    fails(OptimizerError, words, lambda: optimizer.load_state_dict(saved))


def case_no_gradient(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, adam)
    model[0](torch.ones(2, 4)).sum().backward()
    fails(OptimizerError, ["1.weight, 1.bias", "no gradient", "step 1"], optimizer.step)
    for parameter in model[1].parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # as the message says
    optimizer.zero_grad()
    model[1].bias.requires_grad_(False)
    backward(model)
    fails(OptimizerError, ["parameter 1.bias", "frozen"], optimizer.step)


def case_ranks_that_use_different_parameters(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam, skip_unused=True)
    if rank == 0:
        backward(model)
    else:
        model[0](torch.ones(2, 4)).sum().backward()
    words = ["parameters 1.weight, 1.bias", "1 of 2 ranks", f"rank {rank} "]
    fails(OptimizerError, [*words, "has none" if rank else "has one"], optimizer.step)


def case_no_gradient_on_one_rank(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam)
    if rank == 1:
        model[0](torch.ones(2, 4)).sum().backward()
        fails(OptimizerError, ["rank 1", "1.weight, 1.bias", "no gradient"], optimizer.step)
        optimizer.leave()
    else:
        backward(model)
        # Which key is waited for first depends on what rank 1 has pushed.
        fails(OptimizerError, ["rank 1: ", "1.weight, 1.bias have no gradient"], optimizer.step)


def case_changes_after_a_push(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, adam)

    def again(change: Callable[[], Any], words: list[str], call: Callable[[], Any]) -> None:
        """The error does no harm once the gradients are as they were pushed."""
        optimizer.zero_grad()
        backward(model)
        before = [parameter.grad for parameter in model.parameters()]
        rate = optimizer.param_groups[0]["lr"]
        change()
        fails(OptimizerError, words, call)
        optimizer.param_groups[0]["lr"] = rate
        for parameter, gradient in zip(model.parameters(), before):
            parameter.grad = gradient
        optimizer.step()

    def change_rate() -> None:
        optimizer.param_groups[0]["lr"] = 0.5

    again(lambda: None, ["zero_grad()", "0.weight", "no_sync()"], optimizer.zero_grad)
    again(model.zero_grad, ["parameter 0.weight was removed"], optimizer.step)
    again(change_rate, ["parameter group 0", "0.01", "0.5"], optimizer.step)


def case_too_many_backward_passes(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, adam)
    backward(model)
    words = ["1.bias", "more backward passes", "backward_passes_per_step=1"]
    fails(OptimizerError, words, lambda: backward(model))
    # Clipping between backward() and step() is the same mistake.
    fails(OptimizerError, ["1.bias was changed", 'push="step"'], optimizer.step)


def case_parameters_that_change(rank: int, size: int) -> None:
    model = layers()
    optimizer = wrapped(model, sgd)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    backward(model)
    optimizer.step()
    model.load_state_dict(state)
    optimizer.zero_grad()
    fails(OptimizerError, ["1.bias was written", "broadcast_parameters"], lambda: backward(model))
    phub.torch.broadcast_parameters(model.state_dict())
    optimizer.zero_grad()
    backward(model)
    optimizer.step()

    group = optimizer.param_groups[0]
    late = torch.nn.Parameter(torch.ones(2))
    group["params"].append(late)

    def backward_again() -> None:
        optimizer.zero_grad()
        backward(model)

    backward_again()
    words = ["parameter 4 of parameter group 0", "without add_param_group()"]
    fails(OptimizerError, words, optimizer.step)
    group["params"].pop()
    removed = group["params"].pop(0)
    fails(OptimizerError, ["parameter group 0 was changed", "0.weight"], optimizer.step)
    group["params"].insert(0, removed)
    optimizer.step()

    group["momentum"] = 0.9
    fails(OptimizerError, ["parameter group 0", "Sgd", "Momentum"], backward_again)
    group["momentum"] = 0.0

    other = layers()
    optimizer = wrapped(other, sgd)
    other[0].weight.data = torch.ones(7, 4)
    other[0].bias.data = torch.ones(7)
    fails((OptimizerError, RuntimeError), ["0.bias", "(3000,)", "(7,)"],
          lambda: other[0](torch.ones(2, 4)).sum().backward())


def case_frozen_parameters(rank: int, size: int) -> None:
    model = layers()
    model[0].requires_grad_(False)
    optimizer = wrapped(model, sgd)
    before = model[0].weight.detach().clone()
    backward(model)
    optimizer.step()
    assert torch.equal(before, model[0].weight)
    model[0].requires_grad_(True)
    optimizer.zero_grad()
    backward(model)
    fails(OptimizerError, ["0.weight", "Wrap the optimizer after unfreezing"], optimizer.step)


def case_sparse_gradients(rank: int, size: int) -> None:
    model = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = wrapped(model, sgd)
    words = ["parameter weight", "sparse_coo", "sparse=False"]
    fails(OptimizerError, words, lambda: model(torch.tensor([1])).sum().backward())
    optimizer.leave()


def case_nan_on_one_rank(rank: int, size: int) -> None:
    for options, words in (
        ({}, ["continue from a checkpoint", "skip_nonfinite"]),
        ({"apply": "iteration"}, ["continue from a checkpoint"]),
        ({"push": "step", "gradient_dtype": torch.bfloat16}, []),
    ):
        model = layers()
        optimizer = wrapped(model, adam, **options)
        words = [f"rank {size - 1} ", "pushed NaN or infinity", "parameter 0.bias", *words]

        def step(value: float) -> None:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            if rank == size - 1:
                loss = loss + model[0].bias[7] * value
            loss.backward()
            optimizer.step()

        step(1.0)
        fails(OptimizerError, [*words, "in 1 of 3000 elements, the first at [7]: inf"],
              lambda: step(math.inf))
        fails(OptimizerError, ["earlier error"], lambda: step(1.0))
        optimizer.leave()
    optimizer = wrapped(model, adam, screening="report")
    step(math.nan)
    assert math.isnan(model[0].bias[7]) and not math.isnan(model[0].bias[6])
    optimizer.leave()
    fails(ValueError, ["'later'", "reject"], lambda: wrapped(model, adam, screening="later"))


def case_a_rank_that_skips_a_step(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam)
    backward(model)
    optimizer.step()
    if rank == 1:
        dist.barrier()
        return
    optimizer._phub.timeout = 1.0
    words = ["parameter 0.weight", "step 2", "within 1 s", "waits in step 2 for rank 1:"]
    optimizer.zero_grad()
    backward(model)
    fails(OptimizerError, words, optimizer.step)
    dist.barrier()


def case_a_rank_that_leaves(rank: int, size: int) -> None:
    if size == 1:
        return
    model = layers()
    optimizer = wrapped(model, adam)
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 1:
        optimizer.leave()
        backward(model)
        fails(OptimizerError, ["rank 1", "left"], optimizer.step)
        return

    fails(OptimizerError, ["parameter", "rank 1", "left"], lambda: train_step(model, optimizer))
    fails(OptimizerError, ["earlier error", "left"], lambda: train_step(model, optimizer))
