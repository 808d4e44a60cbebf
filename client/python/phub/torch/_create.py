"""Makes groups: what torch.distributed calls for the backend "phub"."""

from __future__ import annotations

import datetime
from typing import Any, Optional, Sequence

import torch.distributed as dist

from ._board import Board
from ._group import ProcessGroup
from ._membership import DEFAULT, Membership, process
from ._options import Options

# Of the last phub:// URL, until the next default group is made; then those of the default group,
# which its subgroups use, too.
_of_url: Optional[Options] = None
_of_default: Options = Options()


def use_url(options: Options) -> None:
    global _of_url
    _of_url = options


def create(given: Any, pg_options: Any = None) -> ProcessGroup:
    """given: torch's _DistributedBackendOptions."""
    global _of_url, _of_default
    is_default = not given.global_ranks_in_group
    options = pg_options
    if options is None:
        options = _of_default
        if is_default:
            options, _of_url = _of_url or Options(), None
    if not isinstance(options, Options):
        raise TypeError(f"pg_options must be phub.torch.Options, not {type(options).__name__}")
    if is_default:
        if options.priority_class is not None:
            raise ValueError("priority_class is for groups of new_group(), not the default group")
        _of_default = options
    elif pg_options is not None:
        options = options.for_group(_of_default)
    group = DEFAULT if is_default else str(given.group_id)
    known = process()
    generation = known.world_generation() if is_default else known.subgroup_generation(group)
    return ProcessGroup(
        Membership(
            options,
            given.store,
            given.group_rank,
            given.group_size,
            group,
            given.timeout.total_seconds(),
            generation,
            None if is_default else _host(options, given.global_ranks_in_group),
            given.global_ranks_in_group,
            None if is_default else _board(),
        )
    )


def _host(options: Options, ranks: Sequence[int]) -> Optional[Membership]:
    """The membership of the default group, if a group of these ranks may be in its job. The same on
    all ranks, if their options are."""
    world = dist.group.WORLD
    if not isinstance(world, ProcessGroup) or list(ranks) != sorted(ranks):
        return None
    return world._membership if world._membership.hosts(options) else None


def _board() -> Optional[Board]:
    world = dist.group.WORLD
    return world._membership.board if isinstance(world, ProcessGroup) else None


def create_group(
    store: Any,
    rank: int,
    world_size: int,
    *,
    name: str = "group",
    timeout: datetime.timedelta = datetime.timedelta(minutes=30),
    options: Optional[Options] = None,
) -> ProcessGroup:
    """A group that torch.distributed does not know, for frameworks that make groups themselves.

    store: of this group only, for example a torch.distributed.PrefixStore. name: a part of the
    name of the group's job. Groups of several ranks may be in one process.
    """
    seconds = timeout.total_seconds()
    return ProcessGroup(Membership(options or Options(), store, rank, world_size, name, seconds))
