"""phub.torch.DistributedOptimizer and DiLoCo with compressed gradients. Each case runs on every
rank, in one group."""

from __future__ import annotations

import math
from typing import Any

import torch

import phub
import phub.torch
from optimizer_failure_cases import fails
from optimizer_reference import gathered, wrapped
from phub.torch import DiLoCo, NotServed, OptimizerError, reference
from training_cases import close, identical_on_all_ranks, network, serial, train
from wire_bytes import moved

CHUNK = (128 << 10) // 4  # elements
SIZES = (CHUNK + 9000, 8999)  # two chunks; one with a part of a block. Each has a key of its own
COMPRESSIONS = (
    phub.Int8(),
    phub.Int8(error_feedback=True),
    phub.TopK(0.01),
    phub.TopK(0.3, error_feedback=False),
    phub.RandomK(0.01),
)


def parameters() -> Any:
    torch.manual_seed(5)
    return torch.nn.ParameterList([torch.nn.Parameter(torch.randn(size)) for size in SIZES])


def set_gradients(model: Any, step: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    for parameter in model.parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient * torch.rand(parameter.shape, generator=generator) ** 6


class Sender:
    """What the daemon makes of this rank's gradients."""

    def __init__(self, compression: Any) -> None:
        self.compression = compression
        self.residuals = [torch.zeros(size) for size in SIZES]

    def sent(self, model: Any, iterations: list[int]) -> list[Any]:
        sent = []
        for key, parameter in enumerate(model.parameters()):
            chunks = []
            residuals = self.residuals[key].split(CHUNK)
            for number, (values, residual) in enumerate(
                zip(parameter.grad.split(CHUNK), residuals)
            ):
                seed = reference.seed_of(key, iterations[key], number)
                left = residual if self.compression.error_feedback else None
                chunks.append(reference.transmitted(self.compression, values, seed, left))
            sent.append(torch.cat(chunks))
        return sent


def case_bits(rank: int, size: int) -> None:
    for compression in COMPRESSIONS:
        model = parameters()
        mine = [each.detach().clone() for each in model.parameters()]
        states: list[dict[str, Any]] = [{} for _ in mine]
        sender = Sender(compression)
        optimizer = wrapped(
            model, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), compression=compression,
            push="step",
        )
        keys = [bundle.key for bundle in optimizer._phub._bundles]
        for step in range(1, 5):
            set_gradients(model, step, rank)
            sent = sender.sent(model, [key.iteration + 1 for key in keys])
            ranks = gathered(sent, size)
            optimizer.step()
            for index, parameter in enumerate(model.parameters()):
                gradient = reference.combined([each[index] for each in ranks])
                rule = phub.Momentum(0.1, 0.9)
                reference.step(states[index], mine[index], gradient, rule, step)
                same = torch.equal(mine[index], parameter)
                assert same, f"{compression}, step {step}, parameter {index}"
        optimizer.leave()


def payload_bytes(compression: Any) -> int:
    """The formula of docs/pytorch.md."""
    total = 0
    for size in SIZES:
        for chunk in [CHUNK] * (size // CHUNK) + [size % CHUNK]:
            kept = reference.kept_of(compression, chunk)
            total += {
                "int8": chunk + 4 * math.ceil(chunk / 256),
                "topk": 6 * kept,
                "randomk": 4 * kept + 8,
            }[compression.name]
    return total


def case_bytes(rank: int, size: int) -> None:
    steps = 3
    whole = 4 * sum(SIZES) * size * steps
    for compression in (phub.Int8(), phub.TopK(0.01), phub.RandomK(0.01)):
        model = parameters()
        optimizer = wrapped(
            model, lambda p: torch.optim.SGD(p, 0.1), compression=compression, push="step"
        )

        def run() -> None:
            for step in range(steps):
                set_gradients(model, step, rank)
                optimizer.step()

        found = moved(optimizer._phub.job.name, run)
        optimizer.leave()
        expected = (payload_bytes(compression) * size * steps, whole)
        assert found == expected, (compression, found, expected)


def case_training(rank: int, size: int) -> None:
    for compression, distance in ((phub.Int8(), 0.02), (phub.TopK(0.5), 0.2)):
        model = network()
        optimizer = wrapped(
            model, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), compression=compression
        )
        train(model, optimizer, rank, size)
        identical_on_all_ranks(model)
        close(model.parameters(), serial(size), distance)
        optimizer.leave()


def case_outer_optimizer(rank: int, size: int) -> None:
    """What a rank moved arrives in 8 bits."""
    model = parameters()
    before = [each.detach().clone() for each in model.parameters()]
    outer = DiLoCo(
        torch.optim.SGD(model.parameters(), lr=1.0), sync_every=1, compression=phub.Int8()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0 + rank)
    outer.step()
    for old, parameter in zip(before, model.parameters()):
        moved_by = sum(range(1, size + 1)) / size
        assert torch.allclose(parameter, old + moved_by, atol=0.02), (parameter - old).unique()
    outer.leave()


def case_nan_skips_the_step_and_leaves_no_residual(rank: int, size: int) -> None:
    for compression in (phub.Int8(error_feedback=True), phub.TopK(0.01), phub.RandomK(0.01)):
        model = parameters()
        before = [each.detach().clone() for each in model.parameters()]
        optimizer = wrapped(
            model, lambda p: torch.optim.SGD(p, 0.1), compression=compression, push="step",
            skip_nonfinite=True,
        )
        set_gradients(model, 0, rank)
        if rank == size - 1:
            list(model.parameters())[0].grad[77] = math.nan
        optimizer.step()
        assert optimizer.last_iteration().last_skipped, compression
        for old, parameter in zip(before, model.parameters()):
            assert torch.equal(old, parameter), compression
        set_gradients(model, 1, rank)
        optimizer.step()
        assert not optimizer.last_iteration().last_skipped, compression
        for parameter in model.parameters():
            assert bool(parameter.isfinite().all()), compression
        optimizer.leave()


def case_wrong_options(rank: int, size: int) -> None:
    def make(**options: Any) -> Any:
        return wrapped(parameters(), lambda p: torch.optim.SGD(p, 0.1), **options)

    fails(ValueError, ["TopK(0)", "0.000001 to 0.5"], lambda: phub.TopK(0))
    fails(ValueError, ["RandomK(1.5)", "0.5"], lambda: phub.RandomK(1.5))
    fails(ValueError, ["compression is 'int8'", "phub.Int8()"], lambda: make(compression="int8"))
    fails(
        ValueError,
        ["gradient_dtype=float16", "Int8"],
        lambda: make(compression=phub.Int8(), gradient_dtype=torch.float16),
    )
    fails(ValueError, ["sum='fixed'"], lambda: make(compression=phub.TopK(0.1), sum="fixed"))
    model = torch.nn.Linear(3, 3).double()
    fails(
        NotServed,
        ["parameter weight", "float64", "compression"],
        lambda: wrapped(
            model, lambda p: torch.optim.SGD(p, 0.1), compression=phub.Int8()
        ),
    )
    other = phub.TopK(0.01) if rank == 0 else phub.TopK(0.02)
    fails(
        OptimizerError,
        ["rank 0 has compression=TopK(kept=0.01", "rank 1 has compression=TopK(kept=0.02"]
        if rank == 1
        else ["compression=TopK(kept=0.01", "compression=TopK(kept=0.02"],
        lambda: make(compression=other),
    )
