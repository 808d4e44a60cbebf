"""Ranks that wait for each other in a cycle, and ranks that are only late."""

from __future__ import annotations

import datetime
import time
from typing import Any, Callable

from ranks import initialize

import torch

_TIMEOUT_S = 4.0


def _error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _groups(dist: Any, members: list[list[int]]) -> list[Any]:
    timeout = datetime.timedelta(seconds=_TIMEOUT_S)
    groups = [dist.new_group(each, timeout=timeout) for each in members]
    dist.barrier()
    return groups


def crossed(dist: Any, rank: int, size: int) -> str:
    """Each of the first `size` ranks waits in one group before it calls the collective of the
    other one."""
    groups = _groups(dist, [[each, (each + 1) % size] for each in range(size)])
    if rank >= size:
        return ""
    first, second = groups[rank], groups[(rank - 1) % size]  # with the next rank, with that before

    def call() -> None:
        dist.all_reduce(torch.ones(3), group=first)
        dist.all_reduce(torch.ones(3), group=second)

    return _error_of(call)


def both_send(dist: Any, rank: int, size: int) -> str:
    """Both wait until the other one receives."""
    (group,) = _groups(dist, [[0, 1]])
    return _error_of(lambda: dist.send(torch.ones(3), 1 - rank, group=group, tag=rank))


def both_receive(dist: Any, rank: int, size: int) -> str:
    """Both wait until the other one sends, with tags that share a stream."""
    (group,) = _groups(dist, [[0, 1]])
    return _error_of(lambda: dist.recv(torch.ones(3), 1 - rank, group=group, tag=50))


def late(dist: Any, rank: int, size: int) -> str:
    """Rank 0 waits in one group for rank 1. That one has a collective in flight, which waits for
    rank 0, but it is busy with something else."""
    groups = _groups(dist, [[0, 1], [0, 1]])
    if rank == 0:
        return _error_of(lambda: dist.all_reduce(torch.ones(3), group=groups[0]))
    if rank > 1:
        return ""
    work = dist.all_reduce(torch.ones(3), group=groups[1], async_op=True)
    time.sleep(_TIMEOUT_S + 1.0)
    return _error_of(work.wait)


def errors(rank: int, size: int, names: list[str]) -> list[str]:
    """Of these cases, one after the other."""
    dist = initialize()
    found = []
    for name in names:
        found.append(globals()[name](dist, rank, size))
        dist.barrier()  # others still wait when this rank has failed
    store = dist.distributed_c10d._get_default_store()
    store.add("done", 1)
    while store.add("done", 0) < size:  # rounds that failed stay in flight
        time.sleep(0.02)
    dist.destroy_process_group()
    return found
