"""A group of torch that is a group of the default group's job (phub/group.h), not a job of its own.

It shares the job's connections, and adding and removing it is a call to the daemon for each member.
Ranks here are those of torch's group, which has them in ascending order.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, Optional, Sequence, Union

from .._errors import Error, FailedPrecondition, check
from .._group import Group
from .._job import Job
from .._library import lib
from ._errors import CollectiveError


class Subgroup:
    """Has what an exchange needs of a job."""

    def __init__(self, job: Job, label: str, ranks: Sequence[int]) -> None:
        """ranks: the members in the job, ascending."""
        self._job = job
        self.group: Group = job.new_group(label, ranks)
        self.name = f"{job.name}, group {label}"
        self.rank = self.group.index
        self.world_size = len(self.group.ranks)

    @property
    def _pointer(self) -> Optional[int]:
        return self._job._pointer

    def _leave_quietly(self) -> None:
        """A group that has failed stays until the job is left: its rounds may be in flight."""

    def remove(self, then: Callable[[], None]) -> None:
        """Begins to remove the group from the job, which waits for every member; afterwards calls
        `then`. If it cannot be removed, it stays until the job is left."""

        def run() -> None:
            try:
                self.group.remove()
            except Error:
                return
            then()

        threading.Thread(target=run, name="phub-group-end", daemon=True).start()


AnyJob = Union[Job, Subgroup]


def begin(job: AnyJob, label: str, ranks: Sequence[int]) -> Optional[Subgroup]:
    """A group in the job. None: the job cannot have groups that come and go. Over RDMA they would
    stay."""
    if not isinstance(job, Job) or "verbs" in job.transports:
        return None
    try:
        check(lib.phub_job_status, job._pointer)
        check(lib.phub_job_remove_keys, job._pointer, None, 0)
        return Subgroup(job, label, ranks)
    except Error:
        return None


def follow(job: Optional[AnyJob], label: str, ranks: Sequence[int]) -> Subgroup:
    """The group that rank 0 has begun."""
    if not isinstance(job, Job):
        raise CollectiveError(
            "rank 0 of the group made it in the job of the default group, where this rank has "
            "other options; pass the same pg_options on all ranks"
        )
    return Subgroup(job, label, ranks)


def add_keys(job: AnyJob, specs: Any, count: int) -> list[int]:
    """The pointers of the added keys. Roots of the specs are ranks of `job`."""
    pointers = (ctypes.c_void_p * count)()
    if isinstance(job, Subgroup):
        check(lib.phub_group_add_keys, job.group._pointer, specs, count, pointers)
    else:
        check(lib.phub_job_add_keys, job._pointer, specs, count, pointers)
    return [int(pointer or 0) for pointer in pointers]


def check_removal(job: AnyJob) -> None:
    """Raises FailedPrecondition if this rank cannot remove single keys of `job`."""
    if isinstance(job, Subgroup):
        raise FailedPrecondition("keys of a group are removed with the group")
    check(lib.phub_job_remove_keys, job._pointer, None, 0)


def rank_in_job(job: AnyJob, rank: int) -> int:
    return job.group.ranks[rank] if isinstance(job, Subgroup) else rank
