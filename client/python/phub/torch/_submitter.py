"""What collectives have in common: submitting transfers, gathering, and checks."""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence

import torch

from ._copy import copy
from ._exchange import Exchange
from ._operation import Call
from ._transfer import Transfer, move, reduce
from ._types import name_of

# Up to this size of all ranks together, a gather is one sum in which every rank fills its own part,
# and a reduce-scatter is a sum: one chunk, not one for each rank.
SMALL_BYTES_MAX = 1 << 15


def sizes_of(tensors: Sequence[Any]) -> str:
    """"1000 float32" or "3 tensors: 10, 20, 30 float32"."""
    if not tensors:
        return "0 tensors"
    counts = ", ".join(str(each.numel()) for each in tensors[:8])
    more = f"{len(tensors)} tensors: " if len(tensors) > 1 else ""
    tail = ", ..." if len(tensors) > 8 else ""
    total = f" (together {sum(each.numel() for each in tensors)})" if tail else ""
    return f"{more}{counts}{tail}{total} {name_of(tensors[0].dtype)}"


class Submitter:
    """Starts the transfers of one group."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.rank = exchange.job.rank
        self.size = exchange.job.world_size

    def _gather(
        self,
        call: Call,
        sizes: list[int],
        source: Any,
        targets: Optional[Sequence[Any]],
    ) -> list[Transfer]:
        """targets: bytes for each rank's source; None: not wanted here. sizes: bytes of each rank,
        known to all."""
        if sum(sizes) <= SMALL_BYTES_MAX:
            return self._summed_gather(call, sizes, source, targets)
        if targets is not None and _is_overwritten(source, targets, self.rank):
            sent = torch.empty_like(source)
            call.preparations.append(functools.partial(copy, sent, source))
            source = sent
        transfers = []
        for root, size in enumerate(sizes):
            target = None if targets is None else targets[root]
            if root == self.rank:
                if target is not None and target.data_ptr() != source.data_ptr():
                    call.preparations.append(functools.partial(copy, target, source))
                target = None
            transfers.append(move(root, size, source if root == self.rank else None, target))
        return transfers

    def _summed_gather(
        self, call: Call, sizes: list[int], source: Any, targets: Optional[Sequence[Any]]
    ) -> list[Transfer]:
        begin = sum(sizes[: self.rank])
        whole = torch.zeros(sum(sizes), dtype=torch.uint8, device="cpu")
        own = whole[begin : begin + len(source)]
        call.preparations.append(functools.partial(copy, own, source))
        if targets is None:
            return [reduce("sum", whole, None)]
        wanted = targets

        def finish() -> None:
            for target, value in zip(wanted, whole.split(sizes)):
                copy(target, value)

        call.finishes.append(finish)
        return [reduce("sum", whole, whole)]

    # ---- Checks --------------------------------------------------------------------------------

    def _check_rank(self, name: str, what: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}: {what} {rank} is not a rank of the group of {self.size}")

    def _check_list(self, name: str, what: str, tensors: Sequence[Any], own: Any) -> None:
        if len(tensors) != self.size:
            raise ValueError(
                f"{name}: {len(tensors)} {what}s were given, but the group has {self.size} ranks"
            )
        mine = tensors[self.rank]
        if mine.numel() != own.numel() or any(each.dtype != own.dtype for each in tensors):
            raise ValueError(
                f"{name}: the {what} for rank {self.rank} has {sizes_of([mine])}, the output "
                f"{sizes_of([own])}"
            )

    def _check_counts(self, name: str, counts: list[list[int]], expected: list[int]) -> None:
        for root, row in enumerate(counts):
            if row[self.rank] != expected[root]:
                raise ValueError(
                    f"{name}: rank {root} sends {row[self.rank]} elements to rank {self.rank}, "
                    f"which expects {expected[root]}"
                )


def _is_overwritten(source: Any, targets: Sequence[Any], rank: int) -> bool:
    """Whether the source would be written while it is sent: it is partly in the targets. In the
    place of this rank's part it stays as it is."""
    begin, end = source.data_ptr(), source.data_ptr() + source.numel()
    return begin != targets[rank].data_ptr() and any(
        each.data_ptr() < end and begin < each.data_ptr() + each.numel() for each in targets
    )
