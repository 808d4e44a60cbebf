"""Groups: ranks of a job that exchange keys of their own."""

from __future__ import annotations

import ctypes
import types
from typing import Any, Iterable, Optional

from . import _library, _types
from ._blocking import run_interruptibly
from ._errors import InvalidArgument, check
from ._key import Key
from ._key_spec import KeySpec, add_keys, layout_of, priority_number
from ._library import lib
from ._pool import Pool


class Group:
    """Some ranks of a job, with keys and pools of their own. Made by :meth:`phub.Job.new_group`.

    with job.new_group("pair", [0, 2]) as pair:    # on ranks 0 and 2
        key = pair.add_key("sum", 1000)
        key.gradients[:] = 1
        key.push_pull().wait()                     # waits for the two ranks only

    A group is a part of its job and uses its connections. The groups of a job are independent of
    each other and of the job's keys. Sums go in ascending rank, and a mean is that of the members.
    If a rank dies, the job ends, and so do its groups. Jobs with restart=True, sum="fixed" or
    several daemons cannot have groups, nor checkpoints of a job that had one. In a job that spans
    racks, a group of several racks only sums and broadcasts: it has no pools and no other
    movements.

    Every member makes the same calls in the same order, other ranks make none. One thread at a time
    uses a group. At its end, a context manager removes the group, unless an exception ends it.
    """

    def __init__(self, job: Any, name: str, pointer: int) -> None:
        self._pointer: Optional[int] = pointer
        self._job = job
        self._names: list[str] = []  # of keys and pools, as the job knows them
        self.name = name
        count = lib.phub_group_size(self._pointer)
        self.ranks: tuple[int, ...] = tuple(lib.phub_group_ranks(self._pointer)[:count])
        self.index = int(lib.phub_group_index(self._pointer))

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            lib.phub_group_free(pointer)

    def __repr__(self) -> str:
        return f"<phub.Group {self.name} of ranks {list(self.ranks)} of job {self._job.name}>"

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[types.TracebackType],
    ) -> None:
        # After an error the other members may never call remove(), which waits for them.
        if kind is None:
            self.remove()

    def add_key(
        self, name: str, shape: _types.Shape, dtype: Any = "float32", **options: Any
    ) -> Key:
        """Like :meth:`phub.Job.add_key`, for the members.

        Keys are collective, whether collective=True is given or not, and have no optimizer. Where a
        movement has parts, they are those of the members, in ascending rank. Roots, also of
        :meth:`phub.Key.broadcast`, are ranks of the job. The key's name is "NAME of group GROUP".
        """
        return self.add_keys([KeySpec(name, shape, dtype, **options)])[0]

    def add_keys(self, specs: Iterable[KeySpec]) -> list[Key]:
        """Adds keys in one round trip. If it fails, no key is added."""
        given = list(specs)
        layouts = [layout_of(spec, self.ranks, self._job.rank, self.name) for spec in given]
        keys = add_keys(lib.phub_group_add_keys, self, self._job, given, layouts)
        self._names += (key.name for key in keys)
        return keys

    def add_pool(
        self,
        name: str,
        capacity: int = 1 << 22,
        depth: int = 4,
        priority_class: Optional[str] = None,
        timeout: float = 1800.0,
    ) -> Pool:
        """Like :meth:`phub.Job.add_pool`, for the members. It is removed with the group."""
        shown = f"{name} of group {self.name}"
        pool = Pool(
            lib.phub_group_add_pool,
            self,
            self._job,
            name,
            shown,
            capacity,
            depth,
            priority_class,
            timeout,
        )
        self._names.append(f"pool {pool.name}")
        return pool

    def remove(self) -> None:
        """Gives back what the job holds for the group, with its keys and pools.

        Blocks until every member has called it. No key may have a round in flight. If it raises and
        the job still runs, the group can be used as before. Afterwards rounds of its keys are
        refused, and a new group may have its name. Not over RDMA.
        """

        def remove() -> None:
            check(lib.phub_group_remove, self._pointer)
            for name in self._names:
                self._job._lent.pop(name, None)
            self._names.clear()

        run_interruptibly(remove)


def _checked_ranks(job: Any, name: str, ranks: Iterable[int]) -> list[int]:
    given = [int(rank) for rank in ranks]
    for rank in given:
        if not 0 <= rank < job.world_size:
            raise InvalidArgument(
                f"group {name} of job {job.name}, rank {job.rank}: rank {rank} must be 0 to "
                f"{job.world_size - 1}",
                job=job.name,
                rank=job.rank,
                own_rank=job.rank,
            )
    return given


def new_group(
    job: Any, name: str, ranks: Iterable[int], priority_class: Optional[str] = None
) -> Group:
    """See :meth:`phub.Job.new_group`."""
    given = _checked_ranks(job, name, ranks)
    options = _library.GroupOptions()
    lib.phub_group_options_init(ctypes.byref(options), ctypes.sizeof(options))
    options.priority_class = priority_number(priority_class, f"group {name}")
    pointer = ctypes.c_void_p()
    check(
        lib.phub_job_new_group_with,
        job._pointer,
        name.encode(),
        (ctypes.c_uint32 * len(given))(*given),
        len(given),
        ctypes.byref(options),
        ctypes.byref(pointer),
    )
    assert pointer.value is not None
    return Group(job, name, pointer.value)


def new_groups(
    job: Any, groups: Iterable[tuple[str, Iterable[int]]], priority_class: Optional[str] = None
) -> list[Group]:
    """See :meth:`phub.Job.new_groups`."""
    given = [(name, _checked_ranks(job, name, ranks)) for name, ranks in groups]
    specs = (_library.GroupSpec * len(given))()
    for spec, (name, ranks) in zip(specs, given):
        lib.phub_group_spec_init(ctypes.byref(spec), ctypes.sizeof(spec))
        spec.name = name.encode()
        spec.ranks = (ctypes.c_uint32 * len(ranks))(*ranks)
        spec.count = len(ranks)
        spec.priority_class = priority_number(priority_class, f"group {name}")
    pointers = (ctypes.c_void_p * len(given))()
    check(lib.phub_job_new_groups, job._pointer, specs, len(given), pointers)
    return [
        Group(job, name, pointer) for pointer, (name, _) in zip(pointers, given) if pointer
    ]
