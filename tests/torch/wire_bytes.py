"""What the daemon counts: bytes that the ranks of a job and the daemon have sent each other, and
memory that is reserved for jobs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any, Callable

from ranks import PATIENCE_S

import torch.distributed as dist


def _phubctl(*command: str) -> Any:
    program, endpoint = os.environ["PHUB_TEST_PHUBCTL"], os.environ["PHUB_ENDPOINT"]
    done = subprocess.run(
        [program, "-e", endpoint, *command, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _counters() -> list[dict[str, Any]]:
    counters: list[dict[str, Any]] = _phubctl("stats")["counters"]
    return counters


def usage() -> dict[str, int]:
    """The memory_bytes, jobs, workers and keys that the daemon's only tenant uses."""
    (tenant,) = _phubctl("quota", "usage")["tenants"]
    names = ("memory_bytes", "jobs", "workers", "keys")
    return {name: int(tenant["usage"].get(name, 0)) for name in names}


def reserved() -> int:
    """The bytes that all jobs of the daemon have reserved."""
    return next(int(each["value"]) for each in _counters() if each["name"] == "phub_memory_bytes")


def all_is_of(jobs: int) -> bool:
    """The daemon has this number of jobs, and all reserved bytes are theirs: those of ended jobs
    are returned when their pages are free."""
    counters = _counters()
    own = [int(each["value"]) for each in counters if each["name"] == "phub_job_memory_bytes"]
    every = [int(each["value"]) for each in counters if each["name"] == "phub_memory_bytes"]
    return len(own) == jobs and sum(own) == sum(every)


def _counted(job: str) -> tuple[int, int]:
    values = {
        each["name"]: int(each["value"]) for each in _counters() if each.get("job") == job
    }
    return values["phub_job_gradient_bytes_total"], values["phub_job_reply_bytes_total"]


def _settled(job: str) -> tuple[int, int]:
    """A core loop may count a reply after its rank has received it."""
    end = time.monotonic() + PATIENCE_S
    before = _counted(job)
    while time.monotonic() < end:
        time.sleep(0.05)
        now = _counted(job)
        if now == before:
            return now
        before = now
    raise AssertionError(f"the counters of job {job} do not settle: {before}")


def moved(job: str, steps: Callable[[], None]) -> tuple[int, int]:
    """The bytes of all ranks, up and down, during steps(). Every rank calls it with an own job, not
    that of the default group. Rank 0 measures."""
    found = []
    for act in (lambda: None, steps):
        act()
        dist.barrier()
        box = [_settled(job) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, 0)
        found.append(box[0])
    (up, down), (up_after, down_after) = found
    return up_after - up, down_after - down
