"""Finds ranks that wait for each other in a cycle: rank 0 waits in one group before it calls a
collective of another one, and rank 1 does the reverse.

Each rank publishes in the store of the default group in which collectives its threads wait, and for
which ranks. A collective that no thread waits for is no part of a cycle, since its rank goes on.
Ranks here are those of the default group.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any, Optional, Sequence

from ._published import Published

_READ_MAX = 64  # ranks, in one search


@dataclasses.dataclass(frozen=True)
class Wait:
    """Of one rank, in one collective."""

    rank: int
    place: str  # the group and the collective
    missing: tuple[int, ...]  # ranks that have not called it


class Board:
    """Of one default group."""

    def __init__(self, store: Any, rank: int, prefix: str) -> None:
        self.rank = rank
        self._published = Published(store)
        self._prefix = f"{prefix}/waits"
        self._lock = threading.Lock()
        self._waits: dict[int, Wait] = {}  # by owner
        self._written: list[Any] = []

    def set(self, owner: int, wait: Optional[Wait]) -> None:
        """What a thread of this rank waits in now, of the collectives of `owner`; None: in none."""
        with self._lock:
            if wait is not None:
                self._waits[owner] = wait
            else:
                self._waits.pop(owner, None)

    def publish(self) -> None:
        with self._lock:
            waits = [[each.place, list(each.missing)] for each in self._waits.values()]
        if waits != self._written:
            self._written = waits
            self._published.write(f"{self._prefix}/{self.rank}", {"waits": waits})

    def close(self) -> None:
        self._published.close()

    def cycle(self, wait: Wait) -> Optional[str]:
        """Which ranks wait for each other, from this one on and back to it; None: there is no
        cycle."""
        paths: collections.deque[tuple[list[Wait], int]] = collections.deque()
        paths.extend(([wait], target) for target in wait.missing)
        seen: set[int] = set()
        while paths and len(seen) < _READ_MAX:
            path, rank = paths.popleft()
            if rank in seen:
                continue
            seen.add(rank)
            for each in self._read(rank):
                if self.rank in each.missing:
                    return _text([*path, each])
                paths.extend(([*path, each], target) for target in each.missing)
        return None

    def _read(self, rank: int) -> list[Wait]:
        values = self._published.read(f"{self._prefix}/{rank}") or {}
        return [Wait(rank, place, tuple(missing)) for place, missing in values.get("waits", [])]


@dataclasses.dataclass(frozen=True)
class Seat:
    """Of a group on a board."""

    board: Board
    ranks: tuple[int, ...]  # the members, in the default group
    name: str

    def of_members(self, ranks: Sequence[int]) -> "Seat":
        """For messages between these ranks of the group."""
        return dataclasses.replace(self, ranks=tuple(self.ranks[rank] for rank in ranks))


def _text(waits: Sequence[Wait]) -> str:
    targets = [each.rank for each in waits[1:]] + [waits[0].rank]
    steps = "; ".join(
        f"rank {wait.rank} waits in {wait.place}, for rank {target}"
        for wait, target in zip(waits, targets)
    )
    return (
        f"the ranks wait for each other in a cycle: {steps}. Call these in one order on all ranks, "
        "or with async_op=True"
    )
