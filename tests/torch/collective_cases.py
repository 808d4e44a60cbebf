"""Collectives with exact expectations. Each case runs on every rank, in one group."""

from __future__ import annotations

import itertools
import math
import os
import time
import unittest

import torch
import torch.distributed as dist
import wire_bytes
from ranks import PATIENCE_S

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
SIZES = (0, 1, 7, 1000, 65_537, 1_300_000)
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
TYPES += [torch.uint8, torch.int8, torch.int16, torch.bool]


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if not torch.equal(actual, expected):
        raise AssertionError(f"{actual} is not {expected}")


def values(rank: int, count: int, dtype: torch.dtype, most: int = 5) -> torch.Tensor:
    """Small integers, which every type adds exactly."""
    numbers = (torch.arange(count) * (rank + 3) + rank) % most
    return (numbers > 1) if dtype == torch.bool else numbers.to(dtype)


def combined(op: str, size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    parts = torch.stack([values(rank, count, dtype).to(wide) for rank in range(size)])
    if op == "SUM":
        result = parts.sum(0)
    elif op == "AVG":
        result = parts.sum(0) / size
    elif op == "PRODUCT":
        result = parts.prod(0)
    else:
        result = parts.amin(0) if op == "MIN" else parts.amax(0)
    return (result != 0) if dtype == torch.bool else result.to(dtype)


def case_all_reduce(rank: int, size: int) -> None:
    for dtype in TYPES:
        for op in ("SUM", "MIN", "MAX", "PRODUCT"):
            for count in SIZES if op == "SUM" else (1000,):
                if count > 100_000 and dtype not in (torch.float32, torch.int64, torch.bool):
                    continue
                tensor = values(rank, count, dtype)
                dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                same(tensor, combined(op, size, count, dtype))


def case_all_reduce_average(rank: int, size: int) -> None:
    for count in (1000, 400_000):
        tensor = values(rank, count, torch.float32)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        torch.testing.assert_close(tensor, combined("AVG", size, count, torch.float32))
    refused(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG), "int32")


def case_all_reduce_bitwise(rank: int, size: int) -> None:
    types = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    types += [getattr(torch, name) for name in ("uint16", "uint64") if hasattr(torch, name)]
    for dtype, count in itertools.product(types, (1000, 400_000)):
        parts = [values(each, count, dtype) for each in range(size)]
        for op in ("BAND", "BOR", "BXOR"):
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            expected = parts[0]
            for part in parts[1:]:
                combine = {"BAND": "__and__", "BOR": "__or__", "BXOR": "__xor__"}[op]
                expected = getattr(expected, combine)(part)
            same(tensor, expected)


def case_all_reduce_premultiplied(rank: int, size: int) -> None:
    if VERSION < (2, 13):
        raise unittest.SkipTest("no factor in this version")
    for count in (10, 200_000):
        tensor = values(rank, count, torch.float32)
        dist.all_reduce(tensor, dist.ReduceOp.PREMUL_SUM(0.5))
        same(tensor, combined("SUM", size, count, torch.float32) * 0.5)


def case_all_reduce_complex(rank: int, size: int) -> None:
    tensor = torch.complex(torch.arange(5.0), torch.ones(5) * rank)
    dist.all_reduce(tensor)
    same(tensor, torch.complex(torch.arange(5.0) * size, torch.ones(5) * sum(range(size))))
    refused(lambda: dist.all_reduce(tensor.clone(), dist.ReduceOp.MAX))


def case_all_reduce_of_unusual_tensors(rank: int, size: int) -> None:
    whole = torch.arange(24.0).reshape(4, 6) + rank
    total = torch.arange(24.0).reshape(4, 6) * size + sum(range(size))
    for select in (lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1], lambda t: t[2, 3]):
        tensor = whole.clone()
        dist.all_reduce(select(tensor))
        same(select(tensor), select(total))
    parameter = torch.nn.Parameter(whole.clone())
    dist.all_reduce(parameter.data)
    same(parameter.data, total)
    leaf = whole.clone().requires_grad_()
    with torch.no_grad():
        dist.all_reduce(leaf)
    same(leaf.detach(), total)
    with torch.inference_mode():
        tensor = whole + 0
        dist.all_reduce(tensor)
        same(tensor, total)
        part = (whole + 0).t()
        dist.all_reduce(part)
        same(part, total.t())


def case_asynchronous(rank: int, size: int) -> None:
    tensors = [values(rank, count, torch.float32) for count in (5, 70_000, 900_000, 12)] * 5
    tensors = [tensor.clone() for tensor in tensors]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor in zip(reversed(works), reversed(tensors)):
        work.wait()
        assert work.is_completed()
        same(tensor, combined("SUM", size, len(tensor), torch.float32))
    seen = []
    work = dist.all_reduce(torch.ones(4), async_op=True)
    later = work.get_future().then(lambda future: seen.append(future.value()[0].clone()))
    later.wait()
    same(seen[0], torch.full((4,), float(size)))


