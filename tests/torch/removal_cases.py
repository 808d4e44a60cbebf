"""Keys of sizes that come and go: they are removed when there is no room for new ones."""

from __future__ import annotations

import time
from typing import Any

import wire_bytes
from ranks import initialize
from training_cases import _mapping

import torch
from torch.nn.parallel import DistributedDataParallel

_WHOLE_MAX = 1 << 21
_COUNT = 70_000  # float32: 280 kB, large enough for keys of its size


def _group(dist: Any, transport: str = "auto") -> Any:
    """A group that has little room for keys, and soon takes them for unused."""
    import phub.torch
    from phub.torch import _ledger

    _ledger.UNUSED_AFTER = 40
    _ledger.PIECES_MAX = 1 << 20
    options = phub.torch.Options(transport=transport, bucket_bytes=_WHOLE_MAX)
    return dist.new_group(backend="phub", pg_options=options)


def _pool(group: Any) -> Any:
    return group._membership.exchange._pool


def _keys(group: Any) -> list[str]:
    return [
        kind.name(index)
        for kind, ring in _pool(group)._rings.items()
        for index in range(len(ring))
    ]


def _sum(dist: Any, group: Any, count: int, dtype: torch.dtype = torch.float32) -> Any:
    """All-reduces `count` elements. Returns the work."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(count, dtype=torch.int64).remainder(50).add(rank).to(dtype)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    expected = torch.arange(count, dtype=torch.int64).remainder(50).mul(size)
    assert torch.equal(tensor.to(torch.int64), expected + sum(range(size))), (count, dtype)
    return work


def sizes_in_a_loop(rank: int, size: int, transport: str, turns: int) -> dict[str, Any]:
    """Every size occurs three times. Returns how many of them had keys of their own, the keys that
    are there at the end, and the most bytes that the daemon had reserved in each half."""
    dist = initialize()
    group = _group(dist, transport)
    kept = None
    own, most = 0, [0, 0]
    for turn in range(turns):
        count = _COUNT + 1000 * turn
        for _ in range(3):
            work = _sum(dist, group, count)
            _sum(dist, group, 5000 + 1500 * turn, torch.int32)  # size classes
        own += any(kind.whole and f".{4 * count}w." in kind.name(0) for kind in _pool(group)._rings)
        if kept is None:
            kept = (work.get_future().wait()[0], count)  # in the memory of a key
        if turn % 8 == 7:
            dist.barrier(group=group)
            if rank == 0:
                half = 2 * turn // turns
                most[half] = max(most[half], wire_bytes.usage()["memory_bytes"])
            dist.barrier(group=group)
    assert kept is not None
    expected = torch.arange(kept[1]).remainder(50).mul(size).add(sum(range(size)))
    assert torch.equal(kept[0].to(torch.int64), expected)
    keys = _keys(group)
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, keys)
    assert everyone == [keys] * size, everyone
    dist.destroy_process_group()
    return {"own": own, "keys": len(keys), "most": most}


def buckets_stay_valid(rank: int, size: int) -> list[str]:
    """A bucket of DistributedDataParallel lives in memory of keys that are removed in between.
    Returns where it was: in phub's memory of this rank or not, after each round of steps."""
    dist = initialize()
    group = _group(dist, "shm")
    torch.manual_seed(3)
    model = DistributedDataParallel(
        torch.nn.Linear(300, 300), process_group=group, gradient_as_bucket_view=True
    )
    places = []
    keys = []

    def steps() -> None:
        for step in range(4):
            model.zero_grad(set_to_none=False)
            model(torch.full((1, 300), 1.0 + rank + step)).sum().backward()
            mean = 1.0 + step + sum(range(size)) / size
            assert torch.equal(model.module.weight.grad, torch.full((300, 300), mean)), step

    def address() -> int:
        return int(model.module.weight.grad.untyped_storage().data_ptr())

    for _ in range(3):
        steps()
        slots = [slot for ring in _pool(group)._rings.values() for slot in ring]
        houses = [slot for slot in slots if slot.home is not None and slot.home.tenant]
        assert len(houses) == 1, houses
        places.append("phub-worker" in _mapping(address()))
        keys.append(houses[0])
        for turn in range(40):  # other sizes take the place
            for _ in range(3):
                _sum(dist, group, _COUNT + 1000 * turn)
        assert keys[-1].pointer == 0, "the key is still there"
        for _ in range(50):  # and are not used any more, so the bucket has room again
            _sum(dist, group, 10)
        model.module.weight.grad.fill_(7.0)  # in memory of a removed key
        assert bool((model.module.weight.grad == 7.0).all())
    last = model.module.weight.grad
    dist.destroy_process_group(group)
    places.append("phub-worker" in _mapping(address()))
    assert bool((last == 7.0).all())
    dist.destroy_process_group()
    return [str(each) for each in places]


