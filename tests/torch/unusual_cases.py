"""Unusual and wrong tensors for every collective. Each case runs on every rank, in one group. What
is refused is refused before anything is sent, so the group can be used afterwards."""

from __future__ import annotations

import gc
from typing import Any, Callable

import torch
import torch.distributed as dist

from collective_cases import refused, same

Call = Callable[[Callable[[int], Any]], Any]


def calls(rank: int, size: int) -> dict[str, Call]:
    """Each collective with tensors that the given function makes from a rank or a number, and what
    it must give: the tensors of this rank that have received something, as one list."""

    def gather(new: Callable[[int], Any]) -> Any:
        outputs = [new(-1) for _ in range(size)] if rank == 0 else None
        dist.gather(new(rank), outputs, 0)
        return outputs or []

    def scatter(new: Callable[[int], Any]) -> Any:
        output = new(-1)
        dist.scatter(output, [new(each) for each in range(size)] if rank == 1 else None, 1)
        return [output]

    def all_gather(new: Callable[[int], Any]) -> Any:
        outputs = [new(-1) for _ in range(size)]
        dist.all_gather(outputs, new(rank))
        return outputs

    def reduce_scatter(new: Callable[[int], Any]) -> Any:
        output = new(-1)
        dist.reduce_scatter(output, [new(each) for each in range(size)])
        return [output]

    def all_to_all(new: Callable[[int], Any]) -> Any:
        outputs = [new(-1) for _ in range(size)]
        dist.group.WORLD.alltoall(outputs, [new(rank) for _ in range(size)]).wait()
        return outputs

    def in_place(call: Callable[..., Any]) -> Call:
        def run(new: Callable[[int], Any]) -> Any:
            tensor = new(rank)
            call(tensor)
            return [tensor]

        return run

    def send(new: Callable[[int], Any]) -> Any:
        tensor = new(rank)
        if rank == 0:
            dist.send(tensor, 1)
            return []
        if rank == 1:
            dist.recv(tensor, 0)
            return [tensor]
        return []

    return {
        "all_reduce": in_place(dist.all_reduce),
        "broadcast": in_place(lambda tensor: dist.broadcast(tensor, 1)),
        "reduce": in_place(lambda tensor: dist.reduce(tensor, 0)),
        "gather": gather,
        "scatter": scatter,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
        "send": send,
    }


def expected(name: str, rank: int, size: int) -> list[float]:
    """The value of all elements of each result, if a tensor of n has the elements n + 1."""
    ranks = [each + 1.0 for each in range(size)]
    total = sum(ranks)
    return {
        "all_reduce": [total],
        "broadcast": [2.0],
        "reduce": [total] if rank == 0 else [],  # elsewhere it is undefined
        "gather": ranks if rank == 0 else [],
        "scatter": [rank + 1.0],
        "all_gather": ranks,
        "reduce_scatter": [size * (rank + 1.0)],
        "all_to_all": ranks,
        "send": [1.0] if rank == 1 else [],
    }[name]


def check_all(rank: int, size: int, new: Callable[[int], Any]) -> None:
    for name, call in calls(rank, size).items():
        with torch.no_grad():
            results = call(new)
        for result, value in zip(results, expected(name, rank, size)):
            same(result.detach(), torch.full(result.shape, value))


def case_not_contiguous(rank: int, size: int) -> None:
    check_all(rank, size, lambda number: torch.full((6, 5), number + 1.0).t()[:, ::2])


def case_overlapping_storage(rank: int, size: int) -> None:
    """Rows of one tensor: results must not spread into the rows next to them."""

    def new(number: int) -> Any:
        whole = torch.full((3, 7), -5.0)
        whole[1] = number + 1.0
        return whole[1]

    check_all(rank, size, new)
    tensor = new(rank)
    dist.all_reduce(tensor)
    same(tensor._base[::2], torch.full((2, 7), -5.0))


def case_of_no_elements(rank: int, size: int) -> None:
    check_all(rank, size, lambda number: torch.full((0, 3), number + 1.0))


def case_of_no_dimensions(rank: int, size: int) -> None:
    check_all(rank, size, lambda number: torch.tensor(number + 1.0))


def case_default_device(rank: int, size: int) -> None:
    """Programs that set torch's default device: phub's own tensors stay on the CPU."""
    if not hasattr(torch, "set_default_device"):
        return
    for count in (4, 200_000):
        for name, call in calls(rank, size).items():
            with torch.device("meta"):
                results = call(lambda number: torch.full((count,), number + 1.0, device="cpu"))
                dist.barrier()
            for result, value in zip(results, expected(name, rank, size)):
                same(result, torch.full((count,), value, device="cpu"))


def case_that_require_a_gradient(rank: int, size: int) -> None:
    check_all(rank, size, lambda number: torch.full((4,), number + 1.0, requires_grad=True))


def case_sparse(rank: int, size: int) -> None:
    for name, call in calls(rank, size).items():
        if size > 2 and rank > 1 or name == "all_reduce":  # see sparse_cases.py
            continue
        try:
            results = call(lambda number: torch.eye(3).to_sparse())
        except (RuntimeError, ValueError) as error:  # torch itself refuses some
            assert "parse" in str(error), error
        else:
            assert results == []  # this rank takes no part
    check_all(rank, size, lambda number: torch.full((4,), number + 1.0))


def case_wrong_sizes(rank: int, size: int) -> None:
    ones = torch.ones
    group = dist.group.WORLD
    refused(lambda: dist.all_gather([ones(3)] * (size + 1), ones(3)), "group has")
    refused(lambda: dist.all_gather([ones(4)] * size, ones(3)), "3 elements", "[4")
    refused(lambda: group._allgather_base(ones(size * 3 + 1), ones(3)).wait(), "elements")
    refused(lambda: group._reduce_scatter_base(ones(3), ones(size * 3 + 1)).wait(), "elements")
    refused(lambda: dist.reduce_scatter(ones(3), [ones(3)] * (size - 1)), "group has")
    refused(lambda: dist.reduce_scatter(ones(3), [ones(4)] * size), "4", "3")
    refused(lambda: group.alltoall([ones(3)], [ones(3)] * size).wait(), "group has")
    refused(lambda: group.alltoall_base(ones(3), ones(size * 2 + 1), [], []).wait(), "rows")
    check_all(rank, size, lambda number: torch.full((4,), number + 1.0))


def case_freed_while_in_flight(rank: int, size: int) -> None:
    for count in (5, 100_000, 1_000_000):
        works = [
            dist.all_reduce(torch.full((count,), rank + 1.0), async_op=True) for _ in range(5)
        ]
        gc.collect()
        for work in works:
            work.wait()
            if hasattr(work, "result"):
                same(work.result()[0][:5], torch.full((5,), size * (size + 1) / 2))
        del works, work
    gc.collect()
    check_all(rank, size, lambda number: torch.full((4,), number + 1.0))


def case_works_that_nobody_waits_for(rank: int, size: int) -> None:
    for _ in range(20):
        dist.all_reduce(torch.ones(50_000), async_op=True)
    gc.collect()
    check_all(rank, size, lambda number: torch.full((4,), number + 1.0))
