"""Pools: all-reduces and broadcasts of any type and length, next to training."""

from __future__ import annotations

import collections
import ctypes
import math
from typing import Any, Callable, Optional

import numpy as np

from . import _library, _types
from ._blocking import run_interruptibly
from ._errors import InvalidArgument, check
from ._key_spec import OPERATIONS, priority_number
from ._library import lib
from ._rounds import Handle
from ._types import Array


class PoolHandle(Handle):
    """A started operation of a pool. ``results`` are complete after :meth:`wait`."""

    def __init__(self, started: "_Started", pool: "Pool", results: Array) -> None:
        super().__init__(started.pointer, pool)
        self._started = started
        self.results = results

    def __del__(self) -> None:
        """Its operation frees the pointer."""


class Pool:
    """All-reduces and broadcasts that need no key. Made by :meth:`phub.Job.add_pool` and
    :meth:`phub.Group.add_pool`.

    pool = job.add_pool("metrics")
    handle = pool.all_reduce(np.array([loss, accuracy]), operation="mean")
    handle.wait()
    handle.results            # of all ranks

    What the daemon holds for a pool is reserved when it is added: operations make no call to the
    daemon. Every rank starts the same operations in the same order. If they differ in type,
    operation or length, the job ends with an error that names both ranks and both operations.
    Their rounds are outside iterations and checkpoints.
    """

    def __init__(
        self,
        add: Any,
        owner: Any,
        job: Any,
        name: str,
        shown: str,
        capacity: int,
        depth: int,
        priority_class: Optional[str],
        timeout: float,
    ) -> None:
        """add: the C function that adds it to `owner`, the job or a group. shown: its name in
        errors."""
        options = _library.PoolOptions()
        lib.phub_pool_options_init(ctypes.byref(options), ctypes.sizeof(options))
        options.name = name.encode()
        options.capacity_bytes, options.depth = capacity, depth
        options.timeout_ms = math.ceil(timeout * 1000)
        options.priority_class = priority_number(priority_class, f"pool {shown}")
        pointer = ctypes.c_void_p()
        self._pointer: Optional[int] = None
        run_interruptibly(lambda: check(add, owner._pointer, options, ctypes.byref(pointer)))
        self._pointer = pointer.value
        self._job = job
        self.name = shown
        self.capacity = capacity
        self.depth = depth
        # Arrays that phub uses, which must live while the job runs.
        self._lent: collections.deque[_Started] = collections.deque()
        job._lent[f"pool {self.name}"] = (self._lent,)

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            lib.phub_pool_free(pointer)

    def __repr__(self) -> str:
        return f"<phub.Pool {self.name} of job {self._job.name}>"

    def would_wait(self) -> bool:
        """Whether an operation of one round would wait now: see :meth:`all_reduce`."""
        return bool(lib.phub_pool_would_wait(self._pointer, None))

    def all_reduce(
        self,
        values: Any,
        results: Optional[Array] = None,
        operation: str = "sum",
        *,
        dtype: Any = None,
    ) -> PoolHandle:
        """Starts an operation: "sum", "mean", "min", "max" or "product" of the ranks' values;
        integers also have "bitwise_and", "bitwise_or" and "bitwise_xor", but no mean.

        values, results: contiguous arrays of the same type and size, which are the same array or do
        not overlap; phub uses them until the handle is complete. results: default: a new array.
        After an error its contents are undefined.
        dtype: the arrays' type; needed for phub.bfloat16 in arrays of uint16.

        An operation of up to `capacity` bytes is one round, a longer one several. At most `depth`
        rounds are in flight: this waits while the next one would exceed that. After the pool's
        timeout it raises phub.DeadlineExceeded, which names the ranks that have not started the
        operation in flight. If nothing of this operation was started, it can be started again;
        otherwise the job ends.
        """
        if not isinstance(values, np.ndarray):
            values = np.asarray(values)
        if operation not in OPERATIONS:
            raise InvalidArgument(
                f"operation is {operation!r}; it must be one of {', '.join(OPERATIONS)}",
                **self._place(),
            )
        number = _types.number_of(values.dtype if dtype is None else dtype)
        taken = np.empty_like(values, order="C") if results is None else results
        sent = self._lend(values, "values", number, values.shape, writable=False)
        received = self._lend(taken, "results", number, values.shape, writable=True)

        def start(handle: Any) -> None:
            number = OPERATIONS[operation]
            check(lib.phub_pool_all_reduce, self._pointer, sent, received, number, handle)

        return self._start(start, sent, values, taken)

    def broadcast(self, values: Array, root: int = 0, *, dtype: Any = None) -> PoolHandle:
        """Starts an operation that copies rank root's ``values`` to those of all other ranks.

        values: a contiguous array of the same type and size on all ranks, writable on all but the
        root; phub uses it until the handle is complete. ``results`` of the handle are ``values``.
        root: a rank of the job, and of the group if the pool belongs to one. dtype and the rest:
        see :meth:`all_reduce`. In a pool of a group of two ranks, broadcasts are messages.
        """
        number = _types.number_of(np.asarray(values).dtype if dtype is None else dtype)
        writable = self._job.rank != root
        lent = self._lend(values, "values", number, values.shape, writable=writable)

        def start(handle: Any) -> None:
            check(lib.phub_pool_broadcast, self._pointer, lent, root, handle)

        return self._start(start, lent, values, values)

    def _start(
        self, call: Callable[[Any], None], lent: Any, values: Array, results: Array
    ) -> PoolHandle:
        """call: starts the operation and sets the phub_handle pointer that it is given."""

        def start() -> "_Started":
            handle = ctypes.c_void_p()
            call(ctypes.byref(handle))
            assert handle.value is not None
            started = _Started(handle.value, values, results)
            self._lent.append(started)
            return started

        while self._lent and lib.phub_handle_test(self._lent[0].pointer):
            self._lent.popleft()
        # If the wait is interrupted, the operation starts nevertheless: other ranks start it, too.
        waits = lib.phub_pool_would_wait(self._pointer, lent)
        started = run_interruptibly(start) if waits else start()
        return PoolHandle(started, self, results)

    def remove(self) -> None:
        """Gives back all that the job holds for the pool; every rank calls it alike.

        The rules of :meth:`phub.Job.remove_keys` apply: it blocks until every rank has called it,
        no operation is in flight, and keys and pools that were added later are removed before.
        A pool of a group is removed with its group.
        """

        def remove() -> None:
            check(lib.phub_job_remove_pool, self._job._pointer, self._pointer)
            self._job._lent.pop(f"pool {self.name}", None)

        run_interruptibly(remove)

    def _lend(
        self, array: Any, what: str, number: int, shape: tuple[int, ...], writable: bool
    ) -> _library.Elements:
        return _types.lend(array, what, number, shape, writable, owner="pool", **self._place())

    def _place(self) -> dict[str, Any]:
        rank = self._job.rank
        return {"job": self._job.name, "key": self.name, "rank": rank, "own_rank": rank}


class _Started:
    """Frees a phub_handle when neither its PoolHandle nor the job needs it."""

    def __init__(self, pointer: int, values: Array, results: Array) -> None:
        self.pointer = pointer
        self._arrays = (values, results)

    def __del__(self) -> None:
        lib.phub_handle_free(self.pointer)
