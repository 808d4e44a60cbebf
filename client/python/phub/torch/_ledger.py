"""What the keys of one group hold, and which of them have not been used for long.

Keys are removed in the reverse order in which they were added (Job.remove_keys). So a group that
needs room removes its last keys: as many as return half of a limit from keys that were not used for
long. Keys among them that are still in use are added again at their next use.

All of it depends only on the transfers so far, in their order, which is the same on all ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

from ._transfer import Kind

PIECES_MAX = 1 << 26  # bytes of all size classes, one key of each
UNUSED_AFTER = 4096  # parts of transfers


@dataclasses.dataclass(frozen=True)
class Batch:
    """Keys that were added together."""

    kind: Kind
    first: int  # their first index in the ring of the kind
    charge: int


class Ledger:
    """Of one pool."""

    def __init__(self, whole_max: int, ranks: int) -> None:
        """whole_max: most bytes of keys of exactly one size, one key of each."""
        self._limits = {True: whole_max, False: PIECES_MAX}  # by Kind.whole
        self._charged = {True: 0, False: 0}
        self._ranks = ranks
        self._batches: list[Batch] = []
        self._used: dict[Kind, int] = {}  # when
        self._clock = 0  # parts so far
        self._looked = -UNUSED_AFTER  # when request_room() last searched
        self._kept: Optional[int] = None

    def charge_of(self, kind: Kind) -> int:
        """Bytes that the daemon holds for one key; 0 for pools, whose size does not grow."""
        if kind.pooled:
            return 0
        if kind.movement == "all_reduce":
            return kind.capacity
        return kind.capacity * self._ranks ** (2 if kind.movement == "all_to_all" else 1)

    def has_room(self, kind: Kind, more: int = 0) -> bool:
        """For a key of this kind, and `more` bytes."""
        return self._charged[kind.whole] + more + self.charge_of(kind) <= self._limits[kind.whole]

    def add(self, kind: Kind, first: int) -> None:
        """Keys were added."""
        charge = self.charge_of(kind)
        self._charged[kind.whole] += charge
        self._batches.append(Batch(kind, first, charge))
        self._used.setdefault(kind, self._clock)

    def use(self, kind: Kind) -> None:
        self._clock += 1
        self._used[kind] = self._clock

    def in_use(self, kind: Kind) -> bool:
        return self._clock - self._used[kind] < UNUSED_AFTER

    def request_room(self, kind: Kind) -> None:
        """There is no room for the kind: marks the last batches for removal, if that returns half
        of the limit."""
        whole = kind.whole
        fits = self.charge_of(kind) <= self._limits[whole]
        if not fits or self.crowded or self._clock - self._looked < UNUSED_AFTER // 8:
            return
        self._looked = self._clock
        unused = 0
        for index in range(len(self._batches) - 1, -1, -1):
            batch = self._batches[index]
            if batch.kind.whole == whole and not self.in_use(batch.kind):
                unused += batch.charge
                if 2 * unused >= self._limits[whole]:
                    self._kept = index
                    return

    @property
    def crowded(self) -> bool:
        """Batches are marked for removal."""
        return self._kept is not None

    def marked(self) -> list[Batch]:
        """The batches to remove, the last one first."""
        assert self._kept is not None
        return self._batches[: self._kept - 1 if self._kept > 0 else None : -1]

    def removed(self) -> None:
        """The marked batches were removed."""
        for batch in self.marked():
            self._charged[batch.kind.whole] -= batch.charge
            if batch.first == 0:
                del self._used[batch.kind]
        del self._batches[self._kept :]
        self._kept = None

    def keep_all(self) -> None:
        """This group cannot remove keys."""
        self._kept = None
        self._looked = 1 << 62
