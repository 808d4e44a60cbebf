"""send and recv between many pairs of ranks, in groups, and with ranks that do not answer."""

from __future__ import annotations

import datetime
import os
import signal
import time
from typing import Any

import wire_bytes
from ranks import PATIENCE_S, initialize, leave_after

import torch

_COUNTS = (3, 700, 50_000)


def _value(source: int, target: int, tag: int, count: int) -> Any:
    return torch.arange(count, dtype=torch.float32) + (source * 7 + target) * 100 + tag


def _exchange(dist: Any, ranks: list[int], tags: list[int], group: Any, reverse: bool) -> None:
    """Every rank sends to every other one, with every tag. Each rank has another order."""
    rank = dist.get_rank()
    calls = []
    for peer in ranks:
        for tag in tags if peer != rank else []:
            count = _COUNTS[(tag + peer + rank) % len(_COUNTS)]
            calls.append(("send", peer, tag, _value(rank, peer, tag, count)))
            calls.append(("recv", peer, tag, torch.empty(count)))
    start = (rank * 5) % len(calls)
    calls = calls[start:] + calls[:start]
    if reverse:
        calls.reverse()
    works = [
        (dist.isend if name == "send" else dist.irecv)(tensor, peer, group=group, tag=tag)
        for name, peer, tag, tensor in calls
    ]
    for work in works:
        work.wait()
    for name, peer, tag, tensor in calls:
        if name == "recv":
            assert torch.equal(tensor, _value(peer, rank, tag, len(tensor))), (rank, peer, tag)


def crossed(rank: int, size: int, own_jobs: bool) -> int:
    """own_jobs: as if the daemon did not know groups. Returns how many jobs the daemon has."""
    if own_jobs:
        from phub.torch import _membership

        _membership.of_messages = lambda *_: None
    dist = initialize()
    # A circle: each rank first waits for the rank before.
    received = torch.empty(1)
    work = dist.irecv(received, (rank - 1) % size)
    time.sleep(0.05 * rank)
    dist.isend(torch.tensor([float(rank)]), (rank + 1) % size).wait()
    work.wait()
    assert received[0] == (rank - 1) % size
    import phub.torch

    options = phub.torch.Options(priority_class="pipeline")
    # Its messages and those of the default group are independent.
    pair = dist.new_group([0, 2], pg_options=options)
    tags = [0, 16, 99] if own_jobs else list(range(20))
    _exchange(dist, list(range(size)), tags, None, rank == 1)
    if rank != 1:
        _exchange(dist, [0, 2], tags, pair, rank == 0)
    dist.barrier()
    jobs = wire_bytes.usage()["jobs"] if rank == 0 else 0
    dist.barrier()
    dist.destroy_process_group()
    return jobs


def wrong_priority_classes(rank: int, size: int) -> list[str]:
    """The errors of an unknown class, and of one for the default group."""
    import phub.torch

    errors = []
    for name in ("fast", "tensor"):
        try:
            initialize(pg_options=phub.torch.Options(priority_class=name))
        except ValueError as error:
            errors.append(str(error))
    return errors


def unanswered(rank: int, size: int) -> tuple[str, str]:
    """Rank 2 sends to rank 1, which never receives. Returns the error."""
    dist = initialize()
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    error = ("", "")
    if rank == 2:
        try:
            dist.send(torch.ones(3), 1, group=group, tag=4)
        except RuntimeError as problem:
            error = (type(problem).__name__, str(problem))
    # Other messages are not disturbed.
    other = torch.full((2,), float(rank))
    for source in (0, 2):
        if rank == 1:
            dist.recv(other, source, group=group, tag=5)
            assert other[0] == source
        elif rank == source:
            dist.send(other, 1, group=group, tag=5)
        dist.barrier()
    leave_after(dist, 1, 2)
    dist.destroy_process_group()
    return error


def dies(rank: int, size: int, waits: Any) -> str:
    """Rank 0 is killed while rank 1 waits for its first message. Returns the error of rank 1."""
    dist = initialize(timeout=PATIENCE_S)
    dist.barrier()
    if rank == 0:
        waits.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        work = dist.irecv(torch.empty(3), 0, tag=2)
        waits.release()
        work.wait()
    except RuntimeError as error:
        return str(error)
    return ""


# Elements that rank 0 sends and that rank 1 expects, by tag: of one size class, of two, and both
# larger than the round in which they are compared.
DIFFERENT_SIZES = {3: (10, 11), 4: (10, 100_000), 5: (100_000, 10), 6: (5_000, 300_000)}


def _send_or_receive(dist: Any, count: int, source: int, tag: int) -> None:
    rank, tensor = dist.get_rank(), torch.full((count,), 7.0)
    if rank == source:
        dist.send(tensor, 1 - rank, tag=tag)
    else:
        tensor.zero_()
        dist.recv(tensor, source, tag=tag)
        assert bool((tensor == 7.0).all()), (source, tag, count)


def of_different_sizes(rank: int, size: int) -> list[str]:
    """Returns the errors, two for each tag. All other messages, and the collectives of the job, go
    on."""
    dist = initialize()
    errors = []
    for tag, counts in DIFFERENT_SIZES.items():
        if tag == 6:  # both have keys for both sizes
            for count in counts:
                _send_or_receive(dist, count, 0, tag)
        for _ in range(2):  # the second one finds that the messages of this tag have ended
            try:
                _send_or_receive(dist, counts[rank], 0, tag)
            except RuntimeError as error:
                errors.append(f"tag {tag}: {type(error).__name__}: {error}")
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total[0] == size
        _send_or_receive(dist, counts[0], 1, tag)  # the other direction
        _send_or_receive(dist, counts[1], 0, tag + 6)
    dist.destroy_process_group()
    return errors


def left_in_disorder(rank: int, size: int) -> list[str]:
    """Groups that are destroyed while their ranks disagree, or after a timeout. The default group
    must go on. Returns the errors of rank 0."""
    dist = initialize()
    errors = []
    for which in ("collective", "timeout", "message", "more"):
        seconds = 2.0 if which == "timeout" else 60.0
        group = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        if rank == 0:
            dist.send(tensor, 1, group=group)
        else:
            dist.recv(tensor, 0, group=group)
        try:
            if rank == 0 and which in ("collective", "timeout"):
                dist.broadcast(torch.ones(5), 1, group=group)  # adds keys
            if rank == 0 and which == "message":
                dist.recv(torch.ones(5000), 1, group=group, tag=7)
            if rank == 1 and which == "timeout":
                time.sleep(3.0)
            if rank == 0 and which == "more":
                time.sleep(0.3)  # rank 1 has left
                dist.all_gather([torch.ones(40_000) for _ in range(2)], torch.ones(40_000), group)
        except RuntimeError as error:
            errors.append(f"{which}: {error}")
        dist.destroy_process_group(group)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor[0] == size
    leave_after(dist, 1, 0)
    dist.destroy_process_group()
    return errors
