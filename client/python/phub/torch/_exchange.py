"""The collectives of one group: their order, and the rounds that are in flight.

Threads. The caller's thread starts the rounds of its collective, if their keys are free. The
engine, two or more threads for all groups of the process, starts the others when keys become free,
and completes collectives. Both hold the exchange's lock.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools
import threading
import time
from typing import Any, Callable, Optional, Sequence

import torch

from .. import _errors
from .._library import lib
from ._cuda import when_ready
from ._errors import CollectiveError
from ._home import Home
from ._operation import Call, Operation
from ._pool import Pool
from ._recorder import Recorder
from ._subgroup import AnyJob
from ._transfer import Part, reduce

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

    def __init__(
        self,
        engine: Engine,
        job: AnyJob,
        timeout: float,
        bucket_bytes: int,
        ranks: Optional[Sequence[int]] = None,
    ) -> None:
        """ranks: numbers of the members in messages (default: those of the job)."""
        self.job = job
        self.ranks = tuple(range(job.world_size) if ranks is None else ranks)
        self.rank = self.ranks[job.rank]
        self.timeout = timeout
        self.lock = threading.RLock()
        self.sequence = 0
        self.unfinished: collections.OrderedDict[int, Operation] = collections.OrderedDict()
        self.recorder = Recorder()
        self.failure: Optional[CollectiveError] = None
        self.on_mismatch: Callable[[Operation], None] = lambda operation: None
        self.on_failure: Callable[[Operation, _errors.Error], None] = lambda operation, error: None
        self._engine = engine
        self._pool = Pool(job, bucket_bytes, pools_moves=ranks is None)
        self._starting: collections.deque[Operation] = collections.deque()

    def submit(self, call: Call) -> Operation:
        """Starts a collective."""
        copying = [each for each in call.sources if not each.ready()]
        if not copying:
            call.prepare()
        with self.lock:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            self.sequence += 1
            timeout = self.timeout if call.timeout is None else call.timeout
            operation = Operation(self.sequence, call, timeout)
            operation.record = self.recorder.add(operation.sequence, operation.text)
            operation.can_read = not copying
            self.unfinished[operation.sequence] = operation
            self._starting.append(operation)
            error = self._start_parts()
        if error is not None:
            self.on_failure(operation, error)
        if copying:
            when_ready(copying, functools.partial(self._on_ready, operation))
        return operation

    def _on_ready(self, operation: Operation, problem: Optional[Exception]) -> None:
        """The operation's sources are copied to this host. Any thread."""
        error: Optional[_errors.Error] = None
        call = operation.call
        if problem is None and call is not None:
            try:
                call.prepare()
            except Exception as other:
                problem = other
        if problem is not None:
            error = _errors.Aborted(f"the copy of its tensors from the GPU failed: {problem}")
        else:
            with self.lock:
                operation.can_read = True
                error = self._start_parts()
        if error is not None:
            self.on_failure(operation, error)

    def home_of(self, tensor: Any, number: int, operation: str) -> Optional[Home]:
        """Where the tensor's storage lives in memory that the daemon maps. May move it there."""
        with self.lock:
            return self._pool.homes.home_of(tensor, number, operation)

    def claim_home(self, number: int, operation: str, count: int) -> Optional[Home]:
        """Memory that the daemon maps, for one gradient of a device. The caller ends the claim."""
        with self.lock:
            return self._pool.homes.claim(number, operation, count)

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
                if operation.started and not operation.waiting and operation.in_flight == 0:
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

    def awaited(self) -> Optional[Operation]:
        """The first unfinished collective that a thread waits for."""
        with self.lock:
            operations = list(self.unfinished.values())
        return next((each for each in operations if each.awaited()), None)

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

    def _begin(self, operation: Operation) -> Optional[_errors.Error]:
        """Starts the first stage. If there are too many keys, removes some before: all ranks do so
        before the same operation, and after a round that all of them have reached. So none waits
        in the removal for a caller of another rank."""
        pool = self._pool
        if pool.crowded:
            try:
                if operation.votes is None:
                    cannot = int(not pool.can_remove())
                    operation.votes = torch.tensor([cannot], dtype=torch.int32, device="cpu")
                    vote = reduce("sum", operation.votes, operation.votes)
                    operation.waiting.extend(vote.parts(False, pool.is_pooled(vote)))
                if operation.waiting or operation.in_flight > 0 or not pool.idle():
                    return None
                pool.remove(all_can=int(operation.votes) == 0)
            except _errors.Error as problem:
                return problem
        return self._next_stage(operation)

    def _next_stage(self, operation: Operation) -> Optional[_errors.Error]:
        try:
            if operation.started:
                # Ranks do this at different times, so it must not change what the pool knows.
                operation.next_stage(lambda transfer: False, self._pool.is_pooled)
            else:
                operation.next_stage(self._pool.is_whole, self._pool.is_pooled)
        except _errors.Error as problem:
            return problem
        except Exception as problem:  # ranks disagree about sizes
            return _errors.InvalidArgument(str(problem))
        return None

    def _start_parts(self) -> Optional[_errors.Error]:
        """Starts parts in order, until one's key has a round in flight, or its operation's sources
        are being copied to this host. Adds keys for a message only when its first round, in which
        the ranks compare their calls, is complete: keys that differ would end the job."""
        while self._starting:
            operation = self._starting[0]
            if not operation.can_read:
                return None
            if not operation.started and (error := self._begin(operation)) is not None:
                return error
            while operation.waiting:
                part = operation.waiting[0]
                opened = not part.transfer.opens or operation.in_flight == 0
                if not opened and not self._pool.has(part.kind()) and not part.opens:
                    return None
                try:
                    slot = self._pool.slot(part.kind())
                    if slot is None:
                        return None
                    handle = slot.start(part, operation.fingerprint)
                except _errors.Error as problem:
                    return problem
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
        error, call = None, operation.call
        arriving: list[tuple[Any, Any]] = []
        try:
            if call is not None:
                arriving = call.finish()
        except Exception as problem:  # for example, the caller has resized the tensor
            error = CollectiveError(
                f"{operation.text}: {problem}",
                job=self.job.name,
                own_rank=self.rank,
                operation=operation.text,
            )
        with self.lock:
            self.unfinished.pop(operation.sequence, None)
        operation.complete(error, arriving)
