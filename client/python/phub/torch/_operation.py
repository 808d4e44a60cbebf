"""One collective on one rank: its parts, its result, and who waits for it."""

from __future__ import annotations

import collections
import threading
import time
from typing import Any, Callable, Iterator, Optional

import torch

from ._errors import CollectiveError
from ._recorder import Record
from ._transfer import Fingerprint, Part, Transfer

# What a collective does: lists of transfers that run at once. All but the last depend on results of
# the list before, so collectives that are called later start after the last list.
Stages = Iterator[tuple[list[Transfer], bool]]


class Operation:
    """Its fields change under the lock of its exchange, except the futures' and waiters'."""

    def __init__(
        self,
        sequence: int,
        name: str,
        details: str,
        stages: Stages,
        result: list[Any],
        finish: Optional[Callable[[], None]],
        timeout: float,
    ) -> None:
        self.sequence = sequence
        self.name = name
        self.text = f"{name}{details}"
        self.fingerprint = Fingerprint(f"{sequence} {self.text}")
        self.stages = stages
        self.result = result
        self.finish = finish
        self.begun = time.monotonic()
        self.timeout = timeout
        self.waiting: collections.deque[Part] = collections.deque()  # not started
        self.in_flight = 0
        self.last_stage = False
        self.differs = False  # from other ranks' collectives: it ends with an error, later
        self.error: Optional[CollectiveError] = None
        self.record: Optional[Record] = None
        # Copies the result into the caller's tensor, for callers that do not use `result`.
        self.copy_back: Optional[Callable[[], None]] = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._future: Any = None
        self._child: Any = None

    def next_stage(self, is_whole: Callable[[Transfer], bool]) -> None:
        """REQUIRES: not last_stage."""
        transfers, self.last_stage = next(self.stages)
        for transfer in transfers:
            self.waiting.extend(transfer.parts(is_whole(transfer)))
        if self.last_stage:
            self.stages = iter(())  # results must not live as long as this object

    def done(self) -> bool:
        return self._done.is_set()

    def complete(self, error: Optional[CollectiveError] = None) -> None:
        """Wakes everyone who waits. Runs callbacks of the future in this thread."""
        with self._lock:
            if self._done.is_set():
                return
            self.error = error
            self.finish = None
            if self.record is not None:
                self.record.end(error)
            self._done.set()
            future = self._future
        if future is not None:
            future.set_result(None)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Raises the collective's error. False: the timeout is over."""
        if not self._done.wait(timeout):
            return False
        if self.error is not None:
            # A new object each time: a traceback must not grow with every waiter.
            raise self.error.with_traceback(None)
        with self._lock:
            copy_back, self.copy_back = self.copy_back, None
            if copy_back is not None:
                copy_back()
        return True

    def _value(self, _: Any) -> list[Any]:
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.result

    def future(self) -> Any:
        """A torch.futures.Future of the list of results.

        It is the child of another future: only callbacks that raise make a future fail in C++.
        """
        with self._lock:
            if self._child is not None:
                return self._child
            self._future = torch.futures.Future()
            self._child = self._future.then(self._value)
            done = self._done.is_set()
        if done:
            self._future.set_result(None)
        return self._child