def used_by_the_next_collective(rank: int, size: int, delayed: bool) -> list[bool]:
    """The memory of a key is used by the collective before which the key is removed: a bucket lives
    there, or (delayed) a gradient of a device was copied there. Returns whether it was."""
    dist = initialize()
    if delayed:
        import delayed_copies

        delayed_copies.install()
    group = _group(dist, "shm")
    bucket = torch.empty(90_000)

    def step(value: float) -> None:
        if delayed:
            _sum(dist, group, len(bucket))
            return
        bucket.fill_(value + rank)  # and as DistributedDataParallel does
        call = group._membership.collectives.all_reduce
        call("all_reduce", [bucket], dist.ReduceOp.SUM, None, takes_result=True).wait()
        assert bool((bucket == size * value + sum(range(size))).all()), (value, bucket)

    pool = _pool(group)
    for value in (1.0, 1.5, 2.0, 3.0):
        step(value)
    (used,) = [ring for kind, ring in pool._rings.items() if kind.whole]
    slots = list(used)
    found = [any(slot.home.tenant is not None for slot in slots)]
    for part in (1, 2), (3, 4):  # the first two are not used for long, together with the bucket's
        for turn in range(3 if part[0] == 1 else 25):
            for each in part:
                _sum(dist, group, 100_000 + each)
    for _ in range(2):
        _sum(dist, group, 100_005)
    marked = pool._ledger.marked() if pool.crowded else []
    found.append(any(each.kind == slots[0].kind for each in marked))
    step(4.0)
    found.append(slots[0].home.removed)
    step(5.0)
    _sum(dist, group, 20_000)  # its keys are new: what is not in use any more is freed
    found.append(all(slot.pointer == 0 for slot in slots))
    step(6.0)
    dist.destroy_process_group()
    return found


def a_rank_that_cannot_remove(rank: int, size: int) -> list[str]:
    """As with RDMA. Returns the keys of sizes of their own."""
    dist = initialize()
    group = _group(dist)
    if rank == 1:
        _pool(group).can_remove = lambda: False
    for turn in range(30):
        for _ in range(3):
            _sum(dist, group, _COUNT + 1000 * turn)
    assert not _pool(group).crowded
    whole = [key for key in _keys(group) if "w." in key]
    dist.destroy_process_group()
    return whole


def _crowd(dist: Any, group: Any, count: int = 1000) -> int:
    """Makes reductions until keys are removed before the next collective, at most `count`. Returns
    how many."""
    for turn in range(count):
        _sum(dist, group, _COUNT + 1000 * (turn // 3))
        if _pool(group).crowded:
            return turn + 1
    return count


def _delay_next(exchange: Any) -> None:
    """The engine is slow with the next collective: rounds of later ones are completed first."""
    done, sequence = exchange.part_done, exchange.sequence + 1

    def part_done(operation: Any, part: Any, error: Any) -> None:
        if operation.sequence == sequence:
            time.sleep(0.2)
        done(operation, part, error)

    exchange.part_done = part_done


def crossed_groups(rank: int, size: int) -> list[bool]:
    """Ranks call collectives of two groups in different order, and both groups remove keys while
    a collective of theirs is in flight. Returns whether they did."""
    dist = initialize()
    count = _crowd(dist, _group(dist))
    groups = [_group(dist), _group(dist)]
    for group in groups:
        _crowd(dist, group, count - 1)
    before = [len(_keys(group)) for group in groups]
    dist.barrier()
    works = []
    tensors = []
    for index in (0, 1) if rank == 0 else (1, 0):
        _delay_next(groups[index]._membership.exchange)
        for elements in (_COUNT + 1000 * ((count - 1) // 3), _COUNT):
            tensors.append(torch.ones(elements))
            works.append(dist.all_reduce(tensors[-1], group=groups[index], async_op=True))
    for work in works:
        work.wait()
    assert all(bool((each == size).all()) for each in tensors)
    found = [len(_keys(group)) < keys for group, keys in zip(groups, before)]
    dist.destroy_process_group()
    return found


def different_collectives(rank: int, size: int) -> str:
    """Ranks call different collectives before which keys are removed."""
    dist = initialize()
    group = _group(dist)
    _crowd(dist, group)
    assert _pool(group).crowded
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(_COUNT), group=group)
        else:
            dist.broadcast(torch.ones(5), 0, group=group)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
