"""phub.torch.DistributedOptimizer with wait_in_forward. Each case runs on every rank, in one
group."""

from __future__ import annotations

from typing import Any

import torch

import phub
import phub.torch
from optimizer_failure_cases import fails
from optimizer_reference import Reference, adam, backward, wrapped
from phub.torch import OptimizerError
from phub.torch._bundles import in_forward_order
from training_cases import identical_on_all_ranks, network


class Backwards(torch.nn.Module):
    """Its modules are called in another order than that of its parameters; attention uses the
    weights of a module that it does not call, and two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.last = torch.nn.Linear(120, 10)
        self.tied = torch.nn.Linear(120, 120)
        self.attention = torch.nn.MultiheadAttention(120, 2, batch_first=True)
        self.first = torch.nn.Linear(16, 120)
        self.again = torch.nn.Linear(120, 120)
        self.again.weight = self.tied.weight

    def forward(self, x: Any) -> Any:
        x = self.again(self.first(x)).unsqueeze(0)
        x, _ = self.attention(x, x, x, need_weights=False)
        return self.last(self.tied(x.squeeze(0)))


def lazy(model: Any, **options: Any) -> Any:
    return wrapped(model, adam, wait_in_forward=model, **options)


def waiting(optimizer: Any) -> set[str]:
    """Names of parameters whose new values have not been copied."""
    return {
        slot.name
        for bundle in optimizer._phub._bundles
        if bundle.late is not None
        for slot in bundle.slots
    }


def case_bits(rank: int, size: int) -> None:
    for model in (Backwards(), network(buffers=True), torch.nn.Linear(16, 10)):
        for options in ({}, {"push": "step"}, {"clip_norm": 0.1}):
            optimizer = lazy(model, **options)
            expected = Reference(model)
            for step in range(3):
                optimizer.zero_grad()
                backward(model, step, rank, size)
                assert not waiting(optimizer), waiting(optimizer)
                if "clip_norm" in options:
                    optimizer.step()
                    continue
                expected.step(model, phub.Adam(0.01), size)
                before = [each.detach().clone() for each in model.parameters()]
                optimizer.step()
                assert waiting(optimizer) == set(dict(model.named_parameters())), step
                for old, each in zip(before, model.parameters()):
                    assert torch.equal(old, each)  # nothing has waited yet
                model(torch.ones(2, 16))
                expected.check(model, type(model).__name__)
            model(torch.ones(2, 16))
            identical_on_all_ranks(model)
            optimizer.leave()


def case_modules_wait_for_their_own(rank: int, size: int) -> None:
    model = network()
    optimizer = lazy(model)
    backward(model, 0, rank, size)
    optimizer.step()
    model[0](torch.ones(1, 16))
    done = {"0.weight", "0.bias", "3.bias", "5.weight", "5.bias"}  # the small ones are one key
    assert waiting(optimizer) == set(dict(model.named_parameters())) - done, waiting(optimizer)
    optimizer.wait_for_parameters()
    assert not waiting(optimizer)


def case_order_of_the_forward_pass(rank: int, size: int) -> None:
    model = Backwards()
    optimizer = wrapped(model, adam)
    backward(model, 0, rank, size)
    keys = in_forward_order(optimizer._phub._bundles)
    large = [key.slots[0].name for key in keys if len(key.slots) == 1]
    assert large == ["tied.weight", "attention.in_proj_weight", "attention.out_proj.weight"], large
    optimizer.step()


def case_reading_and_replacing_the_state(rank: int, size: int) -> None:
    model = network()
    optimizer = lazy(model)
    expected = Reference(model)

    def train(step: int) -> None:
        optimizer.zero_grad()
        backward(model, step, rank, size)
        expected.step(model, phub.Adam(0.01), size)
        optimizer.step()

    train(0)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    expected.check(model, "state_dict")
    train(1)
    assert optimizer.state_dict()["state"][0]["step"] == 2
    expected.check(model, "state_dict of the optimizer")
    train(2)
    model.load_state_dict(saved)  # waits, so that nothing overwrites it later
    phub.torch.broadcast_parameters(model.state_dict(), root_rank=0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name])
    expected.parameters = [saved[name] for name, _ in model.named_parameters()]
    train(3)
    optimizer.leave()
    expected.check(model, "leave")


def case_wrong_uses(rank: int, size: int) -> None:
    fails(TypeError, ["wait_in_forward", "str"], lambda: wrapped(
        network(), adam, wait_in_forward="model"))
    model = network()
    optimizer = lazy(model)
    backward(model, 0, rank, size)
    optimizer.step()
    loss = model[0].weight.square().sum()  # not through the module
    fails(OptimizerError, ["0.weight", "old values", "wait_for_parameters()"], loss.backward)

    model = network()
    optimizer = lazy(model)
    backward(model, 0, rank, size)
    optimizer.step()
    with torch.no_grad():
        model[3].weight.clamp_(-1, 1)
    fails(
        OptimizerError, ["3.weight", "written by this process", "between step()"],
        lambda: model(torch.ones(1, 16)),
    )


def case_modules_that_a_step_does_not_use(rank: int, size: int) -> None:
    torch.manual_seed(3)
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
    optimizer = lazy(model, skip_unused=True)
    for step in range(6):
        optimizer.zero_grad()
        x = torch.full((2, 4), 1.0 + rank + step)
        model[step % 3](x).square().sum().backward()
        before = [each.detach().clone() for each in model[step % 3].parameters()]
        optimizer.step()
        optimizer.wait_for_parameters()
        identical_on_all_ranks(model)
        for old, each in zip(before, model[step % 3].parameters()):
            assert not torch.equal(old, each), step


def case_groups_that_are_added(rank: int, size: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8))
    optimizer = lazy(model)
    optimizer.zero_grad()
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    model.append(torch.nn.Linear(8, 8))
    optimizer.add_param_group({"params": model[1].parameters()})
    assert not waiting(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
    names = {"0.weight", "0.bias", "group 1 parameter 0", "group 1 parameter 1"}
    assert waiting(optimizer) == names, waiting(optimizer)
    model(torch.ones(2, 16))
    assert not waiting(optimizer)
    identical_on_all_ranks(model)
