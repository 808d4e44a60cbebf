"""Jobs: a worker's membership in a training run."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import types
from typing import Any, Callable, Iterable, Optional, Sequence, Union

from . import _library, _types
from ._blocking import run_interruptibly
from ._compression import Compression
from ._errors import DeadlineExceeded, check
from ._group import Group, new_group, new_groups
from ._key import Key
from ._key_spec import KeySpec, add_keys, layout_of
from ._library import lib
from ._optimizers import Optimizer
from ._pool import Pool
from ._record import NO_RECORDER, DumpRecord, c_recorder


@dataclasses.dataclass(frozen=True)
class IterationOutcome:
    """Results of iterations (apply="iteration")."""

    decided: int  # iterations applied or skipped
    skipped: int
    last_skipped: bool
    norm: float  # norm of the last iteration's gradients before clipping; only with clip_norm
    scale: float  # the factor that these gradients were multiplied by


class Job:
    """A worker's membership in a job. Made by :meth:`phub.Session.join`.

    A context manager: it leaves the job at its end. A job is also left when neither it nor a key of
    it is referred to any more, and when the interpreter exits; with restart=True not if an
    exception ends the process.
    """

    def __init__(
        self, pointer: int, name: str, rank: int, world_size: int, restart: bool
    ) -> None:
        self._pointer: Optional[int] = pointer
        self._restart = restart
        # The caller's arrays that phub uses, for each key: they must live while the job runs.
        self._lent: dict[str, tuple[Any, ...]] = {}
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self._process = os.getpid()
        self._recorder: Any = None  # libphub has its address

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[types.TracebackType],
    ) -> None:
        if kind is None:
            self.leave()
        elif not self._restart:  # otherwise, if the exception ends the process, it is a death
            self._leave_quietly()  # the exception says more than an error of leaving

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            lib.phub_job_free(pointer)

    def __repr__(self) -> str:
        return f"<phub.Job {self.name} rank {self.rank} of {self.world_size}>"

    @property
    def created(self) -> bool:
        """True if this rank was the first to join."""
        return bool(lib.phub_job_created(self._pointer))

    @property
    def resumed(self) -> bool:
        """True if this process replaces one that died (restart=True)."""
        return bool(lib.phub_job_resumed(self._pointer))

    @property
    def iteration(self) -> int:
        """The next iteration to compute, from 0."""
        return int(lib.phub_job_iteration(self._pointer))

    @property
    def transports(self) -> str:
        """Transports to the daemons when this rank joined, for example "shm" or "tcp"."""
        text: bytes = lib.phub_job_transports(self._pointer)
        return text.decode()

    def last_iteration(self) -> IterationOutcome:
        """The results of iterations, with apply="iteration"."""
        values = _library.IterationOutcome(struct_size=ctypes.sizeof(_library.IterationOutcome))
        check(lib.phub_job_last_iteration, self._pointer, values)
        return IterationOutcome(
            values.decided, values.skipped, bool(values.last_skipped), values.norm, values.scale
        )

    def check(self) -> None:
        """Raises the job's verdict if the job has ended."""
        check(lib.phub_job_status, self._pointer)

    def add_key(
        self,
        name: str,
        shape: _types.Shape,
        dtype: Any = "float32",
        optimizer: Optional[Optimizer] = None,
        *,
        operation: Optional[str] = None,
        gradient_dtype: Any = None,
        parameter_dtype: Any = None,
        priority: Optional[int] = None,
        priority_class: Optional[str] = None,
        copy: bool = False,
        movement: Optional[str] = None,
        root: int = 0,
        collective: bool = False,
        compression: Optional[Compression] = None,
    ) -> Key:
        """Adds a key. Every rank adds the same keys in the same order.

        operation: "sum", "mean", "min", "max" or "product" of the ranks' gradients; by default the
        mean with an optimizer, and the sum without. Integers also have "bitwise_and", "bitwise_or"
        and "bitwise_xor", but no mean.
        gradient_dtype, parameter_dtype: types in memory and on the wire; a float32 key may use
        float16 or phub.bfloat16.
        priority: among waiting keys, those with a higher priority are sent first.
        priority_class: see :meth:`new_group`; before `priority`.
        copy: the parameters are private memory, which this worker may write between rounds.
        movement: which parts of the key travel: "all_reduce" (the default), or one of these. They
        need a key without an optimizer, whose first extent is a multiple of the world size: it has
        an equal part for each rank. All but "reduce_scatter" move bytes.

        - "gather": `gradients` is this rank's part, `parameters` the parts of all ranks.
        - "reduce_scatter": `parameters` is this rank's part of the sum.
        - "all_to_all": part p of `gradients` becomes this rank's part of rank p's `parameters`.
        - "scatter": `parameters` is this rank's part of the root's `gradients`.
        - "gather_to_one": `gradients` is this rank's part, the root's `parameters` all parts.

        root: the rank that sends all parts of a "scatter", or receives those of a "gather_to_one".
        Other ranks have an empty array there.
        collective: the key is outside iterations, for collectives next to training: it does not
        count in `iteration`, with apply="iteration" it is applied at once, and checkpoints do not
        contain it. It has no optimizer. Not with restart=True.
        compression: phub.Int8(), phub.TopK(share) or phub.RandomK(share) of the gradients of a
        float32 key on the wire. The arrays stay float32. Not with sum="fixed"; TopK and RandomK not
        with restart=True.
        """
        spec = KeySpec(
            name,
            shape,
            dtype,
            optimizer,
            operation,
            gradient_dtype,
            parameter_dtype,
            priority,
            copy,
            movement=movement,
            root=root,
            collective=collective,
            compression=compression,
            priority_class=priority_class,
        )
        return self.add_keys([spec])[0]

    def add_bundle(
        self,
        name: str,
        shapes: Sequence[_types.Shape],
        dtype: Any = "float32",
        optimizer: Optional[Optimizer] = None,
        **options: Any,
    ) -> Key:
        """Adds a key of several tensors, laid end to end; see :meth:`Key.tensors`."""
        return self.add_keys([KeySpec(name, (), dtype, optimizer, tensors=shapes, **options)])[0]

    def add_keys(self, specs: Iterable[KeySpec]) -> list[Key]:
        """Adds keys in one round trip. If it fails, no key is added."""
        given = list(specs)
        ranks = range(self.world_size)
        layouts = [layout_of(spec, ranks, self.rank) for spec in given]
        return add_keys(lib.phub_job_add_keys, self, self, given, layouts)

    def add_pool(
        self,
        name: str,
        capacity: int = 1 << 22,
        depth: int = 4,
        priority_class: Optional[str] = None,
        timeout: float = 1800.0,
    ) -> Pool:
        """Adds a :class:`phub.Pool`: `depth` rounds of up to `capacity` bytes may be in flight.

        timeout: seconds that an operation may wait for a free round; 0: without limit.
        """
        return Pool(
            lib.phub_job_add_pool,
            self,
            self,
            name,
            name,
            capacity,
            depth,
            priority_class,
            timeout,
        )

    def new_group(
        self, name: str, ranks: Iterable[int], priority_class: Optional[str] = None
    ) -> Group:
        """A :class:`phub.Group` of some ranks of the job; this rank must be one of them.

        Calls no daemon: only the members call it, and they meet when they add the first keys.

        priority_class: "tensor", "pipeline" or "data" (the default), of keys and pools that state
        none; the same on all members. Rounds of higher classes are sent and answered first,
        whenever they were started. While others wait, one of 20 chunks is of the lowest class.
        """
        return new_group(self, name, ranks, priority_class)

    def new_groups(
        self,
        groups: Iterable[tuple[str, Iterable[int]]],
        priority_class: Optional[str] = None,
    ) -> list[Group]:
        """Several groups at once, as (name, ranks). Returns those that this rank is a member of.

        Every member of any of them gives the same list, other ranks need not call. Like
        :meth:`new_group` otherwise. In a job that spans racks, plans for groups of several racks
        are made together, to spread what they send over the links between racks, so declare groups
        that are used at the same time with one call, at most 64.
        """
        return new_groups(self, groups, priority_class)

    def remove_keys(self, keys: Iterable[Key]) -> None:
        """Gives back all that the job holds for collective keys; every rank calls it alike.

        Blocks until every rank has called it. `keys`: all keys of one or more of the last calls of
        add_keys() or add_key() that are not removed yet, without a round in flight. Without keys it
        waits for nobody, and raises FailedPrecondition if this rank cannot remove any. Not over
        RDMA, nor from the memory of these keys in rounds of other keys. If it raises and the job
        still runs, the keys can be used as before. Afterwards their rounds are refused. Memory that
        is shared with the daemon is freed when neither the keys nor their arrays are in use any
        more.
        """
        given = list(keys)
        pointers = (ctypes.c_void_p * len(given))(*(key._pointer for key in given))

        def remove() -> None:
            check(lib.phub_job_remove_keys, self._pointer, pointers, len(given))
            for key in given:
                self._lent.pop(key.name, None)

        run_interruptibly(remove)

    def barrier(self) -> None:
        """Blocks until every rank has called it as often as this rank."""
        run_interruptibly(lambda: check(lib.phub_job_barrier, self._pointer))

    def explain_barrier(self) -> str:
        """Which ranks barrier() or load_checkpoint() of this rank waits for; "" if none.

        For another thread while one of them blocks. The text also has the cycle if ranks wait for
        each other. "" too if the daemon does not answer within 2 s.
        """
        try:
            run_interruptibly(lambda: check(lib.phub_job_explain_barrier, self._pointer))
        except DeadlineExceeded as waits:
            return str(waits)
        return ""

    def set_recorder(self, recorder: Optional[Callable[[int], DumpRecord]]) -> None:
        """Sets what the program adds when an administrator runs `phubctl job dump`; None: nothing.

        `recorder` gets the largest useful size of text and json together in bytes. It is called in
        a thread of libphub, also while other threads wait in phub, and needs the interpreter lock:
        while the program holds that, only the program's part of the record is missing. It must not
        wait for this job. Returns after a call of the previous recorder has ended.
        """
        function = NO_RECORDER if recorder is None else c_recorder(recorder)
        check(lib.phub_job_set_recorder, self._pointer, function, None)
        self._recorder = function

    def save_checkpoint(
        self, directory: Union[str, "os.PathLike[str]"], lasts: bool = True
    ) -> int:
        """Saves a checkpoint while training continues; one rank calls it. Returns the iteration.

        lasts: False if the directory will be deleted soon: then errors, other ranks and
        `phubctl job get` do not name it as a checkpoint from which the job can start again.
        """
        save = lib.phub_job_save_checkpoint if lasts else lib.phub_job_save_copy
        return self._checkpoint(save, directory)

    def load_checkpoint(
        self, directory: Union[str, "os.PathLike[str]"] = "", lasts: bool = True
    ) -> int:
        """Loads a checkpoint from a directory of rank 0's host; every rank calls it.

        lasts: as in :meth:`save_checkpoint`; the same on every rank.
        """
        load = lib.phub_job_load_checkpoint if lasts else lib.phub_job_load_copy
        return self._checkpoint(load, directory)

    def leave(self) -> None:
        """Waits for rounds in flight (at most leave_timeout), and leaves the job."""
        run_interruptibly(lambda: check(lib.phub_job_leave, self._pointer))

    def _leave_quietly(self) -> None:
        # A forked child may not: the job belongs to its parent.
        if self._pointer and self._process == os.getpid():
            lib.phub_job_leave(self._pointer, None)

    def _abandon(self) -> None:
        """The process is about to end, and another one may take over the rank."""
        self._pointer = None

    def _checkpoint(self, function: Any, directory: Union[str, "os.PathLike[str]"]) -> int:
        iteration = ctypes.c_uint64()
        path = os.fsencode(directory)
        run_interruptibly(lambda: check(function, self._pointer, path, ctypes.byref(iteration)))
        return iteration.value
