"""This process's membership in groups: sessions with daemons, jobs, and how they end."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import weakref
from typing import Any, Optional

from .. import _errors
from .._job import Job
from .._session import Session, connect
from ._collectives import Collectives
from ._errors import CollectiveError
from ._exchange import Engine, Exchange
from ._operation import Operation
from ._options import Options
from ._recorder import dump_record
from ._tagged import OWN_MAX, Receiver, Sender
from ._watch import Watch

LEAVE_S = 5.0  # for collectives that other ranks have called, too
_DRAIN_S = 1.0  # then for rounds that cannot complete


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


def _forget(store: Any, key: str, readers: int) -> None:
    """The last reader deletes the key: a process may make any number of groups with one store."""
    read = f"{key}/read"
    if readers == 1 or store.add(read, 1) == readers:
        for each in (key, read) if readers > 1 else (key,):
            try:
                store.delete_key(each)
            except (NotImplementedError, RuntimeError):
                pass  # this kind of store keeps its keys


def _is_shared(tag: int) -> bool:
    """The tag shares a job with others. The same on both ranks."""
    return not 0 <= tag < OWN_MAX


class Membership:
    """In one group."""

    def __init__(
        self,
        options: Options,
        store: Any,
        rank: int,
        size: int,
        group: str,
        timeout: float,
        generation: str = "0",
    ) -> None:
        """generation: differs from those of groups of this name that the store has seen before."""
        self.rank, self.size = rank, size
        self._options = options
        self._store = store
        self._process = process()
        self._session = self._process.session(options)
        self.job_name, self._bucket_bytes = agreed(
            options, store, rank, size, group, generation
        )
        self._prefix = f"phub/{generation}"
        self.exchange = self._join(self.job_name, rank, size, self._prefix, timeout)
        self.collectives = Collectives(self.exchange)
        self._lock = threading.Lock()
        self._paths: dict[str, Exchange] = {}
        self._senders: dict[int, Sender] = {}  # by peer, for tags that share a job
        self._receivers: dict[int, Receiver] = {}
        self._left = False
        self._process.members.add(self)

    def _join(self, name: str, rank: int, size: int, prefix: str, timeout: float) -> Exchange:
        job = self._session.join(
            name,
            rank,
            size,
            screening="off",
            transport=self._options.transport,
            leave_timeout=_DRAIN_S,
        )
        exchange = Exchange(self._process.engine, job, timeout, self._bucket_bytes)
        self._process.watch.add(exchange, self._store, prefix)
        _record(exchange)
        return exchange

    def send(self, tensor: Any, peer: int, tag: int) -> Operation:
        place = f"from rank {self.rank} to rank {peer}"
        path = self._path("send", self.rank, peer, tag)
        if _is_shared(tag):
            with self._lock:
                sender = self._senders.setdefault(peer, Sender(path, place))
            return sender.send(tensor, tag)
        return path.submit(
            Collectives.message_call("send", tensor, True, f"{place}, tag {tag}", path.timeout)
        )

    def receive(self, tensor: Any, peer: int, tag: int) -> Operation:
        place = f"from rank {peer} to rank {self.rank}"
        path = self._path("recv", peer, self.rank, tag)
        if _is_shared(tag):
            with self._lock:
                receiver = self._receivers.setdefault(peer, Receiver(path, place))
            return receiver.receive(tensor, tag)
        return path.submit(
            Collectives.message_call("recv", tensor, False, f"{place}, tag {tag}", path.timeout)
        )

    def _path(self, name: str, source: int, target: int, tag: int) -> Exchange:
        """The job of two ranks for this direction and tag."""
        peer = target if source == self.rank else source
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(
                f"{name}: rank {peer} is not another rank of the group of {self.size}"
            )
        text = f"{source}-{target}.{'tags' if _is_shared(tag) else tag}"
        with self._lock:
            path = self._paths.get(text)
            if path is None:
                path = self._join(
                    f"{self.job_name}.{text}",
                    0 if source == self.rank else 1,
                    2,
                    f"{self._prefix}/{text}",
                    self.exchange.timeout,
                )
                self._paths[text] = path
            return path

    def leave(self, patience: Optional[float] = None) -> None:
        """Waits `patience` seconds (default: LEAVE_S) for collectives in flight, and leaves the
        group's jobs."""
        with self._lock:
            if self._left:
                return
            self._left = True
            exchanges = [self.exchange, *self._paths.values()]
        for exchange in exchanges:
            leave(exchange, LEAVE_S if patience is None else patience)
            self._process.watch.remove(exchange)
        self._store = None


def _record(exchange: Exchange) -> None:
    """Adds the group's last collectives to what `phubctl job dump` shows of this rank."""
    recorder, lock = exchange.recorder, exchange.lock  # not the exchange: it refers to the job
    exchange.job.set_recorder(lambda bytes_max: dump_record(recorder, lock, bytes_max))


def leave(exchange: Exchange, patience: float) -> None:
    exchange.idle(patience)
    job: Job = exchange.job
    exchange.fail(
        CollectiveError(
            f"rank {job.rank} has left the group of job {job.name}",
            job=job.name,
            rank=job.rank,
            own_rank=job.rank,
        )
    )
    job._leave_quietly()
    exchange.release()
