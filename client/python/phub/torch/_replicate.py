"""Gives every rank the values of one rank, as in Horovod."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Iterable, Optional, Union

import torch
import torch.distributed as dist

from ._errors import NotServed
from ._names import Names
from ._rules import has_stepped
from ._updates import Updates

_wrapped: "weakref.WeakSet[Updates]" = weakref.WeakSet()


def register(updates: Updates) -> None:
    """Its parameters are kept by the daemon from now on."""
    _wrapped.add(updates)


def refuse_others(groups: list[dict[str, Any]], names: Names) -> None:
    """Raises ValueError for a parameter that another optimizer updates: each would undo what the
    other one does."""
    if _shared_with(groups) is not None:
        gc.collect()  # an optimizer that nobody has is alive until its cycles are collected
    found = _shared_with(groups)
    if found is not None:
        parameter, job = found
        raise ValueError(
            f"parameter {names.of(parameter)} belongs to another DistributedOptimizer or DiLoCo of "
            f"this process (job {job}), which updates it. Put each parameter into one optimizer, "
            "or call leave() of the other one first"
        )


def _shared_with(groups: list[dict[str, Any]]) -> Optional[tuple[Any, str]]:
    """A parameter of the groups that a wrapped optimizer updates, and the job of that one."""
    for updates in list(_wrapped):
        for group in groups:
            for parameter in group["params"]:
                if updates.has(parameter):
                    return parameter, updates.job.name
    return None


def broadcast_parameters(
    params: Union[dict[str, Any], Iterable[tuple[str, Any]]],
    root_rank: int = 0,
    process_group: Any = None,
) -> None:
    """Gives every rank, and the daemon, the parameters and buffers of one rank.

    Every rank of the group calls it, between steps. params: model.state_dict(), or
    model.named_parameters(). Parameters of a DistributedOptimizer go through its job, so the daemon
    has the new values, too; the optimizer's state does not change. Others are broadcast by the
    process group.
    """
    pairs = params.items() if isinstance(params, dict) else params
    rest = []
    chosen: dict[Updates, dict[Any, None]] = {}
    for _, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            continue
        found = False
        for updates in list(_wrapped):
            for bundle in updates.bundles_with(tensor.data_ptr()):
                chosen.setdefault(updates, {})[bundle] = None
                found = True
        if not found:
            rest.append(tensor)
    for updates, bundles in chosen.items():
        updates.values.replicate(bundles, root_rank)
    if not rest or not dist.is_initialized():
        return
    group = dist.group.WORLD if process_group is None else process_group
    root = dist.get_global_rank(group, root_rank)
    with torch.no_grad():
        for tensor in rest:
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, root, group=group)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(whole)


def broadcast_optimizer_state(
    optimizer: Any, root_rank: int = 0, process_group: Any = None
) -> None:
    """Gives every rank the hyper-parameters of one rank's parameter groups.

    Every rank calls it, between steps, before or after wrapping. The state of a
    DistributedOptimizer is in the daemon, the same for all ranks. State of an optimizer that is not
    wrapped is not broadcast: DistributedOptimizer() takes rank 0's.
    """
    if root_rank != 0 and not hasattr(optimizer, "_phub") and has_stepped(optimizer):
        raise NotServed(
            f"broadcast_optimizer_state from rank {root_rank} is not served for an optimizer that "
            "has state and is not wrapped: DistributedOptimizer() takes rank 0's state"
        )
    group = dist.group.WORLD if process_group is None else process_group
    values = [
        {name: value for name, value in each.items() if name not in ("params", "param_names")}
        for each in optimizer.param_groups
    ]
    box = [values]
    dist.broadcast_object_list(box, dist.get_global_rank(group, root_rank), group=group)
    for own, received in zip(optimizer.param_groups, box[0]):
        own.update(received)
