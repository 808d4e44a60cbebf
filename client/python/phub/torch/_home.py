"""Buckets that live in a key's memory, so that sending them copies nothing.

DistributedDataParallel allocates its buckets itself. When a bucket occurs again, its storage is
moved: torch replaces the storage's memory by a mapping of its own (as for Tensor.share_memory_()),
and the pages of a key's gradients are mapped over it. All views of the bucket follow, since they
share the storage.

If the key is removed, the bucket stays in its pages, which are no longer sent from. It moves to
another home at its next use: only then nobody else writes it.

A home is local to this rank: a round may send the gradient from any memory that this rank shares
with the daemon, whichever key runs it. When the group ends, the storage gets private pages again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ._transfer import SIZES, Kind
from ._types import raw

if TYPE_CHECKING:
    from ._slot import Slot

_SEEN_MAX = 64
_MAY_MOVE, _FIXED = 1, 2  # flags of mremap
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE_FIXED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _make_private(address: int, size: int, values: bytes) -> None:
    """Maps new pages at `address`, with these values."""
    if _libc.mmap(address, size, _READ_WRITE, _PRIVATE_FIXED, -1, 0) != _FAILED:
        ctypes.memmove(address, values, len(values))


def can_house(address: int) -> bool:
    """Only whole pages can be mapped at a second place."""
    return hasattr(torch, "UntypedStorage") and address % mmap.PAGESIZE == 0


class Home:
    """A key's memory for gradients, in which one bucket may live."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self._size = size
        self._bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE  # of the mapping
        self._tenant: Optional[StorageWeakRef] = None
        self._mapped_at = 0  # where the tenant sees it
        self.claimed = False  # a gradient of a device is copied here
        self.removed = False  # with its key

    @property
    def free(self) -> bool:
        """No bucket lives here, or the one that did was freed, and its mapping with it."""
        return not self.claimed and (self._tenant is None or self._tenant.expired())

    def memory(self) -> Any:
        """Its bytes. REQUIRES: claimed."""
        return raw(self.address, self._size)

    def end_claim(self) -> None:
        self.claimed = False

    def houses(self, storage: Any) -> bool:
        tenant = self._tenant
        return (
            tenant is not None
            and tenant.cdata == storage._cdata
            and storage.data_ptr() == self._mapped_at
        )

    @property
    def tenant(self) -> Optional[int]:
        """The storage of the bucket that lives here."""
        return None if self._tenant is None or self._tenant.expired() else self._tenant.cdata

    def move_in(self, storage: Any, old: Optional["Home"] = None) -> bool:
        """Moves the storage here. old: the home where it lives. False: it stays where it is.
        REQUIRES: free; no round in flight uses this memory; without `old`, `storage` is not
        shared."""
        descriptor = -1
        if old is None:
            try:
                descriptor, _ = storage._share_fd_cpu_()
            except RuntimeError:  # /dev/shm is full
                return False
        there = storage.data_ptr()
        # First a second mapping at any place, which may fail; the move that follows cannot fail for
        # lack of memory.
        here = _libc.mremap(self.address, 0, self._bytes, _MAY_MOVE, None)
        if here == _FAILED:
            return False
        ctypes.memmove(self.address, there, self._size)
        moved = _libc.mremap(here, self._bytes, self._bytes, _MAY_MOVE | _FIXED, there)
        if moved == _FAILED:  # the kernel may have removed the old mapping
            _make_private(there, self._bytes, ctypes.string_at(here, self._size))
            _libc.munmap(here, self._bytes)
            return False
        if old is None:
            os.ftruncate(descriptor, 0)  # torch's memory, which nothing maps any more
        else:
            old._tenant = None
        self._tenant, self._mapped_at = StorageWeakRef(storage), there
        return True

    def move_out(self) -> None:
        """Gives the bucket private memory with the same values."""
        tenant, self._tenant = self._tenant, None
        if tenant is None or tenant.expired():
            return
        storage = torch.UntypedStorage._new_with_weak_ptr(tenant.cdata)
        if storage is not None and storage.data_ptr() == self._mapped_at:
            values = ctypes.string_at(self._mapped_at, self._size)
            _make_private(self._mapped_at, self._bytes, values)


class Homes:
    """The homes of one group's keys, by what the keys reduce. REQUIRES for all methods: the lock of
    the group's exchange."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, str, int], list["Slot"]] = {}
        self._seen: dict[int, StorageWeakRef] = {}
        self._old: dict[int, Home] = {}  # of removed keys, by the bucket that lives there

    def add(self, slots: list["Slot"]) -> None:
        """Keys of one size, whose gradients are in memory that the daemon maps."""
        kind = slots[0].kind
        if all(slot.home is not None for slot in slots):
            count = kind.capacity // SIZES[kind.number]
            self._slots[(kind.number, kind.operation, count)] = slots

    def remove(self, home: Optional[Home]) -> None:
        """Its key was removed."""
        if home is None:
            return
        home.removed = True
        self._old = {tenant: old for tenant, old in self._old.items() if old.tenant == tenant}
        if home.tenant is not None:
            self._old[home.tenant] = home

    def forget(self, kind: Kind) -> None:
        """All keys of the kind were removed."""
        self._slots.pop((kind.number, kind.operation, kind.capacity // SIZES[kind.number]), None)

    def end(self) -> None:
        """Gives the buckets that live in memory of removed keys private memory."""
        for home in self._old.values():
            home.move_out()
        self._old.clear()

    def home_of(self, tensor: Any, number: int, operation: str) -> Optional[Home]:
        """The home of the tensor's storage. When the storage occurs for the second time, it moves
        to a home that is free. None: it has no home."""
        slots = self._slots.get((number, operation, tensor.numel()))
        if slots is None:
            return None
        storage = tensor.untyped_storage()
        for slot in slots:
            if slot.home is not None and slot.home.houses(storage):
                return slot.home
        old = self._old.get(storage._cdata)
        if old is not None and not old.houses(storage):
            old = None
        may_move = _is_all_of(tensor, storage) and (old is not None or _is_own(storage))
        if not self._was_seen(storage) or not may_move:
            return None
        for slot in slots:
            home = slot.home
            if home is not None and home.free and slot.part is None:
                moved = home.move_in(storage, old)
                if moved and old is not None:
                    del self._old[storage._cdata]
                return home if moved else None
        return None

    def claim(self, number: int, operation: str, count: int) -> Optional[Home]:
        """A home for the copy of one gradient of a device, until Home.end_claim()."""
        for slot in self._slots.get((number, operation, count), []):
            home = slot.claim_home()
            if home is not None:
                return home
        return None

    def _was_seen(self, storage: Any) -> bool:
        # A weak reference keeps the address from being used for another storage.
        if storage._cdata in self._seen:
            return True
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen[storage._cdata] = StorageWeakRef(storage)
        return False


def _is_all_of(tensor: Any, storage: Any) -> bool:
    """True if the tensor is its whole storage."""
    size = tensor.numel() * tensor.element_size()
    return bool(tensor.storage_offset() == 0 and storage.nbytes() == size)


def _is_own(storage: Any) -> bool:
    """True if it is in torch's own memory."""
    return bool(storage.resizable() and not storage.is_shared())
