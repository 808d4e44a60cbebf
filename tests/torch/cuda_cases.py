"""What is particular to CUDA tensors. Each case runs on every rank, in one group; all ranks use one
GPU."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist

from collective_cases import refused, same

LARGE = 3_000_000  # elements
_CYCLES = 2_000_000_000  # about a second of a GPU's time


def full(count: int, value: float) -> Any:
    return torch.full((count,), value, device="cuda")


def case_results_follow_queued_work(rank: int, size: int) -> None:
    """Kernels that the caller has queued, before and after, on its own stream, without waiting."""
    total = float(sum(range(1, size + 1)))
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for count in (10, LARGE):
                for _ in range(3):
                    tensor = full(count, 0.0)
                    torch.cuda._sleep(_CYCLES // 20)
                    tensor += rank + 1
                    dist.all_reduce(tensor)
                    tensor *= 2
                    same(tensor.cpu(), torch.full((count,), total * 2))


def case_callers_do_not_wait_for_the_gpu(rank: int, size: int) -> None:
    for count, repetition in itertools.product((10, LARGE), range(4)):
        tensor = full(count, rank + 1.0)
        parts = full(count * size, 0.0)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda._sleep(_CYCLES)
        slept = torch.cuda.Event()
        slept.record()
        gathered = dist.all_gather_into_tensor(parts, tensor, async_op=True)
        reduced = dist.all_reduce(tensor, async_op=True)
        # At first, memory is pinned, for which the driver waits.
        if repetition == 3:
            assert not slept.query(), "the call waited for the GPU"
            assert not reduced.is_completed()
        gathered.wait()
        reduced.wait()
        same(tensor.cpu(), torch.full((count,), float(sum(range(1, size + 1)))))
        expected = torch.arange(1.0, size + 1).repeat_interleave(count)
        same(parts.cpu(), expected)
        torch.cuda.synchronize()
        assert reduced.is_completed()


def case_order_of_cpu_and_cuda_tensors(rank: int, size: int) -> None:
    """Collectives of CPU tensors keep their place behind those that wait for the GPU."""
    total = float(sum(range(1, size + 1)))
    for _ in range(3):
        torch.cuda._sleep(_CYCLES // 20)
        tensors = [full(LARGE, rank + 1.0), torch.full((LARGE,), rank + 1.0), full(5, rank + 1.0)]
        tensors += [torch.full((3,), rank + 1.0)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work, tensor in zip(reversed(works), reversed(tensors)):
            work.wait()
            same(tensor.cpu(), torch.full(tensor.shape, total))


def case_futures(rank: int, size: int) -> None:
    total = float(sum(range(1, size + 1)))
    for count in (10, LARGE):
        tensor = full(count, rank + 1.0)
        torch.cuda._sleep(_CYCLES // 20)
        work = dist.all_reduce(tensor, async_op=True)
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        with torch.cuda.stream(torch.cuda.Stream()):
            same(doubled.wait().cpu(), torch.full((count,), total * 2))
        late = work.get_future().wait()[0] + 1
        same(late.cpu(), torch.full((count,), total + 1))


def case_tensors_that_are_dropped(rank: int, size: int) -> None:
    """Their memory is not used for others while it is being copied."""
    others = []
    for step in range(40):
        tensor = full(LARGE, rank + 1.0)
        dist.all_reduce(tensor, async_op=True)
        del tensor
        others.append(full(LARGE, float(step)))
    dist.barrier()
    torch.cuda.synchronize()
    for step, other in enumerate(others):
        same(other.cpu(), torch.full((LARGE,), float(step)))


def case_more_in_flight_than_keys(rank: int, size: int) -> None:
    total = float(sum(range(1, size + 1)))
    for _ in range(3):
        tensors = [full(LARGE, rank + 1.0 + each) for each in range(9)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        for each, tensor in enumerate(tensors):
            same(tensor.cpu(), torch.full((LARGE,), total + each * size))


def case_captured_graph(rank: int, size: int) -> None:
    tensor = full(10, 1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        refused(lambda: dist.all_reduce(tensor), "captured")
    dist.barrier()
