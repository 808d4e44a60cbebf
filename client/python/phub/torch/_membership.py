"""This process's membership in groups: sessions with daemons, jobs, and how they end."""

from __future__ import annotations

import _thread
import atexit
import os
import secrets
import threading
import time
import weakref
from typing import Any, Optional, Sequence

from .. import _errors
from .._job import Job
from .._record import DumpRecord
from .._session import Session, connect
from . import _collector
from ._board import Board, Seat
from ._collectives import Collectives
from ._errors import CollectiveError
from ._exchange import Engine, Exchange
from ._farewell import Farewells
from ._messages import Messages
from ._options import Options
from ._recorder import dump_record
from ._subgroup import AnyJob, Subgroup, begin, follow, of_messages
from ._watch import Watch

DEFAULT = "world"  # name of the default group
_INSIDE = "inside:"  # instead of the name of a job: the group's name in the default group's job
LEAVE_S = 5.0  # for collectives that other ranks have called, too
_DRAIN_S = 1.0  # then for rounds that cannot complete
_GONE_S = 20.0  # for another thread that leaves
_ARRIVE_S = 0.1  # before, for results that other ranks have not received yet


class _Process:
    """What all groups of the process share. Made at the first group."""

    def __init__(self) -> None:
        self.id = os.getpid()
        self.lock = threading.Lock()
        self.engine = Engine()
        self.watch = Watch()
        self.sessions: dict[Options, Session] = {}
        self.members: "weakref.WeakSet[Membership]" = weakref.WeakSet()
        self._generations: dict[str, int] = {}
        self._worlds = 0  # default groups of phub
        self._subgroups: dict[str, int] = {}  # of the last default group, by name
        atexit.register(self.end)
        _collector.watch()

    def session(self, options: Options) -> Session:
        with self.lock:
            session = self.sessions.get(options)
            if session is None:
                session = self.sessions[options] = _connect(options)
            return session

    def generation(self, group: str) -> int:
        """How many groups of this name the process had before."""
        with self.lock:
            count = self._generations.get(group, 0)
            self._generations[group] = count + 1
            return count

    def world_generation(self) -> str:
        """Of a new default group."""
        with self.lock:
            self._worlds += 1
            self._subgroups.clear()
            return str(self._worlds - 1)

    def subgroup_generation(self, group: str) -> str:
        """Of a new subgroup, the same on its ranks: they have had the same default groups."""
        with self.lock:
            world = str(max(0, self._worlds - 1))
            # Numbers are torch's own names, which occur once for each default group; a process may
            # make any number of them. Other names are hashes of ranks, which occur again.
            if group.isdigit():
                return world
            count = self._subgroups.get(group, 0)
            self._subgroups[group] = count + 1
            return world if count == 0 else f"{world}.{count}"

    def end(self) -> None:
        """Before the interpreter ends: leaves all jobs, so that no other rank sees a death."""
        if os.getpid() != self.id:
            return
        for member in list(self.members):
            member.leave()
        self.watch.stop()
        self.engine.stop()


_process: Optional[_Process] = None
_process_lock = threading.Lock()


def process() -> _Process:
    global _process
    with _process_lock:
        if _process is not None and _process.id != os.getpid():
            raise CollectiveError(
                "this process was forked from one that uses phub; start it with the method "
                "'spawn' or 'forkserver'"
            )
        if _process is None:
            _process = _Process()
        return _process


def _connect(options: Options) -> Session:
    daemon = options.daemon()
    try:
        return connect(
            daemon,
            tenant=options.tenant,
            token_file=options.token_file,
            ca_file=options.ca_file,
            certificate=options.certificate,
            key=options.key,
            server_name=options.server_name,
            plaintext_token=options.plaintext_token,
        )
    except (_errors.Unavailable, _errors.DeadlineExceeded) as error:
        raise CollectiveError(
            f"no phub daemon answers at {daemon}: {error}. Start one there with 'phubd --listen "
            f"{daemon}', or name another one: init_method=\"phub://host:port\" or the environment "
            "variable PHUB_ENDPOINT"
        ) from error


def agreed(
    options: Options, store: Any, rank: int, size: int, group: str, generation: str
) -> tuple[str, int]:
    """The name of the group's job, which no other run has, and bucket_bytes; both from rank 0."""
    key = f"phub/job/{generation}"
    if rank == 0:
        name = f"{options.job or 'torch'}-{secrets.token_hex(4)}.{group}"
        if size > 1:
            store.set(key, f"{options.bucket_bytes} {name}")
        return name, options.bucket_bytes
    bucket_bytes, _, name = bytes(store.get(key)).decode().partition(" ")
    _forget(store, key, size - 1)
    return name, int(bucket_bytes)


