"""phub.torch.DiLoCo, against phub.torch.reference. Each case runs on every rank, in one group."""

from __future__ import annotations

import copy
import pathlib
import sys
from typing import Any, Callable

import torch
import torch.distributed as dist

import phub
import phub.torch
from optimizer_failure_cases import fails
from optimizer_reference import adam, backward, gathered
from phub.torch import DiLoCo, NotServed, OptimizerError, reference
from training_cases import close, identical_on_all_ranks, network

EXAMPLES = pathlib.Path(__file__).parents[2] / "client" / "examples" / "torch"


def nesterov(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def outer_of(model: Any, make: Callable[[Any], Any] = nesterov, **options: Any) -> Any:
    options.setdefault("sync_every", 2)
    return DiLoCo(make(model.parameters()), model.named_parameters(), **options)


class Outer:
    """What the parameters must be after each exchange."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = [each.detach().clone() for each in parameters]
        self.states: list[dict[str, Any]] = [{} for _ in self.parameters]
        self.count = 0

    def exchange(self, ranks: list[list[Any]], rule: Any) -> None:
        """ranks: the parameters of each rank."""
        self.apply(
            [[torch.sub(mine, each) for mine, each in zip(self.parameters, own)] for own in ranks],
            rule,
        )

    def apply(self, ranks: list[list[Any]], rule: Any) -> None:
        """ranks: how far the parameters of each rank moved."""
        self.count += 1
        for index, (mine, states) in enumerate(zip(self.parameters, self.states)):
            moved = [own[index] for own in ranks]
            reference.step(states, mine, reference.combined(moved), rule, self.count)


def values(model: Any) -> list[Any]:
    return [each.detach().clone() for each in model.parameters()]


def case_bits(rank: int, size: int) -> None:
    for make, rule in (
        (nesterov, phub.Nesterov(0.7, 0.9)),
        (lambda p: torch.optim.SGD(p, 1.0), phub.Sgd(1.0)),  # local SGD: the mean of parameters
        (lambda p: torch.optim.Adam(p, 0.01), phub.Adam(0.01)),
    ):
        model = network()
        with torch.no_grad():
            model[0].bias.add_(rank)  # rank 0's values win
        inner = adam(model.parameters())
        outer = outer_of(model, make)
        expected = Outer(model.parameters())
        for step in range(6):
            inner.zero_grad()
            backward(model, step, rank, size)
            inner.step()
            ranks = gathered(values(model), size)
            exchanged = outer.step()
            assert exchanged == (step % 2 == 1), step
            if exchanged:
                expected.exchange(ranks, rule)
                for mine, each in zip(expected.parameters, model.parameters()):
                    assert torch.equal(mine, each), type(rule).__name__
                identical_on_all_ranks(model)
        if rule == phub.Sgd(1.0):
            close(model.parameters(), [sum(parts) / size for parts in zip(*ranks)])
        outer.leave()


def case_16_bit_differences_and_parameters(rank: int, size: int) -> None:
    model = network()
    inner = adam(model.parameters())
    outer = outer_of(
        model, gradient_dtype=torch.float16, parameter_dtype=torch.bfloat16, sync_every=1
    )
    masters = Outer(network().parameters())
    for step in range(4):
        start = values(model)
        for mine, each in zip(masters.parameters, start):
            assert torch.equal(mine.to(torch.bfloat16).float(), each), step
        inner.zero_grad()
        backward(model, step, rank, size)
        inner.step()
        moved = [torch.sub(a, b).half().float() for a, b in zip(start, values(model))]
        masters.apply(gathered(moved, size), phub.Nesterov(0.7, 0.9))
        assert outer.step()
        identical_on_all_ranks(model)
    outer.leave()


def case_digits(rank: int, size: int) -> None:
    """A whole training, next to one process that trains all ranks' models in turns."""
    sys.path.insert(0, str(EXAMPLES))
    import digits

    data = digits.Digits(digits.DATA)
    draws = [torch.Generator().manual_seed(100 + each) for each in range(size)]

    def train(model: Any, inner: Any, each: int) -> None:
        chosen = torch.randint(len(data.digits), (32,), generator=draws[each])
        inner.zero_grad()
        outputs = model(data.pixels[chosen])
        torch.nn.functional.cross_entropy(outputs, data.digits[chosen]).backward()
        inner.step()

    steps, every = 60, 10
    models = [digits.network() for _ in range(size)]
    inners = [torch.optim.AdamW(each.parameters(), lr=0.003) for each in models]
    expected = Outer(models[0].parameters())
    for step in range(steps):
        for each in range(size):
            train(models[each], inners[each], each)
        if (step + 1) % every == 0:
            expected.exchange([values(each) for each in models], phub.Nesterov(0.7, 0.9))
            for model in models:
                for parameter, value in zip(model.parameters(), expected.parameters):
                    parameter.data.copy_(value)

    draws = [torch.Generator().manual_seed(100 + each) for each in range(size)]
    model = digits.network()
    inner = torch.optim.AdamW(model.parameters(), lr=0.003)
    outer = outer_of(model, sync_every=every)
    exchanges = 0
    for _ in range(steps):
        train(model, inner, rank)
        exchanges += outer.step()
    assert exchanges == steps // every
    for mine, parameter in zip(expected.parameters, model.parameters()):
        assert torch.equal(mine, parameter)
    assert digits.accuracy(model, data) > 0.85


def case_state(rank: int, size: int) -> None:
    """As torch.optim's, and back."""
    model = network()
    outer = outer_of(model, sync_every=1)
    inner = adam(model.parameters())

    def train(step: int) -> None:
        inner.zero_grad()
        backward(model, step, rank, size)
        inner.step()
        assert outer.step()

    train(0)
    saved = copy.deepcopy([model.state_dict(), outer.state_dict(), inner.state_dict()])
    train(1)
    wanted = values(model)
    stock = nesterov(network().parameters())
    stock.load_state_dict(copy.deepcopy(saved[1]))
    assert stock.state_dict()["state"][0]["momentum_buffer"].shape == model[0].weight.shape
    model.load_state_dict(saved[0])
    outer.load_state_dict(saved[1])
    inner.load_state_dict(saved[2])
    train(1)
    for mine, parameter in zip(wanted, model.parameters()):
        assert torch.equal(mine, parameter)


def case_ranks_with_nan_return_to_the_last_exchange(rank: int, size: int) -> None:
    model = network()
    before = values(model)
    outer = outer_of(model, skip_nonfinite=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
        if rank == 0:
            model[3].weight[0, 0] = float("nan")
    outer.exchange()
    assert outer.last_iteration().last_skipped
    for old, parameter in zip(before, model.parameters()):
        assert torch.equal(old, parameter)


def case_wrong_uses(rank: int, size: int) -> None:
    model = network()
    fails(ValueError, ["sync_every is 0"], lambda: outer_of(model, sync_every=0))
    outer = outer_of(model)
    fails(NotServed, ["closure"], lambda: outer.step(lambda: None))
    model[0].weight.data = torch.zeros(3)
    fails(OptimizerError, ["0.weight", "was (300, 16)", "is (3,)"], outer.exchange)
    if size > 1:
        words = ["same settings", "sync_every=2", "sync_every=3"]
        fails(OptimizerError, words, lambda: outer_of(network(), sync_every=2 + rank))
    dist.barrier()