def case_broadcast(rank: int, size: int) -> None:
    for dtype in [*TYPES, torch.complex64]:
        for count in SIZES if dtype == torch.float32 else (1000,):
            for root in range(size):
                real = torch.float32 if dtype.is_complex else dtype
                tensor = values(rank, count, real).to(dtype)
                dist.broadcast(tensor, root)
                same(tensor, values(root, count, real).to(dtype))
    strided = torch.full((4, 6), float(rank)).t()
    dist.broadcast(strided, 1)
    same(strided, torch.full((6, 4), 1.0))
    special = torch.tensor([math.nan, math.inf, -0.0, 1e-42])
    copy = special.clone() if rank == 0 else torch.zeros(4)
    dist.broadcast(copy, 0)
    same(copy.view(torch.int32), special.view(torch.int32))


def case_reduce(rank: int, size: int) -> None:
    for count in (10, 300_000):
        for root in range(size):
            tensor = values(rank, count, torch.float32)
            dist.reduce(tensor, root)
            if rank == root:
                same(tensor, combined("SUM", size, count, torch.float32))


def case_all_gather(rank: int, size: int) -> None:
    for dtype in TYPES:
        for count in (0, 3, 50_000) if dtype == torch.float32 else (7,):
            outputs = [torch.empty(count, dtype=dtype) for _ in range(size)]
            dist.all_gather(outputs, values(rank, count, dtype))
            for root, output in enumerate(outputs):
                same(output, values(root, count, dtype))


def case_all_gather_single(rank: int, size: int) -> None:
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    for count in (5, 80_000):
        output = torch.empty(size * count)
        # FSDP2's input is a part of its output.
        part = output[rank * count : (rank + 1) * count]
        part.copy_(values(rank, count, torch.float32))
        gather(output, part)
        same(output, torch.cat([values(each, count, torch.float32) for each in range(size)]))


def case_gather_and_scatter(rank: int, size: int) -> None:
    for count in (4, 60_000):
        for root in range(size):
            mine = values(rank, count, torch.float32)
            outputs = [torch.empty(count) for _ in range(size)] if rank == root else None
            dist.gather(mine, outputs, root)
            for each, output in enumerate(outputs or []):
                same(output, values(each, count, torch.float32))
            inputs = [values(each, count, torch.float32) for each in range(size)]
            output = torch.empty(count)
            dist.scatter(output, inputs if rank == root else None, root)
            same(output, values(rank, count, torch.float32))


def case_reduce_scatter(rank: int, size: int) -> None:
    single = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    for count in (6, 90_000):
        whole = combined("SUM", size, size * count, torch.float32)
        expected = whole[rank * count : (rank + 1) * count]
        output = torch.empty(count)
        single(output, values(rank, size * count, torch.float32))
        same(output, expected)
        output = torch.empty(count)
        dist.reduce_scatter(output, list(values(rank, size * count, torch.float32).split(count)))
        same(output, expected)


def case_all_to_all(rank: int, size: int) -> None:
    for count in (3, 40_000):
        send = torch.cat([values(rank * size + each, count, torch.float32) for each in range(size)])
        expected = torch.cat(
            [values(each * size + rank, count, torch.float32) for each in range(size)]
        )
        output = torch.empty(size * count)
        dist.all_to_all_single(output, send)
        same(output, expected)
        if VERSION >= (2, 0):
            outputs = [torch.empty(count) for _ in range(size)]
            dist.all_to_all(outputs, list(send.split(count)))
            same(torch.cat(outputs), expected)
    # Rank r sends r + 1 + i rows of 2 to rank i.
    splits = [rank + 1 + each for each in range(size)]
    send = torch.full((sum(splits), 2), float(rank))
    receive = [each + 1 + rank for each in range(size)]
    output = torch.empty(sum(receive), 2)
    dist.all_to_all_single(output, send, receive, splits)
    same(output, torch.cat([torch.full((n, 2), float(i)) for i, n in enumerate(receive)]))


def case_send_and_receive(rank: int, size: int) -> None:
    if rank > 1:
        return
    peer = 1 - rank
    for count in (1, 5_000, 600_000):
        if rank == 0:
            dist.send(values(3, count, torch.float32), peer)
            tensor = torch.empty(count)
            dist.recv(tensor, peer)
            same(tensor, values(4, count, torch.float32))
        else:
            tensor = torch.empty(count)
            dist.recv(tensor, peer)
            same(tensor, values(3, count, torch.float32))
            dist.send(values(4, count, torch.float32), peer)
    # Crossed, and out of order by tag.
    outputs = [torch.empty(9), torch.empty(9)]
    works = [dist.isend(values(rank + tag, 9, torch.float32), peer, tag=tag) for tag in (1, 2)]
    works += [dist.irecv(outputs[tag - 1], peer, tag=tag) for tag in (2, 1)]
    for work in works:
        work.wait()
    for tag in (1, 2):
        same(outputs[tag - 1], values(peer + tag, 9, torch.float32))
    operations = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), peer),
        dist.P2POp(dist.irecv, outputs[0], peer),
    ]
    outputs[0] = torch.empty(3)
    operations[1] = dist.P2POp(dist.irecv, outputs[0], peer)
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(outputs[0], torch.full((3,), float(peer)))
    refused(lambda: dist.recv(torch.empty(3)), "source")


