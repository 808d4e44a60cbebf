"""Movements again and again: first in pieces, then with keys of exactly their size; and messages of
many tags. Each case runs on every rank, in one group."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from collective_cases import same, values

# Elements of a part: a piece and a rest, and several pieces and a rest.
COUNTS = (70_001, 600_007)
REPETITIONS = 3


def case_all_reduce_again(rank: int, size: int) -> None:
    for repetition in range(REPETITIONS):
        for count in COUNTS:
            tensors = [torch.arange(count) % 1000 + rank + each + 0.5 for each in range(4)]
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            for each, (work, tensor) in enumerate(zip(works, tensors)):
                work.wait()
                whole = (torch.arange(count) % 1000 + each + 0.5) * size + sum(range(size))
                same(tensor, whole)


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
    combine = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
    for dtype in (torch.int32, torch.int16, torch.uint8):
        inputs = [(torch.arange(size * 70_000) * (each + 1)).to(dtype) for each in range(size)]
        for name, function in combine.items():
            output = torch.zeros(70_000, dtype=dtype)
            dist.reduce_scatter_tensor(output, inputs[rank], getattr(dist.ReduceOp, name))
            expected = functools.reduce(function, inputs)
            same(output, expected[rank * 70_000 : (rank + 1) * 70_000])


def case_all_gather_again(rank: int, size: int) -> None:
    """From separate memory; from the own part of the output, as FSDP2 does; from memory that is
    partly in it; and into separate tensors."""
    for count in COUNTS:
        begin = rank * count
        for repetition in range(REPETITIONS):
            parts = [part(each, 0, count, repetition) for each in range(size)]
            for at in (None, begin, begin + 1 if rank + 1 < size else begin - 1):
                output = torch.zeros(size * count)
                given = parts[rank].clone() if at is None else output[at : at + count]
                given.copy_(parts[rank])
                dist.all_gather_into_tensor(output, given)
                same(output, torch.cat(parts))
            outputs = [torch.zeros(count) for _ in range(size)]
            dist.all_gather(outputs, parts[rank])
            for output, expected in zip(outputs, parts):
                same(output, expected)


def part(sender: int, receiver: int, count: int, repetition: int) -> torch.Tensor:
    """What one rank sends to another."""
    return torch.arange(count, dtype=torch.float32) + 1000 * sender + 7 * receiver + repetition


def case_all_to_all_again(rank: int, size: int) -> None:
    for count in (70_001, 300_007):
        for repetition in range(REPETITIONS):
            sent = torch.cat([part(rank, each, count, repetition) for each in range(size)])
            expected = torch.cat([part(each, rank, count, repetition) for each in range(size)])
            output = torch.zeros(size * count)
            dist.all_to_all_single(output, sent)
            same(output, expected)
        # Split sizes may differ between ranks, so the ranks compare them first.
        output.zero_()
        splits = [count] * size
        dist.all_to_all_single(output, sent, splits, splits)
        same(output, expected)
        outputs = [torch.zeros(count) for _ in range(size)]
        dist.all_to_all(outputs, list(sent.chunk(size)))
        same(torch.cat(outputs), expected)
        dist.all_to_all_single(sent, sent)
        same(sent, expected)


def case_scatter_and_gather_again(rank: int, size: int) -> None:
    for count, root in ((70_001, 0), (300_007, 1)):
        for repetition in range(REPETITIONS):
            inputs = [part(root, each, count, repetition) for each in range(size)]
            output = torch.zeros(count)
            dist.scatter(output, inputs if rank == root else None, root)
            same(output, inputs[rank])
            outputs = [torch.zeros(count) for _ in range(size)]
            mine = part(rank, root, count, repetition)
            dist.gather(mine, outputs if rank == root else None, root)
            for sender, received in enumerate(outputs if rank == root else []):
                same(received, part(sender, root, count, repetition))


def case_scatter_of_strided_tensors(rank: int, size: int) -> None:
    inputs = [part(1, each, 140_000, 0)[::2] for each in range(size)]
    output = torch.zeros(140_000)[::2]
    dist.scatter(output, inputs if rank == 1 else None, 1)
    same(output.contiguous(), inputs[rank].contiguous())


def case_messages_of_many_tags(rank: int, size: int) -> None:
    if rank > 1:
        return
    peer = 1 - rank
    # Both ways at once; received in another order than sent, so some arrive before their call.
    tags = [100, 17, 5, 1 << 40, 100, 18]
    counts = [7, 1, 9, 300_000, 8, 0]
    sent = [values(rank + tag % 97, n, torch.float32) for tag, n in zip(tags, counts)]
    works = [dist.isend(tensor, peer, tag=tag) for tensor, tag in zip(sent, tags)]
    for index in (3, 5, 0, 2, 4, 1):
        output = torch.empty(counts[index])
        dist.recv(output, peer, tag=tags[index])
        same(output, values(peer + tags[index] % 97, counts[index], torch.float32))
    # Called before they are sent, or after, and sent in another order.
    outputs = [torch.empty(4) for _ in range(6)]
    works += [dist.irecv(output, peer, tag=30 + i) for i, output in enumerate(outputs)]
    works += [
        dist.isend(torch.full((4,), float(i)), peer, tag=30 + i) for i in (4, 0, 5, 2, 1, 3)
    ]
    for work in works:
        work.wait()
    for i, output in enumerate(outputs):
        same(output, torch.full((4,), float(i)))
