"""One collective on one rank: its parts, its result, and who waits for it."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from typing import Any, Callable, Iterator, Optional

import torch

from ._buffers import Buffer
from ._cuda import after_results
from ._errors import CollectiveError
from ._recorder import Record
from ._transfer import Fingerprint, Part, Transfer

# What a collective does: lists of transfers that run at once. All but the last depend on results of
# the list before, so collectives that are called later start after the last list.
Stages = Iterator[tuple[list[Transfer], bool]]


@dataclasses.dataclass
class Call:
    """A collective that is called."""

    name: str
    timeout: Optional[float]  # None: the group's
    details: str = ""  # after the name, for people; equal on all ranks
    transfers: list[Transfer] = dataclasses.field(default_factory=list)
    stages: Optional[Stages] = None  # instead of `transfers`, if some depend on results of others
    result: list[Any] = dataclasses.field(default_factory=list)  # of the future
    sources: list[Buffer] = dataclasses.field(default_factory=list)  # that transfers read
    # Take their results from their memory at the end.
    targets: list[Buffer] = dataclasses.field(default_factory=list)
    # Run when the sources have their values, before the first transfer.
    preparations: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    # Run when all transfers are complete, in any thread, before the targets take their results.
    finishes: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    # Copies the result into the caller's tensor, for callers that do not use `result`.
    copy_back: Optional[Callable[[], None]] = None
    # Run when the collective has ended, whether or not it failed.
    releases: list[Callable[[], None]] = dataclasses.field(default_factory=list)

    def prepare(self) -> None:
        """REQUIRES: the sources can be read."""
        for each in self.preparations:
            each()

    def finish(self) -> list[tuple[Any, Any]]:
        """Gives the targets their results. Returns devices, with events after which the results are
        there."""
        for each in self.finishes:
            each()
        given = [(target.device, target.give_back()) for target in self.targets]
        return [(device, event) for device, event in given if event is not None]

    def release(self) -> None:
        for each in self.releases:
            each()

    def devices(self) -> list[Any]:
        """Of targets that are not on the CPU."""
        found = (each.device for each in self.targets)
        return list(dict.fromkeys(each for each in found if each is not None))


class Operation:
    """Its fields change under the lock of its exchange, except the futures' and waiters'."""

    def __init__(self, sequence: int, call: Call, timeout: float) -> None:
        self.sequence = sequence
        self.name = call.name
        self.text = f"{call.name}{call.details}"
        self.fingerprint = Fingerprint(f"{sequence} {self.text}")
        self.stages = call.stages or iter([(call.transfers, True)])
        self.result = call.result
        self.begun = time.monotonic()
        self.timeout = timeout
        self.call: Optional[Call] = call  # until the end: it refers to tensors and their copies
        self.can_read = False  # its sources are on this host
        self.started = False
        self.waiting: collections.deque[Part] = collections.deque()  # not started
        self.in_flight = 0
        self.last_stage = False
        # If keys are removed before its first stage: how many ranks cannot remove keys.
        self.votes: Optional[Any] = None
        self.differs = False  # from other ranks' collectives: it ends with an error, later
        self.error: Optional[CollectiveError] = None
        self.record: Optional[Record] = None
        self.waiters = 0  # threads
        # For an operation that others wait for: whether a thread waits for those.
        self.also_awaited: Optional[Callable[[], bool]] = None
        self._copy_back = call.copy_back
        # Results that are still being copied to a device.
        self._arriving: list[tuple[Any, Any]] = []
        self._devices = call.devices()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._future: Any = None
        self._child: Any = None

    def next_stage(
        self, is_whole: Callable[[Transfer], bool], is_pooled: Callable[[Transfer], bool]
    ) -> None:
        """REQUIRES: not last_stage."""
        self.started = True
        transfers, self.last_stage = next(self.stages)
        for transfer in transfers:
            self.waiting.extend(transfer.parts(is_whole(transfer), is_pooled(transfer)))
        if self.last_stage:
            self.stages = iter(())  # results must not live as long as this object

    def done(self) -> bool:
        """The rounds are complete. Results may still be on their way to a device."""
        return self._done.is_set()

    def arrived(self) -> bool:
        return self.done() and all(event.query() for _, event in self._arriving)

    def complete(
        self,
        error: Optional[CollectiveError] = None,
        arriving: Optional[list[tuple[Any, Any]]] = None,
    ) -> None:
        """Wakes everyone who waits. Runs callbacks of the future in this thread."""
        with self._lock:
            if self._done.is_set():
                return
            self.error = error
            call, self.call = self.call, None
            self._arriving = arriving or []
            if self.record is not None:
                self.record.end(error)
            self._done.set()
            future = self._future
        if call is not None:
            call.release()
        if future is not None:
            self._set(future)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Raises the collective's error. False: the timeout is over."""
        if not self._done.is_set() and not self._await(timeout):
            return False
        if self.error is not None:
            # A new object each time: a traceback must not grow with every waiter.
            raise self.error.with_traceback(None)
        with self._lock:
            copy_back, self._copy_back = self._copy_back, None
            if copy_back is not None:
                copy_back()
        for device, event in self._arriving:
            torch.cuda.current_stream(device).wait_event(event)
        return True

    def _await(self, timeout: Optional[float]) -> bool:
        with self._lock:
            self.waiters += 1
        try:
            return self._done.wait(timeout)
        finally:
            with self._lock:
                self.waiters -= 1

    def awaited(self) -> bool:
        """A thread waits for it, as far as Python knows: not those that wait for a future."""
        also = self.also_awaited
        return self.waiters > 0 or (also is not None and also())

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
            # With devices, the current streams of those who take the result wait for it.
            options = {"devices": self._devices} if self._devices else {}
            self._future = torch.futures.Future(**options)
            self._child = self._future.then(self._value)
            done = self._done.is_set()
        if done:
            self._set(self._future)
        return self._child

    def _set(self, future: Any) -> None:
        if not self._arriving:
            future.set_result(None)
            return
        with after_results(self._devices):
            future.set_result(self.result)