def case_objects(rank: int, size: int) -> None:
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (rank * 5000)})
    assert [each["rank"] for each in gathered] == list(range(size)), gathered
    for count in (1, 100_000):
        objects = [list(range(count)), "b"] if rank == 0 else [None, None]
        dist.broadcast_object_list(objects, 0)
        assert objects == [list(range(count)), "b"]
    out = [None]
    dist.scatter_object_list(out, [f"for {each}" for each in range(size)], 0)
    assert out == [f"for {rank}"], out
    gathered = [None] * size if rank == 1 else None
    dist.gather_object(("from", rank), gathered, 1)
    assert gathered is None or gathered == [("from", each) for each in range(size)]


def case_barrier(rank: int, size: int) -> None:
    for _ in range(20):
        dist.barrier()


def case_coalesced(rank: int, size: int) -> None:
    tensors = [values(rank, count, torch.float32) for count in (3, 4, 70_000)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        same(tensor, combined("SUM", size, len(tensor), torch.float32))
    group = dist.group.WORLD
    outputs = [torch.empty(size * 3), torch.empty(size * 30_000)]
    inputs = [values(rank, 3, torch.float32), values(rank, 30_000, torch.float32)]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    for output, count in zip(outputs, (3, 30_000)):
        same(output, torch.cat([values(each, count, torch.float32) for each in range(size)]))
    if VERSION >= (2, 13):
        small = [values(rank, 3, torch.float32), values(rank, 9, torch.float32)]
        with dist.distributed_c10d._coalescing_manager():
            for tensor in small:
                dist.all_reduce(tensor)
        for tensor in small:
            same(tensor, combined("SUM", size, len(tensor), torch.float32))


def case_groups(rank: int, size: int) -> None:
    everyone = dist.new_group(list(range(size)))
    if VERSION >= (2, 0):
        assert everyone.job_name == dist.group.WORLD.job_name  # it is a group of that job
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=everyone)
    same(tensor, torch.full((10,), float(size)))
    alone = [dist.new_group([each]) for each in range(size)]
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=alone[rank])
    same(tensor, torch.full((3,), float(rank)))
    # Groups are independent: crossed order.
    first, second = torch.ones(500_000), torch.ones(500_000)
    order = [(first, everyone), (second, dist.group.WORLD)]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for tensor, group in (order if rank % 2 == 0 else reversed(order))
    ]
    for work in works:
        work.wait()
    same(first, torch.full((500_000,), float(size)))
    same(second, torch.full((500_000,), float(size)))
    dist.destroy_process_group(everyone)


def case_groups_that_come_and_go(rank: int, size: int) -> None:
    counts = []
    reserved = 0
    for turn in range(6):
        group = dist.new_group()
        tensor = torch.ones(300_000)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((300_000,), float(size)))
        dist.destroy_process_group(group)
        del group
        counts.append(len(os.listdir("/proc/self/fd")))
        dist.barrier()  # the keys of WORLD that it needs are there after the first turn
        if turn == 0:
            reserved = wire_bytes.reserved()
    if VERSION >= (2, 0):  # 1.13 leaves a group's job when the group is collected
        assert counts[-1] <= counts[0] + 8, counts
        # What a group reserved is returned soon after all of its ranks have left it.
        end = time.monotonic() + PATIENCE_S
        while rank == 0 and wire_bytes.reserved() > reserved:
            assert time.monotonic() < end, (wire_bytes.reserved(), reserved)
            time.sleep(0.05)
    dist.barrier()


def case_functional(rank: int, size: int) -> None:
    if VERSION < (2, 13):
        raise unittest.SkipTest("no functional collectives")
    import torch.distributed._functional_collectives as functional

    tensor = values(rank, 10, torch.float32)
    total = functional.all_reduce(tensor, "sum", dist.group.WORLD) + 0
    same(total, combined("SUM", size, 10, torch.float32))
    whole = functional.all_gather_tensor(tensor, 0, dist.group.WORLD) + 0
    same(whole, torch.cat([values(each, 10, torch.float32) for each in range(size)]))
    part = functional.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD) + 0
    same(part, values(rank, 10, torch.float32) * size)
    same(functional.broadcast(tensor, 1, dist.group.WORLD) + 0, values(1, 10, torch.float32))
    out = functional.all_to_all_single(whole, None, None, dist.group.WORLD) + 0
    same(out, values(rank, 10, torch.float32).repeat(size))


def refused(call, *words: str) -> None:  # type: ignore[no-untyped-def]
    try:
        call()
    except (RuntimeError, ValueError) as error:
        for word in words:
            assert word in str(error), error
        return
    raise AssertionError("it was not refused")
