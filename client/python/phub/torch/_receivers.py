"""Memory for results of collectives."""

from __future__ import annotations

import mmap
import threading
import weakref
from typing import Any

import numpy as np
import torch

from ._types import item_size

_SMALL_BYTES = 1 << 18  # torch's own memory is fast enough
_KEPT_BYTES_MAX = 1 << 29  # free memory that is kept for later results


class Receivers:
    """Memory for results, used again when no tensor refers to it: new pages would be slow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[mmap.mmap]] = {}
        self._kept = 0

    def take(self, dtype: Any, count: int, pinned: bool = False) -> Any:
        """A tensor with undefined values. pinned: to be copied to a device."""
        if pinned:
            return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)
        item = item_size(dtype)
        if count * item < _SMALL_BYTES:
            return torch.empty(count, dtype=dtype, device="cpu")
        size = -(-count * item // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            free = self._free.get(size)
            memory = free.pop() if free else None
            if memory is not None:
                self._kept -= size
        if memory is None:
            memory = mmap.mmap(-1, size)
            memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(array, self._give_back, memory)
        return torch.from_numpy(array)[: count * item].view(dtype)

    def _give_back(self, memory: mmap.mmap) -> None:
        with self._lock:
            if self._kept + len(memory) <= _KEPT_BYTES_MAX:
                self._free.setdefault(len(memory), []).append(memory)
                self._kept += len(memory)


receivers = Receivers()
