"""The lower half: collectives as rounds of the keys of one job.

A transfer (the reduction of one tensor, one rank's bytes sent to all, or parts that move between
ranks) is cut into parts (phub.torch._transfer). Keys are kept by kind and size class, a ring of a
few for each. A part uses the next key of its ring, whether or not others are free: so the choice
depends only on the order of collectives, which is the same on all ranks.

The keys of reductions and of moves are pooled (phub.torch._transfer): two rings for all types,
operations, roots and sizes.

A transfer whose size has occurred before, as that of a bucket of DistributedDataParallel, is one
whole part with keys of exactly this size. Over shared memory these keys have phub's memory: the
daemon reads gradients there and writes results there, and a sum is a tensor in this memory.

Invariants: parts are started in the order of the collectives; a key has one round in flight.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Optional

from .. import _library
from .._errors import FailedPrecondition, ResourceExhausted, check
from .._key_spec import MOVEMENTS, OPERATIONS
from .._library import lib
from ._home import Homes
from ._ledger import Ledger
from ._pool_slot import slot_of
from ._slot import Slot, shares_memory
from ._subgroup import AnyJob, add_keys, check_removal, rank_in_job
from ._transfer import PIECE_MIN, POOL_SMALL, SIZES, Kind, Transfer, pool_kind

_HINT = "Or set bucket_bytes of phub.torch.Options to 0: then no size gets keys of its own"
_SEEN_MAX = 256  # sizes that have occurred once
_RING_MAX = 16  # keys


def _depth(kind: Kind) -> int:
    """Keys in a ring: rounds of this class that may be in flight."""
    if kind.movement == "all_to_all":
        return 2  # the daemon holds the parts of all ranks
    if kind.pooled:
        return 8 if kind.capacity == POOL_SMALL else 4
    return 8 if kind.capacity <= 1 << 16 else 4 if kind.capacity <= 1 << 20 else 2


class _Own:
    """Memory of this process for keys. If their rounds always use the caller's, it is never
    touched, so it costs nothing."""

    def __init__(self, size: int) -> None:
        self._maps = [mmap.mmap(-1, size) for _ in range(2)]
        self.gradients, self.parameters = (
            ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in self._maps
        )


class Pool:
    """The keys of one job, or of a group of it."""

    def __init__(self, job: AnyJob, bucket_bytes: int, pools_moves: bool) -> None:
        """bucket_bytes: most bytes of all whole sizes; a rank needs four times as much memory.
        pools_moves: false for a stream of messages, which is one of many, so that it reserves no
        more than its messages need."""
        self._job: Any = job
        self._rings: dict[Kind, list[Slot]] = {}
        self._next: dict[Kind, int] = {}
        self._in_place = shares_memory(job)
        self._seen: set[Kind] = set()
        self._whole: set[Kind] = set()
        self._ledger = Ledger(bucket_bytes, job.world_size)
        self._admitted = 0  # bytes of whole kinds whose keys are not added yet
        self._removed: list[Slot] = []  # whose memory is still in use
        # Whether reductions, and whether moves use pools; None: not known yet.
        self._pooled: Optional[tuple[bool, bool]] = None
        self._pools_moves = pools_moves
        self.homes = Homes()

    def is_pooled(self, transfer: Transfer) -> bool:
        """Whether the transfer uses pools. The first that may adds one, on all ranks before the
        same collective. Older daemons do not know pooled keys, or how these move bytes."""
        if not transfer.reduces and not (transfer.moves and self._pools_moves):
            return False
        if self._pooled is None:
            try:
                ring = self._add_ring(pool_kind(POOL_SMALL))
                self._pooled = True, bool(lib.phub_key_can_broadcast(ring[0].pointer))
            except FailedPrecondition:
                self._pooled = False, False
        reductions, moves = self._pooled
        return moves if transfer.moves else reductions

    def is_whole(self, transfer: Transfer) -> bool:
        """True if the transfer is one part with keys of its size. Depends only on the transfers
        before, in their order."""
        may_be = transfer.reduces or transfer.has_parts
        if not may_be or transfer.size < PIECE_MIN:
            return False
        kind = transfer.whole_kind()
        if kind in self._whole:
            return True
        if kind not in self._seen:
            self._see(kind)
            return False
        if not self._ledger.has_room(kind, self._admitted):
            self._ledger.request_room(kind)
            return False
        self._admitted += self._ledger.charge_of(kind)
        self._whole.add(kind)
        return True

    def _see(self, kind: Kind) -> None:
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add(kind)

    def has(self, kind: Kind) -> bool:
        """The kind has keys."""
        return kind in self._rings

    def slot(self, kind: Kind) -> Optional[Slot]:
        """The key for the next part of this kind. None: its last round is not complete yet. Adds
        keys, which takes a call to the daemon, if the ring has no keys, or if results of the ring
        have been in use for too long."""
        if self._removed:
            self._free_removed()
        ring = self._rings.get(kind)
        if ring is None:
            if not kind.whole and not kind.pooled and not self._ledger.has_room(kind):
                self._ledger.request_room(kind)
            ring = self._add_ring(kind)
            if kind.whole:
                self._admitted -= self._ledger.charge_of(kind)
            if kind.whole and kind.movement == "all_reduce":
                self.homes.add(ring)
        slot = ring[self._next[kind]]
        if slot.part is not None:
            return None
        if slot.wish is not None:
            if slot.wish.agreed is None:
                return None  # all ranks decide after the same transfer
            if slot.wish.agreed:
                self._extend(kind, ring)
        return slot

    def _add_ring(self, kind: Kind) -> list[Slot]:
        ring = self._rings[kind] = self._add(kind, 0, _depth(kind))
        self._next[kind] = 0
        return ring

    def _extend(self, kind: Kind, ring: list[Slot]) -> None:
        """Depends only on the transfers before, in their order, and on what ranks agreed on."""
        for slot in ring:
            slot.wish = None
        if len(ring) < _RING_MAX and self._ledger.has_room(kind, self._admitted):
            ring += self._add(kind, len(ring), _depth(kind))

    def advance(self, kind: Kind) -> None:
        """The slot of this kind was used."""
        self._next[kind] = (self._next[kind] + 1) % len(self._rings[kind])
        self._ledger.use(kind)

    # ---- Removing keys -------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """Keys should be removed before the next collective: see remove(). The same on all
        ranks."""
        return self._ledger.crowded

    def can_remove(self) -> bool:
        """Whether this rank can remove keys."""
        try:
            check_removal(self._job)
        except FailedPrecondition:
            return False
        return True

    def idle(self) -> bool:
        """No key has a round in flight."""
        return all(slot.part is None for ring in self._rings.values() for slot in ring)

    def remove(self, all_can: bool) -> None:
        """Removes the keys that were added last, if all ranks can. Blocks until every rank does so.
        REQUIRES: crowded, idle."""
        if not all_can:
            self._ledger.keep_all()
            return
        batches = self._ledger.marked()
        slots = [slot for each in batches for slot in self._rings[each.kind][each.first :]]
        unique = list(dict.fromkeys(slots))
        pointers = (ctypes.c_void_p * len(unique))(*(slot.pointer for slot in unique))
        check(lib.phub_job_remove_keys, self._job._pointer, pointers, len(unique))
        for batch in batches:
            ring = self._rings[batch.kind]
            for slot in ring[batch.first :]:
                self.homes.remove(slot.home)
                self._removed.append(slot)
            del ring[batch.first :]
            self._next[batch.kind] = 0
            if not ring:
                self._forget(batch.kind)
        self._ledger.removed()
        self._free_removed()

    def _forget(self, kind: Kind) -> None:
        """All keys of the kind were removed."""
        del self._rings[kind], self._next[kind]
        if kind.whole:
            self._whole.remove(kind)
            if self._ledger.in_use(kind):
                self._see(kind)
            self.homes.forget(kind)

    def _free_removed(self) -> None:
        """Frees removed keys, unless a gradient of a device is being copied to their memory."""
        for slot in self._removed:
            if slot.home is None or not slot.home.claimed:
                slot.free()
        self._removed = [slot for slot in self._removed if slot.pointer]

    # --------------------------------------------------------------------------------------------

    def _add(self, kind: Kind, first: int, count: int) -> list[Slot]:
        """Adds the keys [first, first + count) of a ring."""
        self._free_removed()
        in_place = kind.whole and self._in_place
        size = kind.capacity * (1 if kind.movement == "all_reduce" else self._job.world_size)
        if kind.pooled:
            in_place = self._in_place
            size *= count
        memory = None if in_place or not (kind.direct or kind.pooled) else _Own(size)
        try:
            pointers = self._add_keys(kind, first, count, memory)
        except ResourceExhausted:
            if not in_place:
                raise
            # No memory to share with this rank, which is a matter of this rank alone.
            in_place = self._in_place = False
            memory = _Own(size)
            try:
                pointers = self._add_keys(kind, first, count, memory)
            except ResourceExhausted as error:
                text = f"{error}. {_HINT}"
                raise ResourceExhausted(text, job=error.job, rank=error.rank) from None
        self._ledger.add(kind, first)
        return [slot_of(pointer, kind, self._job, in_place, memory) for pointer in pointers]

    def _add_keys(
        self, kind: Kind, first: int, count: int, memory: Optional["_Own"]
    ) -> list[int]:
        """memory: what the keys use; None: phub allocates it."""
        specs = (_library.KeySpec * count)()
        for index in range(count):
            spec = specs[index]
            lib.phub_key_spec_init(ctypes.byref(spec), ctypes.sizeof(spec))
            spec.name = kind.name(first + index).encode()
            spec.type = kind.number
            spec.movement = MOVEMENTS[kind.movement].number
            if MOVEMENTS[kind.movement].has_root:
                spec.root = rank_in_job(self._job, kind.root)
            spec.operation = OPERATIONS.get(kind.operation, 0)  # moves have none
            parts = 1 if kind.movement == "all_reduce" else self._job.world_size
            spec.element_count = kind.capacity // SIZES[kind.number] * parts
            spec.collective = 1
            # Equal: parts are sent in the order in which they were started.
            spec.has_priority = 1
            spec.pooled = int(kind.pooled)
            if memory is not None:
                # Rounds of pools use it, so each key has its own.
                offset = index * kind.capacity if kind.pooled else 0
                spec.gradients = memory.gradients + offset
                spec.parameters = memory.parameters + offset
        return add_keys(self._job, specs, count)

    def free(self) -> None:
        """REQUIRES: the job was left."""
        for slot in self._removed:
            slot.free()
        for ring in self._rings.values():
            for slot in ring:
                slot.free()
        self._removed.clear()
        self._rings.clear()
        self.homes.end()
