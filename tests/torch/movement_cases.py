"""Gathers and reduce-scatters again and again: the pieces of the first use, and then the keys of
exactly their size. Each case runs on every rank, in one group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from collective_cases import same

# Elements of a part: a piece and a rest, and several pieces and a rest.
COUNTS = (70_001, 600_007)
REPETITIONS = 3


def part(rank: int, count: int, repetition: int) -> torch.Tensor:
    """Any bits, also NaNs and denormal numbers."""
    bits = torch.arange(count, dtype=torch.int64) * 2_654_435_761 + rank * 977 + repetition
    return (bits % (1 << 32)).to(torch.int64).to(torch.int32).view(torch.float32)


def all_parts(size: int, count: int, repetition: int) -> torch.Tensor:
    return torch.cat([part(rank, count, repetition) for rank in range(size)])


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    same(actual.view(torch.int32), expected.view(torch.int32))


def case_all_gather_again(rank: int, size: int) -> None:
    for count in COUNTS:
        for repetition in range(REPETITIONS):
            own, expected = part(rank, count, repetition), all_parts(size, count, repetition)
            whole = torch.zeros(size * count)
            dist.all_gather_into_tensor(whole, own)
            same_bits(whole, expected)
            apart = [torch.zeros(count) for _ in range(size)]
            dist.all_gather(apart, own)
            same_bits(torch.cat(apart), expected)


def case_all_gather_in_place(rank: int, size: int) -> None:
    for count in COUNTS:
        for repetition in range(REPETITIONS):
            whole = torch.zeros(size * count)
            own = whole[rank * count : (rank + 1) * count]
            own.copy_(part(rank, count, repetition))
            dist.all_gather_into_tensor(whole, own)
            same_bits(whole, all_parts(size, count, repetition))


def case_gather_again(rank: int, size: int) -> None:
    for repetition in range(REPETITIONS):
        for root in range(size):
            own = part(rank, 70_001, repetition)
            outputs = [torch.zeros(70_001) for _ in range(size)] if rank == root else None
            dist.gather(own, outputs, root)
            if outputs is not None:
                same_bits(torch.cat(outputs), all_parts(size, 70_001, repetition))


def case_reduce_scatter_again(rank: int, size: int) -> None:
    for count in COUNTS:
        for repetition in range(REPETITIONS):
            inputs = [torch.arange(size * count) % 1000 + r + repetition for r in range(size)]
            first, last = rank * count, (rank + 1) * count
            for dtype in (torch.float32, torch.int16, torch.bool):
                for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                    if count > COUNTS[0] and (op, dtype) != (dist.ReduceOp.SUM, torch.float32):
                        continue
                    typed = [each.to(dtype) for each in inputs]
                    wide = torch.stack([each.to(torch.float64) for each in typed])
                    result = wide.sum(0) if op == dist.ReduceOp.SUM else wide.amax(0)
                    expected = result[first:last].to(dtype)
                    output = torch.zeros(count, dtype=dtype)
                    dist.reduce_scatter_tensor(output, typed[rank], op)
                    same(output, expected)
                    output.zero_()
                    dist.reduce_scatter(output, list(typed[rank].chunk(size)), op)
                    same(output, expected)


def case_reduce_scatter_of_complex_numbers(rank: int, size: int) -> None:
    for _ in range(REPETITIONS):
        whole = torch.arange(size * 70_000, dtype=torch.float32)
        output = torch.zeros(70_000, dtype=torch.complex64)
        dist.reduce_scatter_tensor(output, torch.complex(whole + rank, -whole))
        own = whole[rank * 70_000 : (rank + 1) * 70_000]
        same(output, torch.complex(own * size + sum(range(size)), -own * size))


def case_reduce_scatter_bitwise(rank: int, size: int) -> None:
    whole = torch.arange(size * 70_000, dtype=torch.int32) * (rank + 1)
    output = torch.zeros(70_000, dtype=torch.int32)
    dist.reduce_scatter_tensor(output, whole, dist.ReduceOp.BXOR)
    expected = torch.zeros_like(whole)
    for r in range(size):
        expected ^= torch.arange(size * 70_000, dtype=torch.int32) * (r + 1)
    same(output, expected[rank * 70_000 : (rank + 1) * 70_000])
