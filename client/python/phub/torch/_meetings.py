"""Calls that every rank makes: whether all ranks are in the same one, in the store of the process
group. Such calls wait for all ranks, so a rank that is alone in one must end with an error."""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Optional

from ._ranks import listed_ranks

_PAUSE_S = (0.001, 0.05)  # between two looks, the first and the longest


class Absent(Exception):
    """The ranks are not in the same call. ``final``: their counts of calls differ from now on."""

    def __init__(self, text: str, final: bool) -> None:
        super().__init__(text)
        self.final = final


class Meetings:
    """Of one optimizer. One thread at a time. store: None: ranks do not meet.

    A rank publishes its last call, with a number; whether it is ready, or failed before; and the
    number of its last call in which it met all ranks.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._number = 0
        self._met = 0
        self._call = ""

    def begin(self, call: str) -> None:
        """This rank is in the call, but may still refuse it."""
        self._number += 1
        self._call = call
        self._publish(ready=False)

    def refuse(self, why: str) -> None:
        """This rank has not done, and will not do, what the call does."""
        self._publish(ready=False, error=why)

    def meet(self, seconds: float, check: Callable[[], None]) -> None:
        """Waits until all ranks are ready. Raises Absent if ranks are in other calls, refuse theirs
        or do not come in time. check: raises if the job has ended."""
        self._publish(ready=True)
        end = time.monotonic() + seconds
        pause = _PAUSE_S[0]
        waits_for = [rank for rank in range(self._size) if rank != self._rank]
        while self._store is not None:
            try:
                waits_for = [rank for rank in waits_for if not self._has_met(rank)]
            except RuntimeError:  # the store's process has ended, so the job ends, too
                return
            if not waits_for:
                self._met = self._number
                self._publish(ready=True)
                return
            check()
            if time.monotonic() >= end:
                have = "has" if len(waits_for) == 1 else "have"
                raise Absent(
                    f"{listed_ranks(waits_for)} {have} not called it within {seconds:g} s, the "
                    "timeout of the optimizer",
                    final=True,
                )
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S[1])

    def _has_met(self, rank: int) -> bool:
        """Whether the rank is ready, too."""
        theirs = self._of(rank)
        if theirs is None or theirs["number"] < self._number:
            return False
        if theirs["met"] >= self._number:
            return True
        if theirs["number"] > self._number:
            raise Absent(
                f"rank {rank} is in {theirs['call']}, its call number {theirs['number']} of those "
                f"that every rank must make, and this is number {self._number} of rank "
                f"{self._rank}: a call before was made or has failed on some ranks only",
                final=True,
            )
        if theirs["call"] != self._call:
            raise Absent(f"rank {rank} is in {theirs['call']} instead", final=True)
        if theirs["error"]:
            raise Absent(f"rank {rank}: {theirs['error']}", final=False)
        return bool(theirs["ready"])

    def _of(self, rank: int) -> Optional[dict[str, Any]]:
        key = f"call/{rank}"
        if not self._store.check([key]):
            return None
        published: dict[str, Any] = json.loads(bytes(self._store.get(key)))
        return published

    def _publish(self, ready: bool, error: str = "") -> None:
        if self._store is None:
            return
        text = json.dumps(
            {
                "number": self._number,
                "call": self._call,
                "ready": ready,
                "met": self._met,
                "error": error,
            }
        )
        try:
            self._store.set(f"call/{self._rank}", text)
        except RuntimeError:  # as in meet()
            return
