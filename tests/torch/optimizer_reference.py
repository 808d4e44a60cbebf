"""What the cases of phub.torch.DistributedOptimizer share."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist

import phub
from phub.torch import DistributedOptimizer, reference
from training_cases import BATCH, batch

Make = Callable[[Any], torch.optim.Optimizer]


# The class in torch.optim, and groups with the daemon's optimizer that each must become.
OPTIMIZERS: list[tuple[Any, list[tuple[dict[str, Any], Any]]]] = [
    (
        torch.optim.SGD,
        [
            ({"lr": 0.1}, phub.Sgd(0.1)),
            ({"lr": 0.2, "weight_decay": 0.01}, phub.Sgd(0.2, weight_decay=0.01)),
            (
                {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
                phub.Momentum(0.1, 0.9, dampening=0.3, weight_decay=0.01),
            ),
            ({"lr": 0.1, "momentum": 0.9, "nesterov": True}, phub.Nesterov(0.1, 0.9)),
        ],
    ),
    (
        torch.optim.Adam,
        [
            ({"lr": 0.01, "weight_decay": 0.1}, phub.Adam(0.01, weight_decay=0.1)),
            (
                {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
                phub.AdamW(0.01, weight_decay=0.1),
            ),
        ],
    ),
    (torch.optim.AdamW, [({"lr": 0.01, "betas": (0.8, 0.99)}, phub.AdamW(0.01, 0.8, 0.99))]),
    (
        torch.optim.Adagrad,
        [
            (
                {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.001},
                phub.Adagrad(0.1, 0.01, 0.001, 0.5),
            )
        ],
    ),
    (
        torch.optim.RMSprop,
        [
            ({"lr": 0.01, "weight_decay": 0.1}, phub.RmsProp(0.01, weight_decay=0.1)),
            (
                {"lr": 0.01, "alpha": 0.9, "momentum": 0.8},
                phub.RmsPropMomentum(0.01, 0.9, momentum=0.8),
            ),
            ({"lr": 0.01, "centered": True}, phub.RmsPropCentered(0.01)),
        ],
    ),
]


def wrapped(model: Any, make: Make, **options: Any) -> Any:
    return DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.01)


def backward(model: Any, step: int, rank: int, size: int) -> None:
    x, y = batch(step, size)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()


def gathered(gradients: list[Any], size: int) -> list[list[Any]]:
    """The gradients of each rank, with one collective."""
    flat = torch.cat([each.double().reshape(-1) for each in gradients])  # exact
    tensors = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(tensors, flat)
    return [
        [
            part.view(each.shape).to(each.dtype)
            for part, each in zip(tensor.split([each.numel() for each in gradients]), gradients)
        ]
        for tensor in tensors
    ]


class Reference:
    """What the parameters of a model must be, from the gradients of all ranks."""

    def __init__(self, model: Any, op: str = "mean") -> None:
        self.parameters = [each.detach().clone() for each in model.parameters()]
        self.states: list[dict[str, Any]] = [{} for _ in self.parameters]
        self.op = op
        self.count = 0

    def step(self, model: Any, rules: Any, size: int, scale: float = 1.0) -> None:
        """rules: one for all parameters, or one for each."""
        self.count += 1
        ranks = gathered([each.grad for each in model.parameters()], size)
        for index, (mine, states) in enumerate(zip(self.parameters, self.states)):
            gradient = reference.combined([each[index] for each in ranks], self.op) * scale
            rule = rules[index] if isinstance(rules, list) else rules
            reference.step(states, mine, gradient, rule, self.count)

    def check(self, model: Any, what: str) -> None:
        for mine, (name, parameter) in zip(self.parameters, model.named_parameters()):
            assert torch.equal(mine, parameter), f"{what}, step {self.count}: {name} differs"
