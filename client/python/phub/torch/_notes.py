"""Why a rank failed, and which ranks wait, for the other ranks: texts in the store of the process
group."""

from __future__ import annotations

import time
from typing import Any

from ._meetings import Meetings

_PATIENCE_S = 1.0


class Notes:
    """One thread at a time. A store that cannot be reached has no notes. store: None: no notes."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self.meetings = Meetings(store, rank, size)
        self._written = False

    def write(self, step: int, text: str) -> None:
        """step: number of steps before the one that failed."""
        if self._store is None:
            return
        self._written = bool(text)
        try:
            self._store.set(f"note/{self._rank}", f"{step} {text}")
        except Exception:  # torch raises several classes; rank 0, which has the store, may be gone
            return

    def clear(self) -> None:
        """This rank's text does not hold any more."""
        if self._written:
            self.write(-2, "")

    def read(self, step: int) -> list[str]:
        """Notes of other ranks about this step or the one before, which a rank has not completed
        if it failed after it pushed. Waits a moment for the first one."""
        end = time.monotonic() + _PATIENCE_S
        found: list[str] = []
        while self._store is not None and not found and time.monotonic() < end:
            try:
                found = [text for rank in range(self._size) for text in self._of(rank, step)]
            except Exception:
                break
            if not found:
                time.sleep(0.05)
        return found

    def wait_in(self, step: int) -> None:
        """This rank has waited for a while, or in vain, for the others in this step."""
        if self._store is None:
            return
        try:
            self._store.set(f"waits/{self._rank}", str(step))
        except Exception:
            return

    def elsewhere(self, step: int) -> list[int]:
        """The ranks that do not wait in this step. Gives those that began later a moment."""
        if self._store is None:
            return []
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                found = [rank for rank in range(self._size) if not self._waits(rank, step)]
            except Exception:
                return []
            if not found or time.monotonic() >= end:
                return found
            time.sleep(0.05)

    def _waits(self, rank: int, step: int) -> bool:
        key = f"waits/{rank}"
        if rank == self._rank:
            return True
        return bool(self._store.check([key])) and int(self._store.get(key)) >= step

    def _of(self, rank: int, step: int) -> list[str]:
        key = f"note/{rank}"
        if rank == self._rank or not self._store.check([key]):
            return []
        about, _, text = bytes(self._store.get(key)).decode().partition(" ")
        return [f"rank {rank}: {text}"] if int(about) >= step - 1 else []
