"""phub.torch.DistributedOptimizer: results, against the reference and torch.optim. Each case runs
on every rank, in one group."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist

import phub
import phub.torch
from optimizer_reference import OPTIMIZERS, Make, Reference, adam, backward, gathered, wrapped
from phub.torch import DistributedOptimizer, reference
from training_cases import STEPS, close, identical_on_all_ranks, network, serial, train

def case_bits_of_every_optimizer(rank: int, size: int) -> None:
    """The reference has the same bits; torch.optim is close."""
    for kind, groups in OPTIMIZERS:
        torch.manual_seed(rank)  # rank 0's values win
        shapes = ((90, 100), (7,), ())  # above and below the size of bundles
        parts = [
            [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
            for _ in groups
            for dtype in (torch.float32, torch.float64)
        ]
        model = torch.nn.ParameterList([each for part in parts for each in part])
        several = 2 * len(shapes)

        def made(parameters: list[Any]) -> Any:
            extra = {"initial_accumulator_value": 0.5} if kind is torch.optim.Adagrad else {}
            ends = range(0, len(parameters), several)
            parts = [parameters[begin : begin + several] for begin in ends]
            return kind(
                [{"params": part, **values} for part, (values, _) in zip(parts, groups)], **extra
            )

        optimizer = DistributedOptimizer(made(list(model)), model.named_parameters())
        rules = [rule for _, rule in groups for _ in range(several)]
        expected = Reference(model)
        theirs = [torch.nn.Parameter(each.clone()) for each in expected.parameters]
        stock = made(theirs)
        for step in range(4):
            optimizer.zero_grad()
            torch.manual_seed(100 * rank + step)
            sum((each * torch.randn_like(each)).sum() for each in model).backward()
            expected.step(model, rules, size)
            optimizer.step()
            expected.check(model, kind.__name__)
            ranks = gathered([each.grad for each in model], size)
            for index, each in enumerate(theirs):
                each.grad = reference.combined([gradients[index] for gradients in ranks])
            stock.step()
        close(model, [each.detach() for each in theirs])
        optimizer.leave()


def case_training(rank: int, size: int) -> None:
    model = network()
    train(model, wrapped(model, adam), rank, size)
    identical_on_all_ranks(model)
    close(model.parameters(), serial(size, lambda model: adam(model.parameters())), 2e-3)


def case_sums_and_pushes_in_step(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(
        model, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9), op="sum", push="step"
    )
    expected = Reference(model, "sum")
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step, rank, size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # of this rank
        expected.step(model, phub.Momentum(0.01, 0.9), size)
        optimizer.step()
        expected.check(model, "sum")


def case_groups_and_schedulers(rank: int, size: int) -> None:
    model = network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.05},
        {"params": [*model[3].parameters(), *model[5].parameters()], "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    early = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # made before wrapping
    assert DistributedOptimizer(optimizer, model.named_parameters()) is optimizer
    late = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 / (1 + epoch))
    assert isinstance(optimizer, torch.optim.AdamW)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    expected = Reference(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # schedulers warn if they do not see step()
        for step in range(4):
            optimizer.zero_grad(set_to_none=False)
            backward(model, step, rank, size)
            rules = [
                phub.AdamW(values["lr"], weight_decay=values["weight_decay"])
                for values in optimizer.param_groups
                for _ in values["params"]
            ]
            expected.step(model, rules, size)
            optimizer.step()
            expected.check(model, "groups")
            (early if step % 2 else late).step()
    assert len(calls) == 4, calls
    assert optimizer.param_groups[0]["lr"] != 0.05


def case_accumulated_gradients(rank: int, size: int) -> None:
    rule = phub.Momentum(0.1, 0.9)
    for passes, calls in ((3, 3), (3, 2), (1, 1)):  # the second: an epoch's last batches
        model = network()
        optimizer = wrapped(
            model,
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            backward_passes_per_step=passes,
        )
        expected = Reference(model)
        for step in range(2):
            optimizer.zero_grad()
            with optimizer.no_sync():
                backward(model, 50, rank, size)  # one more, which hooks do not count
            for call in range(calls):
                backward(model, 10 * step + call, rank, size)
            expected.step(model, rule, size)
            optimizer.step()
            expected.check(model, f"{calls} of {passes} passes")


def case_gradients_with_a_graph(rank: int, size: int) -> None:
    """As for a gradient penalty."""
    model = network()
    optimizer = wrapped(model, adam)
    expected = Reference(model)
    for step in range(2):
        optimizer.zero_grad()
        x = torch.full((2, 16), 1.0 + rank, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about create_graph
            (slope.norm() + model(x).sum()).backward(create_graph=True)
        expected.step(model, phub.Adam(0.01), size)
        optimizer.step()
        expected.check(model, "graph")


def case_discarded_gradients(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, adam, backward_passes_per_step=2)
    expected = Reference(model)
    backward(model, 1, rank, size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.zero_grad()
    assert "discards the gradients of 1 of 2 backward passes" in str(caught[0].message), caught
    assert caught[0].filename == __file__, caught[0].filename
    backward(model, 2, rank, size)
    model.zero_grad()  # the optimizer does not see it
    backward(model, 3, rank, size)
    backward(model, 4, rank, size)
    expected.step(model, phub.Adam(0.01), size)
    optimizer.step()
    expected.check(model, "discarded")


def case_synchronize(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, adam)
    expected = Reference(model)
    for step in range(2):
        optimizer.zero_grad()
        backward(model, step, rank, size)
        expected.step(model, phub.Adam(0.01), size)
        before = model[0].weight.detach().clone()
        optimizer.synchronize()
        assert torch.equal(before, model[0].weight)  # new values appear in step()
        with optimizer.skip_synchronize():
            optimizer.step()
        expected.check(model, "synchronize")


def case_two_optimizers(rank: int, size: int) -> None:
    """As in a GAN: they step unevenly, and one backward pass reaches both models."""
    torch.manual_seed(1)
    maker, judge = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    makes = wrapped(maker, adam)
    judges = wrapped(judge, lambda p: torch.optim.SGD(p, 0.1), push="step")
    expected, judged = Reference(maker), Reference(judge)
    for step in range(4):
        noise = torch.randn(6, 4)
        if step % 2 == 0:
            judges.zero_grad()
            judge(maker(noise).detach()).mean().backward()
            judged.step(judge, phub.Sgd(0.1), size)
            judges.step()
            judged.check(judge, "judge")
        makes.zero_grad()
        judge(maker(noise)).mean().backward()
        expected.step(maker, phub.Adam(0.01), size)
        makes.step()
        expected.check(maker, "maker")


def case_a_group_that_is_added(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    model[1].requires_grad_(False)
    optimizer = wrapped(model, lambda p: torch.optim.SGD(p, 0.1))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    late = torch.nn.Linear(3, 3)
    optimizer.add_param_group({"params": late.parameters(), "lr": 0.2})
    whole = torch.nn.Sequential(model[0], late)
    identical_on_all_ranks(whole)
    expected = Reference(late)
    optimizer.zero_grad()
    late(model(torch.ones(2, 4) + rank)).sum().backward()
    expected.step(late, phub.Sgd(0.2), size)
    optimizer.step()
    expected.check(late, "added")


def case_parameters_that_are_broadcast(rank: int, size: int) -> None:
    root = size - 1
    torch.manual_seed(10 + rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 200), torch.nn.BatchNorm1d(200))
    other = torch.nn.Linear(2, 2)
    optimizer = wrapped(model, adam)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank + 1)
        model[1].running_mean.add_(rank)
    mine = {name: value.clone() for name, value in model.state_dict().items()}
    phub.torch.broadcast_parameters(model.state_dict(), root_rank=root)
    phub.torch.broadcast_parameters(other.named_parameters(), root_rank=root)
    identical_on_all_ranks(model)
    identical_on_all_ranks(other)
    assert model[1].running_mean[0] == root
    if rank == root:
        assert all(torch.equal(value, mine[name]) for name, value in model.state_dict().items())
    optimizer.param_groups[0]["lr"] = 0.01 * (1 + rank)
    phub.torch.broadcast_optimizer_state(optimizer, root_rank=root)
    expected = Reference(model)
    model(torch.randn(5, 4)).square().sum().backward()
    expected.step(model, phub.Adam(0.01 * size), size)
    optimizer.step()
    expected.check(model, "broadcast")


def case_unusual_parameters(rank: int, size: int) -> None:
    parameters = {
        "scalar": torch.nn.Parameter(torch.tensor(2.0)),
        "columns": torch.nn.Parameter(torch.arange(12.0).view(3, 4).t()),
        "image": torch.nn.Parameter(
            torch.randn(8, 3, 40, 40).to(memory_format=torch.channels_last)
        ),
        "wide": torch.nn.Parameter(torch.ones(5, dtype=torch.float64)),
    }
    model = torch.nn.ParameterDict(parameters)
    optimizer = wrapped(model, adam)
    expected = Reference(model)
    for _ in range(2):
        optimizer.zero_grad()
        sum((each * each * (rank + 1)).sum() for each in parameters.values()).backward()
        expected.step(model, phub.Adam(0.01), size)
        optimizer.step()
        expected.check(model, "unusual")


def case_state_goes_to_torch_and_back(rank: int, size: int) -> None:
    makes: list[Make] = [
        adam,
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
        lambda p: torch.optim.Adagrad(p, 0.1),
        lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
        lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    ]
    for make in makes:
        model = network()
        optimizer = wrapped(model, make)
        fresh = optimizer.state_dict()
        train(model, optimizer, rank, size)
        saved = copy.deepcopy(optimizer.state_dict() if rank == size - 1 else None)
        boxes = [saved]
        dist.broadcast_object_list(boxes, size - 1)
        saved = boxes[0]

        # To torch: its next step is close to the daemon's.
        other = network()
        other.load_state_dict(model.state_dict())
        state = copy.deepcopy(model.state_dict())
        stock = make(other.parameters())
        stock.load_state_dict(copy.deepcopy(saved))  # torch keeps and changes the tensors
        if "step" in saved["state"].get(0, {}):
            assert saved["state"][0]["step"] == STEPS
        optimizer.zero_grad()
        backward(model, 60, rank, size)
        ranks = gathered([each.grad for each in model.parameters()], size)
        for index, each in enumerate(other.parameters()):
            each.grad = reference.combined([gradients[index] for gradients in ranks])
        stock.step()
        optimizer.step()
        close(model.parameters(), [each.detach() for each in other.parameters()], 1e-6)
        expected = [each.detach().clone() for each in model.parameters()]

        # Back: the same bits as before.
        model.load_state_dict(state)
        optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        backward(model, 60, rank, size)
        optimizer.step()
        for mine, parameter in zip(expected, model.parameters()):
            assert torch.equal(mine, parameter)
        stock.load_state_dict(copy.deepcopy(fresh))
        stock.step()
        model.load_state_dict(network().state_dict())
        optimizer.load_state_dict(fresh)  # without a state
        train(model, optimizer, rank, size)
        for name, value in state.items():
            assert torch.equal(value, model.state_dict()[name])


def case_state_from_before_wrapping(rank: int, size: int) -> None:
    """As in Horovod's examples, where only rank 0 has loaded a checkpoint."""
    for make, rule in (
        (adam, phub.Adam(0.01)),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), phub.Momentum(0.1, 0.9)),
    ):
        model = network()
        optimizer = make(model.parameters())
        expected = Reference(model)
        if rank == 0:
            for step in range(2):
                optimizer.zero_grad()
                backward(model, step, 0, 1)
                optimizer.step()
            for parameter, states in zip(model.parameters(), expected.states):
                for name, value in optimizer.state[parameter].items():
                    states[STATES.get(name, name)] = value.clone()
        optimizer.zero_grad()
        phub.torch.broadcast_parameters(model.state_dict(), root_rank=0)
        phub.torch.broadcast_optimizer_state(optimizer, root_rank=0)
        optimizer = DistributedOptimizer(optimizer, model.named_parameters())
        expected.parameters = [each.detach().clone() for each in model.parameters()]
        expected.count = 2
        for states in expected.states:
            box = [states]
            dist.broadcast_object_list(box, 0)
            states.update(box[0])
        for step in range(2, 4):
            optimizer.zero_grad()
            backward(model, step, rank, size)
            expected.step(model, rule, size)
            optimizer.step()
            expected.check(model, type(optimizer).__name__)


STATES = {
    "exp_avg": "first_moment", "exp_avg_sq": "second_moment", "momentum_buffer": "momentum"
}
