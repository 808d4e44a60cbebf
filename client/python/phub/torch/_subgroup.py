"""What is a group of a job (phub/group.h), not a job of its own: groups of torch in the default
group's job, and streams of messages.

A group shares the job's connections, and adding and removing it is a call to the daemon for each
member. Ranks here are indices: the members are in ascending order.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence, Union

from .._errors import Error, FailedPrecondition, check
from .._group import Group
from .._job import Job
from .._library import lib
from ._errors import CollectiveError


class Subgroup:
    """Has what an exchange needs of a job."""

    def __init__(
        self, job: Job, label: str, ranks: Sequence[int], priority_class: Optional[str]
    ) -> None:
        """ranks: the members in the job, ascending."""
        self.job = job
        self.label = label
        self.group: Group = job.new_group(label, ranks, priority_class)
        self.priority_class = priority_class
        self.name = f"{job.name}, group {label}"
        self.rank = self.group.index
        self.world_size = len(self.group.ranks)
        self.batches = 0  # of keys

    @property
    def _pointer(self) -> Optional[int]:
        return self.job._pointer

    def _leave_quietly(self) -> None:
        """A group that has failed stays until the job is left: its rounds may be in flight."""


AnyJob = Union[Job, Subgroup]


def begin(
    job: AnyJob, label: str, ranks: Sequence[int], priority_class: Optional[str]
) -> Optional[Subgroup]:
    """A group in the job. None: the job cannot have groups that come and go. Over RDMA they would
    stay."""
    if not isinstance(job, Job) or "verbs" in job.transports:
        return None
    try:
        check(lib.phub_job_status, job._pointer)
        check(lib.phub_job_remove_keys, job._pointer, None, 0)
        return Subgroup(job, label, ranks, priority_class)
    except Error:
        return None


def follow(
    job: Optional[AnyJob], label: str, ranks: Sequence[int], priority_class: Optional[str]
) -> Subgroup:
    """The group that rank 0 has begun."""
    if not isinstance(job, Job):
        raise CollectiveError(
            "rank 0 of the group made it in the job of the default group, where this rank has "
            "other options; pass the same pg_options on all ranks"
        )
    return Subgroup(job, label, ranks, priority_class)


def of_messages(job: AnyJob, stream: str, ranks: Sequence[int]) -> Optional[Subgroup]:
    """The group of a stream between two ranks of `job`, ascending. None: the job cannot have
    groups, which is the same on all ranks."""
    label, priority_class = f"send.{stream}", None
    if isinstance(job, Subgroup):
        label, priority_class = f"{job.label}.{label}", job.priority_class
        ranks = [job.group.ranks[rank] for rank in ranks]
        job = job.job
    try:
        check(lib.phub_job_status, job._pointer)
    except Error as error:
        text = f"rank {job.rank} of job {job.name}: {error}"
        raise CollectiveError(text, job=job.name, rank=error.rank, own_rank=job.rank) from error
    try:
        return Subgroup(job, label, ranks, priority_class)
    except FailedPrecondition:
        return None


def add_keys(job: AnyJob, specs: Any, count: int) -> list[int]:
    """The pointers of the added keys. Roots of the specs are ranks of `job`."""
    pointers = (ctypes.c_void_p * count)()
    if isinstance(job, Subgroup):
        check(lib.phub_group_add_keys, job.group._pointer, specs, count, pointers)
        job.batches += 1
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
