"""Results that stay in a key's memory, which phub writes again once no tensor refers to them."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable

import numpy as np
import torch


class Lender:
    """Lends one key's memory to one result at a time. Results may end in any thread."""

    def __init__(self, address: int, size: int) -> None:
        self._address = address
        self._size = size
        self._after: list[Callable[[], None]] = []  # pop() is atomic
        self.lent = False

    def lend(self, dtype: Any) -> Any:
        """The memory as a tensor. REQUIRES: not lent."""
        memory: Any = (ctypes.c_ubyte * self._size).from_address(self._address)
        array = np.frombuffer(memory, dtype=np.uint8)
        self.lent = True
        # At exit tensors may still refer to the memory: it must not be freed then.
        weakref.finalize(array, self._returned).atexit = False
        return torch.from_numpy(array).view(dtype)

    def when_returned(self, call: Callable[[], None]) -> None:
        """Calls `call` when no result uses the memory. REQUIRES: nothing is lent afterwards."""
        self._after.append(call)
        if not self.lent:
            self._run_after()

    def _returned(self) -> None:
        self.lent = False
        self._run_after()

    def _run_after(self) -> None:
        try:
            call = self._after.pop()
        except IndexError:
            return
        call()
