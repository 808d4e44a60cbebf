"""Explains collectives that do not complete: who is missing, and who called something else.

While all goes well this costs nothing. If a collective waits for a second, its rank publishes its
last operations in the store of the process group, and reads those of the others.

The daemon knows nothing of operations, so this works as long as the store does: it is a process of
the run (usually rank 0), and may have died.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Optional

from .. import _errors
from ._board import Seat, Wait
from ._errors import CollectiveError, CollectiveMismatch, CollectiveTimeout
from ._exchange import Exchange
from ._operation import Operation
from ._published import Published
from ._ranks import listed_ranks
from ._recorder import Report
from ._subgroup import Subgroup

_LOOK_S = 0.25
_PUBLISH_AFTER_S = 1.0
_WARN_AFTER_S = 5.0
# How long other ranks have to publish why they failed.
_REASON_S = 1.5
_DEAD_S = 0.2
_LEFT = "has left the group"


class _Watched:
    """One exchange: what its ranks have published."""

    def __init__(
        self, exchange: Exchange, store: Any, prefix: str, group: str, seat: Optional[Seat]
    ) -> None:
        self.exchange = exchange
        self.published = Published(store)
        self.prefix = prefix
        self.group = group  # prefix of the group of torch
        self.seat = seat
        self.cycle: Optional[str] = None  # of ranks that wait for each other
        self._wait: Optional[Wait] = None  # in the cycle
        self._seen: Optional[str] = None  # the cycle of the last look
        self.warned = 0  # operation that was warned about
        self.sequence = 0  # of the last operation that was published
        self.explaining = False  # a mismatch: other errors only follow from it
        self.ended = False
        self.lock = threading.Lock()

    def publish(self, note: str = "") -> None:
        exchange = self.exchange
        with exchange.lock:
            values = exchange.recorder.published(note)
        self.published.write(f"{self.prefix}/at/{exchange.rank}", values)

    def read(self, rank: int, prefix: Optional[str] = None) -> Optional[dict[str, Any]]:
        """What `rank` has published; None: nothing, or the store does not answer."""
        return self.published.read(f"{prefix or self.prefix}/at/{rank}")

    def others(self) -> dict[int, Optional[dict[str, Any]]]:
        own = self.exchange.rank
        return {rank: self.read(rank) for rank in self.exchange.ranks if rank != own}

    def look_for_cycle(self, others: dict[int, Optional[dict[str, Any]]]) -> None:
        """Sets `cycle` if this look and the last one have found it, since the ranks do not publish
        all at once. It stays while this rank waits for the same ranks: others may time out first.
        """
        if self.seat is None:
            return
        board, own = self.seat.board, self.exchange.ranks
        operation, wait = self.exchange.awaited(), None
        absent = [] if operation is None else _absent(operation, others)
        if operation is not None and absent:
            missing = tuple(self.seat.ranks[own.index(rank)] for rank in absent)
            wait = Wait(board.rank, f"{self.seat.name}, {_place(operation)}", missing)
        board.set(id(self), wait)
        found = None if wait is None else board.cycle(wait)
        if found is not None and found == self._seen:
            self.cycle, self._wait = found, wait
        elif wait != self._wait:
            self.cycle = self._wait = None
        self._seen = found

    def forget_wait(self) -> None:
        self.cycle = self._seen = self._wait = None
        if self.seat is not None:
            self.seat.board.set(id(self), None)

    def left_by(self, rank: int) -> bool:
        """The rank has left the group of torch, and perhaps never used this stream of messages."""
        values = None if self.group == self.prefix else self.read(rank, self.group)
        return values is not None and values.get("note") == _LEFT


class Watch:
    """One thread for all groups of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phub-torch-watch", daemon=True)
        self._thread.start()

    def add(
        self,
        exchange: Exchange,
        store: Any,
        prefix: str,
        group: Optional[str] = None,
        seat: Optional[Seat] = None,
    ) -> None:
        """prefix: of its keys in the store. group: that of its group, if it is for messages. seat:
        if torch knows the group."""
        watched = _Watched(exchange, store, prefix, group or prefix, seat)
        exchange.on_mismatch = lambda operation: self._later(self._differs, watched, operation)
        exchange.on_failure = lambda operation, error: self._later(
            self._failed, watched, operation, error
        )
        with self._lock:
            self._watched[id(exchange)] = watched

    def remove(self, exchange: Exchange) -> None:
        with self._lock:
            watched = self._watched.pop(id(exchange), None)
        exchange.on_mismatch = lambda operation: None
        exchange.on_failure = lambda operation, error: None
        if watched is not None:
            watched.published.close()
            watched.forget_wait()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            with self._lock:
                everything = list(self._watched.values())
            for watched in everything:
                self._look(watched)
            seats = (watched.seat for watched in everything)
            for board in {seat.board for seat in seats if seat is not None}:
                board.publish()

    @staticmethod
    def _later(call: Callable[..., None], *arguments: Any) -> None:
        """The engine thread must not wait for a store."""
        threading.Thread(target=call, args=arguments, name="phub-explain", daemon=True).start()

    # ---- Collectives that wait ---------------------------------------------------------------

    def _look(self, watched: _Watched) -> None:
        exchange = watched.exchange
        operation = exchange.oldest()
        if operation is None or watched.explaining or watched.ended:
            return watched.forget_wait()
        age = time.monotonic() - operation.begun
        if age < min(_PUBLISH_AFTER_S, operation.timeout):
            return watched.forget_wait()
        if watched.sequence != exchange.sequence:
            watched.sequence = exchange.sequence
            watched.publish()
        others = watched.others()
        watched.look_for_cycle(others)
        if self._report_difference(watched, others) or self._report_end(watched, operation, others):
            return
        missing = _missing(operation, others)
        missing += f"; {watched.cycle}" if watched.cycle is not None else ""
        if age >= operation.timeout:
            self._time_out(watched, operation, missing)
        elif age >= _WARN_AFTER_S and watched.warned != operation.sequence:
            watched.warned = operation.sequence
            print(
                f"phub: rank {exchange.rank} of job {exchange.job.name} has waited "
                f"{age:.0f} s in {_place(operation)}; {missing}",
                file=sys.stderr,
                flush=True,
            )

    def _report_end(
        self,
        watched: _Watched,
        operation: Operation,
        others: dict[int, Optional[dict[str, Any]]],
    ) -> bool:
        """A rank has left the group, or it has failed there. In a job of its own, this ends the
        job."""
        if not isinstance(watched.exchange.job, Subgroup):
            return False
        for rank, values in others.items():
            note = values.get("note") if values else None
            if not note and watched.left_by(rank):
                note = _LEFT
            if note:
                self._end(watched, CollectiveError, operation, f"rank {rank}: {note}", rank)
                return True
        return False

    def say_goodbye(self, exchange: Exchange) -> Optional[str]:
        """This rank leaves a group, but not the job. Returns the prefix of the group's keys in the
        store; None: the store does not answer."""
        with self._lock:
            watched = self._watched.get(id(exchange))
        if watched is None:
            return None
        watched.publish(_LEFT)
        return watched.prefix if watched.published.usable else None

    def _time_out(self, watched: _Watched, operation: Operation, missing: str) -> None:
        self._end(
            watched,
            CollectiveTimeout,
            operation,
            f"timed out after {operation.timeout:g} s, the timeout of the collective; {missing}",
        )

    # ---- Collectives that differ -------------------------------------------------------------

    def _report_difference(
        self, watched: _Watched, others: dict[int, Optional[dict[str, Any]]]
    ) -> bool:
        exchange = watched.exchange
        with exchange.lock:
            own = {each.sequence: each.text for each in exchange.recorder.records}
            operation = next(iter(exchange.unfinished.values()), None)
        for rank, values in others.items():
            for sequence, text in (values or {}).get("operations", []):
                if own.get(sequence, text) != text and operation is not None:
                    self._mismatch(watched, operation, rank, sequence, own[sequence], text)
                    return True
        return False

    def _mismatch(
        self,
        watched: _Watched,
        operation: Operation,
        rank: int,
        sequence: int,
        own: str,
        other: str,
    ) -> None:
        own_rank = watched.exchange.rank
        self._end(
            watched,
            CollectiveMismatch,
            operation,
            f"ranks called different collectives as operation {sequence}: rank {own_rank} called "
            f"{own}, rank {rank} called {other}",
            rank,
        )

    def _differs(self, watched: _Watched, operation: Operation) -> None:
        """The fingerprints of the ranks differ."""
        with watched.lock:
            if watched.explaining:
                return
            watched.explaining = True
        watched.publish()
        end = time.monotonic() + _PUBLISH_AFTER_S + 2.0
        while time.monotonic() < end and watched.published.usable:
            if self._report_difference(watched, watched.others()):
                return
            time.sleep(0.05)
        self._end(
            watched,
            CollectiveMismatch,
            operation,
            f"ranks called different collectives as operation {operation.sequence}; rank "
            f"{watched.exchange.rank} called {operation.text}",
        )

    # ---- Collectives that failed -------------------------------------------------------------

    def _failed(self, watched: _Watched, operation: Operation, error: _errors.Error) -> None:
        """The daemon, or this process's libphub, reports an error."""
        if watched.explaining:
            return
        watched.publish()
        # If another rank has failed first, its reason says more: it leaves the job afterwards.
        end = time.monotonic() + (_DEAD_S if "died" in str(error) else _REASON_S)
        notes: list[str] = []
        while True:
            others = watched.others()
            if self._report_difference(watched, others):
                return
            notes = [
                f"rank {rank}: {values['note']}"
                for rank, values in others.items()
                if values and values.get("note")
            ]
            if notes or not watched.published.usable or time.monotonic() > end:
                break
            time.sleep(0.05)
        notes += [] if watched.cycle is None else [watched.cycle]
        text = str(error) + "".join(f". {note}" for note in notes)
        self._end(watched, CollectiveError, operation, text, error.rank)

    def _end(
        self,
        watched: _Watched,
        kind: type[CollectiveError],
        operation: Operation,
        text: str,
        rank: Optional[int] = None,
    ) -> None:
        """Every collective of the group ends with this error, on this rank at once, and on the
        others when this rank has left the job."""
        exchange = watched.exchange
        job, own_rank = exchange.job, exchange.rank
        with watched.lock:
            if watched.ended:
                return
            watched.ended = True
        watched.publish(f"{_place(operation)}: {text}")
        if kind is CollectiveMismatch:
            # This process probably ends now. The others must have read what it called.
            until = time.monotonic() + _REASON_S
            while time.monotonic() < until and watched.published.usable:
                if all(values and values.get("note") for values in watched.others().values()):
                    break
                time.sleep(0.05)
        others = watched.others()
        with exchange.lock:
            report = Report(exchange, f"{_place(operation)}: {text}", others)
        report.write()
        failed = exchange.fail(
            kind(
                f"rank {own_rank} of job {job.name}: {_place(operation)}: {text}",
                job=job.name,
                rank=own_rank if rank is None else rank,
                own_rank=own_rank,
                operation=operation.text,
            )
        )
        if failed:
            job._leave_quietly()


def _place(operation: Operation) -> str:
    return f"operation {operation.sequence}, {operation.text}"


def _absent(operation: Operation, others: dict[int, Optional[dict[str, Any]]]) -> list[int]:
    """The ranks that have not called the operation, as far as they have published."""
    absent = []
    for rank, values in others.items():
        operations = (values or {}).get("operations", [])
        if not operations or operations[-1][0] < operation.sequence:
            absent.append(rank)
    return absent


def _missing(operation: Operation, others: dict[int, Optional[dict[str, Any]]]) -> str:
    absent = _absent(operation, others)
    if not operation.can_read:
        return "this rank's GPU has not computed its tensors yet, or is copying them"
    if not absent:
        return "all ranks have called it"
    verb = "has" if len(absent) == 1 else "have"
    return f"{listed_ranks(absent)} {verb} not called it, as far as this rank knows"
