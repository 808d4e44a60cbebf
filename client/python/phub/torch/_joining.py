"""How the ranks of a DistributedOptimizer meet: in the store of a process group, or, with
restart=True, only in a job whose name a restarted process knows."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from typing import Any, Optional

import torch.distributed as dist

from .._job import Job
from ._descriptions import Description
from ._errors import OptimizerError, as_optimizer_error
from ._group import ProcessGroup
from ._membership import agreed, process
from ._notes import Notes
from ._options import Options, place
from ._ranks import listed_ranks
from ._rules import has_stepped
from ._settings import Settings

_PATIENCE_S = 10.0  # for what another rank is about to write


@dataclasses.dataclass(frozen=True)
class Joined:
    """The job of one optimizer, and what its ranks tell each other outside of it."""

    job: Job
    notes: Notes
    store: Any  # of this optimizer; None with restart=True

    def has_state(self, optimizer: Any) -> bool:
        """Whether rank 0's optimizer has state of earlier steps. With restart=True: this rank's."""
        if self.store is None:
            return has_stepped(optimizer)
        if self.job.rank == 0:
            self.store.set("state", "1" if has_stepped(optimizer) else "0")
        return bytes(self.store.get("state")) == b"1"


def join(
    group: Any, options: Optional[Options], settings: Settings, description: Description
) -> Joined:
    """Joins the job of the next optimizer of the group, or of this process with restart=True."""
    if settings.restart:
        return _join_alone(group, options or Options(), settings)
    if not dist.is_initialized():
        raise OptimizerError(
            "DistributedOptimizer needs a process group: call "
            "torch.distributed.init_process_group() first, with any backend. Or pass "
            "restart=True, which needs none"
        )
    if group is None:
        group = dist.group.WORLD
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise OptimizerError("this process is not in the process group of the optimizer")
    _, store = dist.distributed_c10d._world.pg_map[group]
    if options is None:
        options = group._membership._options if isinstance(group, ProcessGroup) else Options()
    number = process().generation(f"optimizers of {dist.distributed_c10d._world.pg_names[group]}")
    store = dist.PrefixStore(f"phub/optimizer/{number}", store)
    _compare(store, rank, size, settings, description, number)
    name, _ = agreed(options, store, rank, size, f"optimizer{number}", "0")
    job = _join_job(name, rank, size, options, settings)
    return Joined(job, Notes(store, rank, size), store)


def _join_alone(group: Any, options: Options, settings: Settings) -> Joined:
    if group is not None:
        raise ValueError(
            "restart=True cannot be combined with process_group: a group of torch ends when one "
            "of its ranks dies"
        )
    here = place(what="restart=True")
    run = options.job or os.environ.get("PHUB_RUN") or here.run
    if not run:
        raise ValueError(
            "restart=True needs a name that a restarted process knows and no other run has: pass "
            'options=phub.torch.Options(job="...") or set PHUB_RUN'
        )
    # A new process counts from 0 again, so its optimizers get the numbers of those before.
    number = process().generation(f"optimizers of {run}")
    job = _join_job(f"{run}.optimizer{number}", here.rank, here.size, options, settings)
    return Joined(job, Notes(None, here.rank, here.size), None)


def _join_job(name: str, rank: int, size: int, options: Options, settings: Settings) -> Job:
    session = process().session(options)
    with as_optimizer_error(f"rank {rank} cannot join job {name}"):
        return session.join(
            name,
            rank,
            size,
            transport=options.transport,
            join_timeout=settings.timeout,
            apply="iteration" if settings.whole else "chunk",
            clip_norm=settings.clip_norm,
            skip_nonfinite=settings.skip_nonfinite,
            screening=settings.screened,
            sum=settings.sum,
            restart=settings.restart,
            on_loss="wait" if settings.restart else "fail",
            wait_timeout=settings.timeout,
        )


def _compare(
    store: Any, rank: int, size: int, settings: Settings, description: Description, number: int
) -> None:
    """Raises on all ranks if they differ: a rank that is refused would be waited for. number: how
    many optimizers the group had before."""
    own = {"call": description.call, **dataclasses.asdict(settings)}
    own["compression"] = repr(settings.compression)
    own["wrapped"] = description.digest()
    store.set(f"settings/{rank}", json.dumps(own))
    _await_settings(store, rank, size, settings.timeout, number)
    for other in range(size):
        theirs = json.loads(bytes(store.get(f"settings/{other}")))
        for name, value in own.items():
            if theirs.get(name) == value:
                continue
            if name == "call":
                text = f"rank {rank} calls {value}(), but rank {other} calls {theirs.get(name)}()"
            elif name == "wrapped":
                found = _difference(store, rank, other, description, settings.timeout)
                text = f"{description.call} needs the same optimizer on all ranks, but {found}"
            else:
                text = (
                    f"{description.call} needs the same settings on all ranks, but rank {rank} has "
                    f"{name}={value} and rank {other} has {name}={theirs.get(name)}"
                )
            raise OptimizerError(text, rank=other, own_rank=rank)


def _difference(
    store: Any, rank: int, other: int, description: Description, timeout: float
) -> str:
    """Between this rank and another one, which also finds that they differ."""
    try:
        store.set(f"wrapped/{rank}", description.text())
        theirs = f"wrapped/{other}"
        store.wait([theirs], datetime.timedelta(seconds=min(timeout, _PATIENCE_S)))
        text = bytes(store.get(theirs)).decode()
        found = description.difference(Description.parsed(text), rank, other)
        store.set(f"has read/{rank}/{other}", "")
        if rank == 0:  # usually the store's process, which may end now
            read = f"has read/{other}/0"
            store.wait([read], datetime.timedelta(seconds=min(timeout, _PATIENCE_S)))
    except RuntimeError:  # the other rank has ended, or the store's process
        found = None
    return found or f"those of rank {rank} and rank {other} differ"


def _await_settings(store: Any, rank: int, size: int, timeout: float, number: int) -> None:
    """Waits until every rank wraps this optimizer, too."""
    names = [f"settings/{other}" for other in range(size)]
    try:
        store.wait(names, datetime.timedelta(seconds=timeout))
    except RuntimeError as error:
        absent = [other for other, name in enumerate(names) if not store.check([name])]
        if not absent:
            raise
        have = "has" if len(absent) == 1 else "have"
        raise OptimizerError(
            f"rank {rank} wraps optimizer {number + 1} of this process group, but "
            f"{listed_ranks(absent)} {have} not called DistributedOptimizer() or DiLoCo() for it "
            f"within {timeout:g} s, the timeout of the optimizer. Every rank must wrap the same "
            "optimizers, in the same order",
            rank=absent[0],
            own_rank=rank,
        ) from error
