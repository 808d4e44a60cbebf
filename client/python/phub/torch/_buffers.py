"""Tensors of the caller as flat memory of this host, and memory for results."""

from __future__ import annotations

import mmap
import threading
import weakref
from typing import Any, Callable, Optional

import numpy as np
import torch

from ._types import bytes_of, check

_SMALL_BYTES = 1 << 18  # torch's own memory is fast enough
_KEPT_BYTES_MAX = 1 << 29  # free memory that is kept for later results


class Receivers:
    """Memory for results, used again when no tensor refers to it: new pages would be slow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[mmap.mmap]] = {}
        self._kept = 0

    def take(self, dtype: Any, count: int) -> Any:
        """A tensor with undefined values."""
        item = torch.empty(0, dtype=dtype).element_size()
        if count * item < _SMALL_BYTES:
            return torch.empty(count, dtype=dtype)
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


def joined(pieces: list[Any]) -> Any:
    """Flat tensors end to end, in memory that is used again."""
    if any(each.dtype != pieces[0].dtype for each in pieces):
        return torch.cat(pieces)
    whole = receivers.take(pieces[0].dtype, sum(len(each) for each in pieces))
    return torch.cat(pieces, out=whole)


class Buffer:
    """A tensor of the caller as flat contiguous memory of this host.

    `flat` is the tensor's own memory if it is contiguous and on the CPU, otherwise a copy; then
    give_back() copies it into the tensor. Views of raw memory are used, since results arrive on
    another thread, where autograd and inference mode must not see them.
    """

    def __init__(self, tensor: Any, what: str, read: bool = True) -> None:
        check(tensor, what)
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = tensor.resolve_conj()
        tensor = tensor.resolve_neg()
        self.tensor = tensor
        self.dtype = tensor.dtype
        self.count = tensor.numel()
        self._back: Optional[Callable[[], None]] = None
        if tensor.device.type == "cuda":
            from ._cuda import Staged

            staged = Staged(tensor, read)
            self.bytes = bytes_of(staged.host)
            self._back = staged.give_back
        elif tensor.is_contiguous():
            self.bytes = bytes_of(tensor)
        else:
            copy = tensor.contiguous()
            self.bytes = bytes_of(copy)
            self._back = lambda: self._copy_back(copy)

    def _copy_back(self, copy: Any) -> None:
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            self.tensor.copy_(copy)

    def flat(self, dtype: Any = None) -> Any:
        """The elements, seen as `dtype` (default: the tensor's type)."""
        return self.bytes.view(dtype or self.dtype)

    @property
    def is_own(self) -> bool:
        """`flat` is the tensor's own memory."""
        return self._back is None

    def give_back(self) -> None:
        """Copies the memory into the caller's tensor, if it is a copy."""
        if self._back is not None:
            self._back()


def all_of(buffers: list[Buffer]) -> Callable[[], None]:
    def give_back() -> None:
        for buffer in buffers:
            buffer.give_back()

    return give_back


def in_order(calls: list[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            call()

    return run
