"""What a process, its daemon and the store hold while groups come and go."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import wire_bytes
from ranks import PATIENCE_S, initialize

import torch


def held_by_process(dist: Any) -> dict[str, int]:
    """Counts of what this process keeps for groups. REQUIRES: the other ranks do nothing."""
    from phub._session import _jobs
    from phub.torch._membership import process

    gc.collect()
    known = process()
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
    """What the tenant uses at the daemon, when it has this number of jobs."""
    end = time.monotonic() + PATIENCE_S
    while True:
        usage = wire_bytes.usage()
        if usage["jobs"] == jobs or time.monotonic() > end:
            return usage
        time.sleep(0.02)


def groups_in_a_loop(rank: int, size: int, turns: int) -> list[tuple[dict[str, int], int]]:
    """After the first loop and after the last: what is held, and this process's descriptors."""
    dist = initialize()
    found = []

    def measure() -> None:
        dist.barrier()
        if rank == 0:
            held = held_by_process(dist) | settled(jobs=1)
            found.append((held, len(os.listdir("/proc/self/fd"))))
        dist.barrier()

    for count in (2, turns):
        for turn in range(count):
            # The second kind of name is a hash of the ranks.
            group = dist.new_group(use_local_synchronization=turn % 2 == 1)
            tensor = torch.ones(1000)
            dist.all_reduce(tensor, group=group)
            assert tensor[0] == size, tensor
            dist.destroy_process_group(group)
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
