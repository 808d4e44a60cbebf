"""The collectives of one group: their order, and the rounds that are in flight.

Threads. The caller's thread starts the rounds of its collective, if their keys are free. The
engine, two or more threads for all groups of the process, starts the others when keys become free,
and completes collectives. Both hold the exchange's lock.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import threading
import time
from typing import Any, Callable, Optional

from .. import _errors
from .._job import Job
from .._library import lib
from ._errors import CollectiveError
from ._home import Home
from ._operation import Operation, Stages
from ._pool import Pool
from ._recorder import Recorder
from ._transfer import Part

_SLICE_NS = 100_000_000
_STOP_S = 1.0


class Engine:
    """Waits for rounds of all groups of the process."""

    def __init__(self) -> None:
        pointer = ctypes.c_void_p()
        _errors.check(lib.phub_queue_create, ctypes.byref(pointer))
        self._queue = pointer.value
        self._tags = itertools.count(1)
        # Also keeps the tensors of rounds in flight alive.
        self._entries: dict[int, tuple["Exchange", Operation, Part]] = {}
        self._stopping = False
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._start_thread()

    def add(self, handle: int, exchange: "Exchange", operation: Operation, part: Part) -> None:
        tag = next(self._tags)
        self._entries[tag] = (exchange, operation, part)
        _errors.check(lib.phub_queue_add, self._queue, handle, tag)

    def stop(self) -> None:
        """Before the interpreter ends."""
        with self._lock:
            self._stopping = True
            threads = list(self._threads)
        lib.phub_queue_close(self._queue)
        for thread in threads:
            thread.join(_STOP_S)  # a callback of the user may block

    def _start_thread(self) -> None:
        """REQUIRES: the lock, except in __init__."""
        if self._stopping:
            return
        thread = threading.Thread(target=self._run, name="phub-torch", daemon=True)
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def _run(self) -> None:
        tag, outcome = ctypes.c_uint64(), ctypes.c_int()
        error = ctypes.c_void_p()
        references = [ctypes.byref(each) for each in (tag, outcome, error)]
        while not self._stopping:
            error.value = None
            result = lib.phub_queue_wait(self._queue, _SLICE_NS, *references)
            if result != _errors.OK:
                lib.phub_error_free(error)
                continue
            # Callbacks of futures may wait for other collectives: one thread always waits here.
            with self._lock:
                self._idle -= 1
                if self._idle == 0:
                    self._start_thread()
            exchange, operation, part = self._entries.pop(tag.value)
            failure = None
            if outcome.value != _errors.OK:
                failure = _errors.error_of(outcome.value, error)
            try:
                exchange.part_done(operation, part, failure)
            except Exception as problem:  # a bug here must not stop every group
                exchange.on_failure(operation, _errors.InternalError(repr(problem)))
            del exchange, operation, part, failure
            with self._lock:
                if self._idle >= 2:
                    break
                self._idle += 1
        with self._lock:
            self._threads.discard(threading.current_thread())


class Exchange:
    """The collectives of one group, in one job."""

    def __init__(self, engine: Engine, job: Job, timeout: float, bucket_bytes: int) -> None:
        self.job = job
        self.timeout = timeout
        self.lock = threading.RLock()
        self.sequence = 0
        self.unfinished: collections.OrderedDict[int, Operation] = collections.OrderedDict()
        self.recorder = Recorder()
        self.failure: Optional[CollectiveError] = None
        self.on_mismatch: Callable[[Operation], None] = lambda operation: None
        self.on_failure: Callable[[Operation, _errors.Error], None] = lambda operation, error: None
        self._engine = engine
        self._pool = Pool(job, bucket_bytes)
        self._starting: collections.deque[Operation] = collections.deque()

    def submit(
        self,
        name: str,
        details: str,
        stages: Stages,
        result: list[Any],
        finish: Optional[Callable[[], None]] = None,
        timeout: Optional[float] = None,
    ) -> Operation:
        """Starts a collective. finish() runs when all transfers are complete, in any thread."""
        with self.lock:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            self.sequence += 1
            operation = Operation(
                self.sequence,
                name,
                details,
                stages,
                result,
                finish,
                self.timeout if timeout is None else timeout,
            )
            operation.record = self.recorder.add(operation.sequence, operation.text)
            self.unfinished[operation.sequence] = operation
            self._starting.append(operation)
            operation.next_stage(self._pool.is_whole)
            error = self._start_parts()
        if error is not None:
            self.on_failure(operation, error)
        return operation

    def home_of(self, tensor: Any, number: int, operation: str) -> Optional[Home]:
        """Where the tensor's storage lives in memory that the daemon maps. May move it there."""
        with self.lock:
            return self._pool.homes.home_of(tensor, number, operation)

    def part_done(self, operation: Operation, part: Part, error: Optional[_errors.Error]) -> None:
        """A round is complete. On the engine thread."""
        completed, differs = False, False
        with self.lock:
            slot = part.slot
            assert slot is not None
            operation.in_flight -= 1
            if operation.done():  # failed
                return
            if error is None:
                differs = not slot.finish(part, operation.fingerprint)
                operation.differs = operation.differs or differs
            if error is None and not operation.differs:
                slot.part = None
                if not operation.waiting and operation.in_flight == 0:
                    completed = operation.last_stage
                    error = None if completed else self._next_stage(operation)
                if error is None:
                    error = self._start_parts()
        # Without the lock: these run callbacks of futures, which may start collectives.
        if differs:
            self.on_mismatch(operation)
        if completed:
            self._complete(operation)
        if error is not None:
            self.on_failure(operation, error)

    def fail(self, error: CollectiveError) -> bool:
        """Every unfinished and later collective ends with `error`. False: it had failed already."""
        with self.lock:
            if self.failure is not None:
                return False
            self.failure = error
            operations = list(self.unfinished.values())
            self.unfinished.clear()
            self._starting.clear()
        for operation in operations:
            operation.complete(error)
        return True

    def release(self) -> None:
        """REQUIRES: the job was left."""
        with self.lock:
            self._pool.free()

    def oldest(self) -> Optional[Operation]:
        with self.lock:
            return next(iter(self.unfinished.values()), None)

    def idle(self, timeout: float) -> bool:
        """Waits until no collective is unfinished."""
        end = time.monotonic() + timeout
        while (operation := self.oldest()) is not None:
            left = end - time.monotonic()
            if left <= 0:
                return False
            try:
                operation.wait(left)
            except CollectiveError:
                return True
        return True

    def _next_stage(self, operation: Operation) -> Optional[_errors.Error]:
        try:
            # When this happens differs between ranks, so it must not change what the pool knows.
            operation.next_stage(lambda transfer: False)
        except Exception as problem:  # ranks disagree about sizes
            return _errors.InvalidArgument(str(problem))
        return None

    def _start_parts(self) -> Optional[_errors.Error]:
        """Starts parts in order, until one's key has a round in flight."""
        while self._starting:
            operation = self._starting[0]
            while operation.waiting:
                part = operation.waiting[0]
                try:
                    slot = self._pool.slot(part.kind())
                    if slot is None:
                        return None
                    handle = slot.start(part, operation.fingerprint)
                except _errors.Error as error:
                    return error
                operation.waiting.popleft()
                self._pool.advance(slot.kind)
                slot.part, part.slot = part, slot
                operation.in_flight += 1
                self._engine.add(handle, self, operation, part)
                lib.phub_handle_free(handle)
            if not operation.last_stage:
                return None
            self._starting.popleft()
        return None

    def _complete(self, operation: Operation) -> None:
        error = None
        try:
            if operation.finish is not None:
                operation.finish()
        except Exception as problem:  # for example, the caller has resized the tensor
            error = CollectiveError(
                f"{operation.text}: {problem}",
                job=self.job.name,
                own_rank=self.job.rank,
                operation=operation.text,
            )
        with self.lock:
            self.unfinished.pop(operation.sequence, None)
        operation.complete(error)
