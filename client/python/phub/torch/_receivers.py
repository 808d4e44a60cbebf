"""Memory for results of collectives."""

from __future__ import annotations

import collections
import mmap
import threading
import weakref
from typing import Any

import numpy as np
import torch

from ._types import item_size

_SMALL_BYTES = 1 << 18  # torch's own memory is fast enough
_KEPT_BYTES_MAX = 1 << 29  # free memory that is kept for later results
_OLD_TURNS = 512  # results after which a size that did not occur again is old


class _Free:
    """Memory of one size."""

    def __init__(self) -> None:
        self.pieces: list[mmap.mmap] = []
        self.turn = 0  # of the last result of this size


class Receivers:
    """Memory for results, used again when no tensor refers to it: new pages would be slow. If too
    much is free, sizes that did not occur for a long time are unmapped."""

    def __init__(self, kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._lock = threading.Lock()
        self._free: collections.OrderedDict[int, _Free] = collections.OrderedDict()  # by turn
        self._kept = 0
        self._kept_max = kept_bytes_max
        self._turn = 0  # results
        # Results may end while their thread has the lock: whenever Python collects garbage.
        self._returned: collections.deque[mmap.mmap] = collections.deque()

    def take(self, dtype: Any, count: int, pinned: bool = False) -> Any:
        """A tensor with undefined values. pinned: to be copied to a device."""
        if pinned:
            return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)
        item = item_size(dtype)
        if count * item < _SMALL_BYTES:
            return torch.empty(count, dtype=dtype, device="cpu")
        size = -(-count * item // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = None
        with self._lock:
            self._keep_returned()
            self._turn += 1
            free = self._free.setdefault(size, _Free())
            free.turn = self._turn
            self._free.move_to_end(size)
            if free.pieces:
                memory = free.pieces.pop()
                self._kept -= size
            self._drop_old(0)
        if memory is None:
            memory = mmap.mmap(-1, size)
            memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(array, self._give_back, memory)
        return torch.from_numpy(array)[: count * item].view(dtype)

    def _give_back(self, memory: mmap.mmap) -> None:
        self._returned.append(memory)
        if self._lock.acquire(blocking=False):  # if not, the next result does it
            try:
                self._keep_returned()
            finally:
                self._lock.release()

    def _keep_returned(self) -> None:
        """REQUIRES: the lock."""
        while self._returned:
            memory = self._returned.popleft()
            size = len(memory)
            self._drop_old(size)
            free = self._free.get(size)
            if free is not None and self._kept + size <= self._kept_max:
                free.pieces.append(memory)
                self._kept += size

    def _drop_old(self, size: int) -> None:
        """Makes room for `size` bytes, if old sizes have it. REQUIRES: the lock."""
        while self._free:
            oldest = next(iter(self._free))
            free = self._free[oldest]
            if self._turn - free.turn < _OLD_TURNS:
                return
            if free.pieces and self._kept + size <= self._kept_max:
                return
            self._kept -= oldest * len(free.pieces)
            del self._free[oldest]


receivers = Receivers()