def _agreed_inside(store: Any, size: int, generation: str, label: str) -> None:
    """Publishes, from rank 0, that the group is in the default group's job."""
    if size > 1:
        store.set(f"phub/job/{generation}", f"0 {_INSIDE}{label}")


def _forget(store: Any, key: str, readers: int) -> None:
    """The last reader deletes the key: a process may make any number of groups with one store."""
    read = f"{key}/read"
    if readers == 1 or store.add(read, 1) == readers:
        for each in (key, read) if readers > 1 else (key,):
            try:
                store.delete_key(each)
            except (NotImplementedError, RuntimeError):
                pass  # this kind of store keeps its keys


class Membership:
    """In one group."""

    exchange: Exchange
    job_name: str
    _bucket_bytes: int

    def __init__(
        self,
        options: Options,
        store: Any,
        rank: int,
        size: int,
        group: str,
        timeout: float,
        generation: str = "0",
        host: Optional["Membership"] = None,
        ranks: Sequence[int] = (),
        board: Optional[Board] = None,
    ) -> None:
        """generation: differs from those of groups of this name that the store has seen before.
        host: the default group's membership, if the group may be in its job. ranks: those that the
        group has in the default group, if torch knows it. board: that of the default group, or
        None; the default group makes it.
        """
        self.rank, self.size = rank, size
        self._options = options.shared()
        self._store = store
        self._process = process()
        self._session = self._process.session(self._options)
        self._prefix = f"phub/{generation}"
        self._lock = threading.Lock()
        self._left = False
        self._gone = threading.Event()
        # In this group's job, if it has one of its own: other groups of torch, and exchanges of
        # those and of messages.
        self._guests: list[Membership] = []
        self._lodgers: list[Exchange] = []
        self._farewells = Farewells()
        self._inside: Optional[Subgroup] = None  # null: the group has a job of its own
        self._host = host
        self.board = board
        self._is_default = group == DEFAULT
        if self._is_default:
            self.board, ranks = Board(store, rank, self._prefix), range(size)
        if host is not None and rank == 0:
            label = f"{group}.{secrets.token_hex(4)}"
            self._inside = begin(host.exchange.job, label, ranks, options.priority_class)
            if self._inside is not None:
                _agreed_inside(store, size, generation, label)
        if self._inside is None:
            name, self._bucket_bytes = agreed(options, store, rank, size, group, generation)
            if name.startswith(_INSIDE):
                job = None if host is None else host.exchange.job
                self._inside = follow(job, name[len(_INSIDE) :], ranks, options.priority_class)
        self._seat: Optional[Seat] = None
        if self.board is not None:
            label = group if self._inside is None else self._inside.label
            place = "the default group" if self._is_default else f"group {label}"
            self._seat = Seat(self.board, tuple(ranks), place)
        if self._inside is not None and host is not None:
            self.job_name, self._bucket_bytes = host.job_name, host._bucket_bytes
            self._paths_name = f"{host.job_name}.{self._inside.group.name}"
            self.exchange = self._exchange_in(self._inside, self._prefix, timeout)
            host.add_guest(self)
            host.add_lodger(self.exchange)
        else:
            self.job_name = self._paths_name = name
            job = self._join(name, rank, size)
            self.exchange = self._exchange_in(job, self._prefix, timeout)
            self._record(job, self.exchange)
        self.collectives = Collectives(self.exchange)
        self.messages = Messages(rank, size, self._open_stream)
        self._process.members.add(self)

    def _join(self, name: str, rank: int, size: int) -> Job:
        return self._session.join(
            name,
            rank,
            size,
            screening="off",
            transport=self._options.transport,
            leave_timeout=_DRAIN_S,
        )

    def _exchange_in(
        self, job: AnyJob, prefix: str, timeout: float, ranks: Optional[Sequence[int]] = None
    ) -> Exchange:
        exchange = Exchange(self._process.engine, job, timeout, self._bucket_bytes, ranks)
        seat = self._seat
        if seat is not None and ranks is not None:
            seat = seat.of_members(ranks)
        self._process.watch.add(exchange, self._store, prefix, self._prefix, seat)
        return exchange

    # ---- Groups of this group's job ----------------------------------------------------------

    def hosts(self, options: Options) -> bool:
        """Whether groups with these options may be in this group's job."""
        return self._options == options.shared() and not self._left

    def add_guest(self, guest: "Membership") -> None:
        with self._lock:
            self._guests.append(guest)

    def add_lodger(self, exchange: Exchange) -> None:
        with self._lock:
            self._lodgers.append(exchange)

    @property
    def _owner(self) -> "Membership":
        """Whose job it is."""
        return self if self._inside is None or self._host is None else self._host

    def _record(self, job: Job, exchange: Exchange) -> None:
        """Adds the last collectives of the group, and of groups in its job, to what `phubctl job
        dump` shows of this rank."""
        recorder, lock = exchange.recorder, exchange.lock  # not the exchange: it refers to the job
        lodgers = self._lodgers if exchange is self.exchange else []

        def record(bytes_max: int) -> DumpRecord:
            own = dump_record(recorder, lock, bytes_max)
            for theirs in list(lodgers):
                if theirs.recorder.waits_in() is None:
                    continue
                name = theirs.job.name.rpartition(", ")[2]
                part = dump_record(theirs.recorder, theirs.lock, bytes_max // 4)
                own = DumpRecord(
                    f"{name}: {part.headline}", f"{name}, {part.text}\n{own.text}", own.json
                )
            return own

        job.set_recorder(record)

    # ------------------------------------------------------------------------------------------

    def _open_stream(self, stream: str, source: int, target: int) -> Exchange:
        """For messages between two ranks of this group."""
        ranks = sorted((source, target))
        job: Optional[AnyJob] = of_messages(self.exchange.job, stream, ranks)
        if job is None:
            job = self._join(f"{self._paths_name}.{stream}", ranks.index(self.rank), 2)
        prefix, timeout = f"{self._prefix}/{stream}", self.exchange.timeout
        exchange = self._exchange_in(job, prefix, timeout, ranks)
        if isinstance(job, Subgroup):
            self._owner.add_lodger(exchange)
        else:
            self._record(job, exchange)
        return exchange

    def leave(self, patience: Optional[float] = None) -> None:
        """Waits `patience` seconds (default: LEAVE_S) for collectives in flight, and leaves the
        group's jobs. If another thread does so already, waits for it."""
        with self._lock:
            begun, self._left = self._left, True
            guests = list(self._guests)
        if begun:
            self._gone.wait(_GONE_S)
            return
        try:
            self._leave_all(guests, LEAVE_S if patience is None else patience)
        finally:
            self._gone.set()

    def leave_unreferenced(self) -> None:
        """As leave(), of a group that nothing refers to any more."""
        if self._left:
            return
        if _collector.runs_here():  # perhaps in a thread that holds a lock that leave() needs
            _thread.start_new_thread(self.leave, ())  # takes no lock of Python, unlike Thread
        else:
            self.leave()  # the store must be free before torch's next group

    def _leave_all(self, guests: Sequence["Membership"], patience: float) -> None:
        for guest in guests:
            guest.leave(patience)
        exchanges = [*self.messages.close(), self.exchange]
        self._farewells.stop()
        if self._lodgers and patience > 0:
            # If another rank has a round in flight that needs this one, such as a recv without a
            # send, the daemon ends the job when this rank leaves. The other rank should have the
            # results of collectives that this one has completed.
            time.sleep(_ARRIVE_S)
        for exchange in exchanges:
            self._leave(exchange, patience)
        if self._inside is None:
            self._farewells.join()
            for lodger in self._lodgers:
                lodger.release()
            self._lodgers.clear()
        else:
            self._process.members.discard(self)
        if self._is_default and self.board is not None:
            self.board.close()
        self._store = None

    def _leave(self, exchange: Exchange, patience: float) -> None:
        """An exchange in a group of a job leaves the group, another one its job."""
        whole = exchange.idle(patience) and exchange.failure is None
        exchange.fail(_left(exchange))
        job, owner, watch = exchange.job, self._owner, self._process.watch
        if not isinstance(job, Subgroup):
            job._leave_quietly()
            exchange.release()
        elif not owner._left:
            prefix = watch.say_goodbye(exchange)
            if prefix is not None:
                owner._farewells.begin(
                    exchange, whole, self._store, prefix, lambda: owner._drop(exchange)
                )
        watch.remove(exchange)

    def _drop(self, lodger: Exchange) -> None:
        """Its group has been removed from this group's job."""
        lodger.release()
        with self._lock:
            if lodger in self._lodgers:
                self._lodgers.remove(lodger)
            self._guests[:] = [each for each in self._guests if each.exchange is not lodger]


def _left(exchange: Exchange) -> CollectiveError:
    job, rank = exchange.job, exchange.rank
    return CollectiveError(
        f"rank {rank} has left the group of job {job.name}",
        job=job.name,
        rank=rank,
        own_rank=rank,
    )
