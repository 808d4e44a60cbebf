"""Models with shared, tied, scalar and buffered parameters: phub.torch.DistributedOptimizer trains
them as DistributedDataParallel on gloo does."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from phub.torch import DistributedOptimizer

WORDS, WIDTH, STEPS = 60, 24, 6


class Language(nn.Module):
    """An LSTM whose output layer has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.out = nn.Linear(WIDTH, WORDS)
        self.out.weight = self.words.weight

    def forward(self, generator: torch.Generator) -> Any:
        x = torch.randint(WORDS, (3, 9), generator=generator)
        y = self.out(self.lstm(self.words(x[:, :-1]))[0])
        return functional.cross_entropy(y.flatten(0, 1), x[:, 1:].flatten())


class Autoencoder(nn.Module):
    """A variational one, with BatchNorm and a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * 49, 8))
        self.decoder = nn.Sequential(
            nn.Linear(4, 8 * 49), nn.Unflatten(1, (8, 7, 7)), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1))
        self.log_scale = nn.Parameter(torch.tensor(0.0))

    def forward(self, generator: torch.Generator) -> Any:
        x = torch.rand(4, 1, 14, 14, generator=generator)
        mean, log_variance = self.encoder(x).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=generator)
        y = self.decoder(mean + noise * (0.5 * log_variance).exp())
        apart = (y - x).square() / (2 * (2 * self.log_scale).exp()) + self.log_scale
        return apart.mean() + 1e-3 * (mean.square() + log_variance.exp() - log_variance).mean()


class Shared(nn.Module):
    """One layer twice, and parameters of no dimensions and of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.gains = nn.ParameterDict(
            {"scale": nn.Parameter(torch.tensor(1.5)), "shift": nn.Parameter(torch.ones(1))})

    def forward(self, generator: torch.Generator) -> Any:
        x = torch.randn(5, 6, generator=generator)
        y = self.again(torch.tanh(self.first(x)))
        return (y * self.gains["scale"] + self.gains["shift"]).square().mean()


def generator_of(rank: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 * step + rank)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def made(kind: Any) -> Any:
    torch.manual_seed(3)
    return kind()


def train_with_gloo(kind: Any, rank: int, steps: int) -> list[Any]:
    """The parameters after the steps."""
    model = made(kind)
    wrapped = DistributedDataParallel(model, process_group=dist.new_group(backend="gloo"))
    optimizer = adamw(model)
    for step in range(steps):
        optimizer.zero_grad()
        wrapped(generator_of(rank, step)).backward()
        optimizer.step()
    return [each.detach() for each in model.parameters()]


def same(model: nn.Module, expected: list[Any], what: str) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), expected):
        torch.testing.assert_close(
            ours.detach(), theirs, rtol=1e-4, atol=2e-5, msg=lambda text: f"{what} {name}: {text}")


def check(kind: Any, rank: int) -> None:
    after, later = (train_with_gloo(kind, rank, steps) for steps in (STEPS, STEPS + 1))
    for option in ("", "share_parameters", "wait_in_forward"):
        model = made(kind)
        options = {option: model} if option else {}
        optimizer = DistributedOptimizer(adamw(model), model.named_parameters(), **options)

        def step(number: int) -> None:
            optimizer.zero_grad()
            model(generator_of(rank, number)).backward()
            optimizer.step()
            optimizer.wait_for_parameters()

        for number in range(STEPS):
            step(number)
        same(model, after, f"{kind.__name__} with {option}")
        optimizer.load_state_dict(optimizer.state_dict())
        step(STEPS)
        same(model, later, f"{kind.__name__} with {option}, its state loaded")
        optimizer.leave()


def case_tied_weights(rank: int, size: int) -> None:
    check(Language, rank)


def case_batch_norm_and_a_scalar(rank: int, size: int) -> None:
    check(Autoencoder, rank)


def case_shared_layers(rank: int, size: int) -> None:
    check(Shared, rank)
