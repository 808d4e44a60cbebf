"""What a process, its daemon and the store hold while groups, tags and sizes come and go."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import wire_bytes
from ranks import PATIENCE_S, initialize

import torch


def held_by_process(dist: Any, jobs: int) -> dict[str, int]:
    """Counts of what this process keeps for groups, when it has this number of jobs: threads may
    still refer to others. REQUIRES: the other ranks do nothing."""
    from phub._session import _jobs
    from phub.torch._membership import process

    known = process()
    end = time.monotonic() + PATIENCE_S
    while len(_jobs) != jobs and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return {
        "keys of the store": dist.distributed_c10d._get_default_store().num_keys(),
        "names": len(known._generations) + len(known._subgroups),
        "members": len(known.members),
        "sessions": len(known.sessions),
        "watched": len(known.watch._watched),
        "rounds": len(known.engine._entries),
        "jobs of the process": len(_jobs),
    }


def settled(jobs: int) -> dict[str, int]:
    """What the tenant uses at the daemon, when it has this number of jobs, and the memory of others
    is returned."""
    end = time.monotonic() + PATIENCE_S
    while True:
        done = wire_bytes.all_is_of(jobs) or time.monotonic() > end
        usage = wire_bytes.usage()
        if done and usage["jobs"] == jobs or time.monotonic() > end:
            return usage
        time.sleep(0.02)


def groups_in_a_loop(rank: int, size: int, turns: int) -> list[tuple[dict[str, int], int]]:
    """After the first loop and after the last: what is held, and this process's descriptors."""
    dist = initialize()
    found = []

    def measure() -> None:
        while any(each.name == "phub-group-end" for each in threading.enumerate()):
            time.sleep(0.01)
        dist.barrier()
        if rank == 0:
            held = held_by_process(dist, jobs=1) | settled(jobs=1)
            found.append((held, len(os.listdir("/proc/self/fd"))))
        dist.barrier()

    for count in (2, turns):
        for turn in range(count):
            # The second kind of name is a hash of the ranks.
            group = dist.new_group(use_local_synchronization=turn % 2 == 1)
            tensor = torch.ones(1000)
            dist.all_reduce(tensor, group=group)
            assert tensor[0] == size, tensor
            for tag in (3, 50):
                if rank == 0:
                    dist.send(tensor, 1, group=group, tag=tag)
                else:
                    dist.recv(tensor, 0, group=group, tag=tag)
            dist.destroy_process_group(group)
            del group
        measure()
    dist.destroy_process_group()
    return found


def groups_of_other_ranks(rank: int, size: int) -> float:
    """Rank 0 has been in a subgroup of this name before, rank 2 has not."""
    total = 0.0
    for peer in (1, 2):
        dist = initialize()
        group = dist.new_group([0, peer])
        if rank in (0, peer):
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            total += float(tensor)
        dist.destroy_process_group()
    return total


def tags_in_a_loop(rank: int, size: int, turns: int) -> list[dict[str, int]]:
    """After the first loop and after the last: what is held, and this process's threads."""
    dist = initialize()
    found = []
    tag = 0
    for count in (20, turns):
        for _ in range(count):
            tag += 1
            tensor = torch.full((9,), float(tag if rank == 0 else 0))
            if rank == 0:
                dist.send(tensor, 1, tag=tag)
            else:
                dist.recv(tensor, 0, tag=tag)
            assert tensor[8] == tag, tensor
        dist.barrier()
        if rank == 0:
            found.append(held_by_process(dist, jobs=1) | settled(jobs=1))
        dist.barrier()
    dist.destroy_process_group()
    return found


def sizes_in_a_loop() -> dict[str, Any]:
    """Memory for results of sizes that follow each other. Up to 1 MiB may be kept."""
    from phub.torch import _receivers

    receivers = _receivers.Receivers(1 << 20)
    kept = []

    def use(size: int) -> int:
        tensor = receivers.take(torch.uint8, size)
        address = int(tensor.data_ptr())
        del tensor
        kept.append(receivers._kept)
        return address

    old = 1 << 20  # fills all that may be kept
    found = {"used again": use(old) == use(old)}
    new = [(1 << 18) + 4096 * each for each in range(150)]
    for size in new * 4:
        use(size)
    found["old size"] = old in receivers._free
    found["new size"] = use(new[-1]) == use(new[-1])
    for each in range(1200):
        use(old + 4096 * each)
    found["sizes"] = len(receivers._free)
    found["most"] = max(kept)
    return found


def results_that_end_in_their_thread() -> int:
    """A result ends while its thread holds the lock, as when Python collects garbage there. Returns
    the bytes that are kept afterwards."""
    from phub.torch import _receivers

    receivers = _receivers.Receivers()
    tensor = receivers.take(torch.uint8, 1 << 20)
    with receivers._lock:
        del tensor
    other = receivers.take(torch.uint8, 1 << 19)
    del other
    return receivers._kept


def _reduce_each(dist: Any, counts: list[int]) -> None:
    """All-reduces of many types, operations and sizes, several in flight."""
    rank, size = dist.get_rank(), dist.get_world_size()
    types = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
    for dtype in types:
        flying = []
        for count in counts:
            base = torch.arange(count, dtype=torch.int64) % 40
            for op, expected in (
                (dist.ReduceOp.SUM, base * size + sum(range(size))),
                (dist.ReduceOp.MIN, base),
            ):
                tensor = base.add(rank).to(dtype)
                flying.append((dist.all_reduce(tensor, op, async_op=True), tensor, expected))
        for work, tensor, expected in flying:
            work.wait()
            assert torch.equal(tensor.to(torch.int64), expected), (dtype, len(tensor))


def reductions_of_many_kinds(rank: int, size: int, pools: bool, transport: str) -> int:
    """pools: as if the daemon knew pooled keys. Returns how many keys the daemon has for them."""
    import phub.torch
    from phub.torch._pool import Pool

    if not pools:
        Pool.is_pooled = lambda self, transfer: False  # type: ignore[method-assign]
    dist = initialize(pg_options=phub.torch.Options(transport=transport))
    # Fewer elements than a small round, one, more; and several large rounds. Each size once, since
    # large ones get keys of their own when they occur again.
    _reduce_each(dist, [1, 100, 8192, 8193, 16384, 16385, 20_001])
    dist.all_reduce(torch.ones(2_222_222))
    dist.barrier()
    keys = wire_bytes.usage()["keys"] if rank == 0 else 0
    dist.barrier()
    error = ""
    try:
        dist.all_reduce(torch.ones(10 if rank == 0 else 30_000))
    except RuntimeError as problem:
        error = str(problem)
    assert "rank 0 called all_reduce(SUM) of 10 float32" in error or rank == 1, error
    dist.destroy_process_group()
    return keys


def collected_group(rank: int, size: int, folder: str) -> bool:
    """The garbage collector finds a group, in a thread that holds locks. Whether the group leaves
    its job."""
    import phub.torch
    from phub.torch._membership import process

    store = torch.distributed.FileStore(os.path.join(folder, "store"), 1)
    group = phub.torch.create_group(store, 0, 1)
    group.allreduce([torch.ones(3)]).wait()
    membership = group._membership
    cycle: list[Any] = [group]
    cycle.append(cycle)
    del group, cycle
    with process().watch._lock, membership._lock:
        gc.collect()
    return bool(membership._gone.wait(PATIENCE_S))
