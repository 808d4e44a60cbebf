"""phub.torch.DistributedOptimizer: steps that are clipped, skipped or leave parameters out. Each
case runs on every rank, in one group."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

import phub
from optimizer_reference import Reference, adam, backward, gathered, wrapped
from phub.torch import reference
from training_cases import BATCH, batch, network


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


RULE = phub.Momentum(0.1, 0.9)


def case_clipping_by_the_norm_of_all_parameters(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, momentum, clip_norm=0.5)
    expected = Reference(model)
    scales = []
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step, rank, size)
        ranks = gathered([each.grad for each in model.parameters()], size)
        combined = [reference.combined(list(each)) for each in zip(*ranks)]
        norm = math.sqrt(sum(float(each.double().square().sum()) for each in combined))
        optimizer.step()
        outcome = optimizer.last_iteration()
        assert math.isclose(outcome.norm, norm, rel_tol=1e-9), (outcome, norm)
        scales.append(outcome.scale)
        assert math.isclose(outcome.scale, min(1.0, 0.5 / norm), rel_tol=1e-9), outcome
        expected.step(model, RULE, size, outcome.scale)
        expected.check(model, "clipped")
    assert min(scales) < 1.0, scales


def case_clipping_of_elements(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, momentum, clip_value=0.001)
    expected = Reference(model)
    backward(model, 0, rank, size)
    expected.step(model, phub.Momentum(0.1, 0.9, clip_value=0.001), size)
    optimizer.step()
    expected.check(model, "elements")


def case_discarded_iterations(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, adam, apply="iteration")
    expected = Reference(model)
    for step in range(4):
        backward(model, step, rank, size)
        # In step 1 on all ranks, in step 2 on one of them only.
        if step == 1 or (step == 2 and rank == size - 1):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.zero_grad()
            assert "the iteration is skipped on all ranks" in str(caught[0].message), caught
            assert caught[0].filename == __file__, caught[0].filename
        elif step == 2:
            optimizer.step()
        else:
            expected.step(model, phub.Adam(0.01), size)
            optimizer.step()
        expected.check(model, f"discarded {step}")
        assert optimizer.last_iteration().last_skipped == (step in (1, 2))
        optimizer.zero_grad()


def case_gradients_that_are_not_finite(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, adam, skip_nonfinite=True)
    expected = Reference(model)
    for step in range(3):
        optimizer.zero_grad()
        if step == 1 and rank == size - 1:
            with optimizer.no_sync():
                (model[3].bias[0] * math.nan).backward()
        with optimizer.no_sync():
            backward(model, step, rank, size)
        if step != 1:
            expected.step(model, phub.Adam(0.01), size)
        optimizer.step()
        assert optimizer.last_iteration().last_skipped == (step == 1)
        expected.check(model, "not finite")


def case_scaled_gradients(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, adam, push="step", skip_nonfinite=True)
    plain = network()
    expected = Reference(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0 * 2**rank)
    for step in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        plain.load_state_dict(model.state_dict())
        x, y = batch(step, size)
        own = slice(rank * BATCH, (rank + 1) * BATCH)
        loss = torch.nn.functional.cross_entropy(model(x[own]), y[own])
        scaler.scale(loss).backward()
        if step == 1 and rank == size - 1:
            model[0].weight.grad[0, 0] = math.inf
        if step == 3:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        skipped = optimizer.last_iteration().last_skipped
        assert skipped == (step == 1)
        if not skipped:
            backward(plain, step, rank, size)
            expected.step(plain, phub.Adam(0.01), size)
        expected.check(model, f"scaled {step}")


class Heads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = torch.nn.Linear(4, 90)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(90, 100) for _ in range(2)])

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](torch.tanh(self.body(x)))


def case_unused_parameters(rank: int, size: int) -> None:
    model = Heads()
    optimizer = wrapped(model, adam, skip_unused=True)
    parts = [model.body, *model.heads]
    expected = [Reference(part) for part in parts]
    for step, head in enumerate((0, 0, 1, 0)):
        optimizer.zero_grad()
        model(torch.full((2, 4), 1.0 + rank + step), head).square().sum().backward()
        for index in (0, 1 + head):
            expected[index].step(parts[index], phub.Adam(0.01), size)
        optimizer.step()
        for index, part in enumerate(parts):
            expected[index].check(part, f"part {index}")
