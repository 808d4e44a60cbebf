"""Collectives as transfers (phub.torch._transfer)."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from ._buffers import Buffer, all_of, in_order, joined
from ._operation import Operation
from ._reductions import Reductions
from ._submitter import SMALL_BYTES_MAX, once, sizes_of
from ._transfer import Transfer, move, move_parts, reduce
from ._types import name_of


# Up to so many ranks an all-to-all moves parts. The daemon holds one for each pair of ranks, and
# each rank sends a message for each.
_PAIRING_RANKS_MAX = 16


class Collectives(Reductions):
    """The collectives of one group. Each method starts one and returns its Operation."""

    def broadcast(
        self, name: str, tensors: Sequence[Any], root: int, timeout: Optional[float]
    ) -> Operation:
        self._check_rank(name, "root", root)
        is_root = self.rank == root
        buffers = [Buffer(each, name, read=is_root) for each in tensors]
        transfers = [
            move(
                root,
                buffer.bytes.numel(),
                buffer.bytes if is_root else None,
                None if is_root else buffer.bytes,
            )
            for buffer in buffers
        ]
        finish = None if is_root else all_of(buffers)
        details = f"(root {root}) of {sizes_of(tensors)}"
        return self._submit(name, details, once(transfers), list(tensors), finish, timeout)

    def all_gather(
        self,
        name: str,
        outputs: Sequence[Sequence[Any]],
        inputs: Sequence[Any],
        timeout: Optional[float],
        root: Optional[int] = None,
        result: Optional[list[Any]] = None,
        more: Optional[Callable[[], None]] = None,
    ) -> Operation:
        """outputs[i]: one tensor for each rank, which takes that rank's inputs[i]. root: the only
        rank with outputs. more: is done at the end."""
        wanted = root is None or root == self.rank
        sources = [Buffer(each, name) for each in inputs]
        targets: list[Buffer] = []
        transfers: list[Transfer] = []
        finishes: list[Callable[[], None]] = []
        for index, source in enumerate(sources):
            sizes = [source.bytes.numel()] * self.size
            into = None
            if wanted:
                if len(outputs[index]) != self.size:
                    raise ValueError(
                        f"{name}: {len(outputs[index])} outputs were given, but the group has "
                        f"{self.size} ranks"
                    )
                buffers = [Buffer(each, name, read=False) for each in outputs[index]]
                for each in buffers:
                    if each.dtype != source.dtype:
                        raise ValueError(
                            f"{name}: the input is {name_of(source.dtype)}, an output "
                            f"{name_of(each.dtype)}"
                        )
                into = [each.bytes for each in buffers]
                if root is None:
                    sizes = [each.numel() for each in into]
                if any(each.numel() != size for each, size in zip(into, sizes)) or (
                    sizes[self.rank] != source.bytes.numel()
                ):
                    raise ValueError(
                        f"{name}: the input has {source.count} elements, the outputs "
                        f"{[each.count for each in buffers]}"
                    )
                targets += buffers
            if root is None or sum(sizes) <= SMALL_BYTES_MAX:
                transfers += self._gather(sizes, source.bytes, into, finishes)
            else:
                transfers.append(self._gather_to_one(root, source.bytes, into, finishes))
        place = "" if root is None else f"(root {root})"
        details = f"{place} of {sizes_of(inputs)}"
        if result is None:
            result = [each for each in outputs[0]] if wanted and outputs else []
        finishes.append(all_of(targets))
        if more is not None:
            finishes.append(more)
        return self._submit(name, details, once(transfers), result, in_order(finishes), timeout)

    def _gather_to_one(
        self,
        root: int,
        source: Any,
        targets: Optional[Sequence[Any]],
        finishes: list[Callable[[], None]],
    ) -> Transfer:
        """targets: at the root, bytes for each rank's source."""
        transfer = move_parts(
            "gather_to_one", self.rank, self.size, source.numel(), source, None, root
        )
        if targets is not None:
            wanted = targets

            def finish() -> None:
                value, transfer.target = transfer.target, None
                for target, part in zip(wanted, value.view(self.size, -1)):
                    target.copy_(part)

            finishes.append(finish)
        return transfer

    def scatter(
        self,
        name: str,
        output: Any,
        inputs: Optional[Sequence[Any]],
        root: int,
        timeout: Optional[float],
    ) -> Operation:
        self._check_rank(name, "root", root)
        target = Buffer(output, name, read=False)
        size = target.bytes.numel()
        source = None
        if self.rank == root:
            if inputs is None or len(inputs) != self.size:
                raise ValueError(f"{name}: the root needs one input for each of {self.size} ranks")
            pieces = [Buffer(each, name) for each in inputs]
            for each in pieces:
                if each.bytes.numel() != size or each.dtype != target.dtype:
                    raise ValueError(f"{name}: inputs and output need the same size and type")
            source = joined([each.bytes for each in pieces])
        if size * self.size > SMALL_BYTES_MAX:
            transfer = move_parts(
                "scatter", self.rank, self.size, size, source, target.bytes, root
            )
        else:
            if source is not None:
                target.bytes.copy_(source[self.rank * size : (self.rank + 1) * size])
            transfer = move(
                root,
                size * self.size,
                source,
                None if self.rank == root else target.bytes,
                self.rank * size,
            )
        details = f"(root {root}) of {sizes_of([output])}"
        return self._submit(
            name, details, once([transfer]), [output], target.give_back, timeout
        )

    def all_to_all(
        self,
        name: str,
        output: Any,
        input: Any,
        output_counts: list[int],
        input_counts: list[int],
        timeout: Optional[float],
        finish: Optional[Callable[[], None]] = None,
        result: Optional[list[Any]] = None,
        equal: bool = False,
    ) -> Operation:
        """Flat tensors; counts[i]: elements to and from rank i. equal: they are the same on all
        ranks."""
        source, target = Buffer(input, name), Buffer(output, name, read=False)
        if source.dtype != target.dtype:
            raise ValueError(
                f"{name}: the input is {name_of(source.dtype)}, the output {name_of(target.dtype)}"
            )
        item = input.element_size()

        def stages() -> Iterator[tuple[list[Transfer], bool]]:
            table = torch.zeros(self.size * self.size, dtype=torch.int64)
            table[self.rank * self.size : (self.rank + 1) * self.size] = torch.tensor(
                input_counts, dtype=torch.int64
            )
            yield [reduce("sum", table, table)], False
            counts = table.view(self.size, self.size).tolist()
            self._check_counts(name, counts, output_counts)
            same = all(count == counts[0][0] for row in counts for count in row)
            if same and self._moves_pairs(len(source.bytes)):
                yield [self._all_to_all(source.bytes, target.bytes)], True
                return
            transfers = []
            offset = 0
            for root, row in enumerate(counts):
                first, size = sum(row[: self.rank]) * item, row[self.rank] * item
                into = target.bytes[offset : offset + size]
                offset += size
                if root == self.rank:
                    into.copy_(source.bytes[first : first + size])
                transfers.append(
                    move(
                        root,
                        sum(row) * item,
                        source.bytes if root == self.rank else None,
                        None if root == self.rank else into,
                        first,
                    )
                )
            yield transfers, True

        def finish_all() -> None:
            target.give_back()
            if finish is not None:
                finish()

        details, todo = f" of {name_of(source.dtype)}", stages()
        if equal and self._moves_pairs(len(source.bytes)):
            if source.count != target.count:
                raise ValueError(
                    f"{name}: the input has {source.count} elements, the output {target.count}"
                )
            details = f" in equal parts of {sizes_of([input])}"
            todo = once([self._all_to_all(source.bytes, target.bytes)])
        return self._submit(name, details, todo, result or [output], finish_all, timeout)

    def _moves_pairs(self, size: int) -> bool:
        return size > SMALL_BYTES_MAX and self.size <= _PAIRING_RANKS_MAX

    def _all_to_all(self, source: Any, target: Any) -> Transfer:
        begin, end = source.data_ptr(), source.data_ptr() + len(source)
        if target.data_ptr() < end and begin < target.data_ptr() + len(target):
            source = source.clone()  # parts would be overwritten before they are sent
        size = len(source) // self.size
        return move_parts("all_to_all", self.rank, self.size, size, source, target)

    def send(self, name: str, tensor: Any, sends: bool, text: str, timeout: float) -> Operation:
        """In a job of two ranks: from rank 0 to rank 1."""
        buffer = Buffer(tensor, name, read=sends)
        transfer = move(
            0,
            buffer.bytes.numel(),
            buffer.bytes if sends else None,
            None if sends else buffer.bytes,
        )
        finish = None if sends else buffer.give_back
        details = f" {text} of {sizes_of([tensor])}"
        return self._submit("send", details, once([transfer]), [tensor], finish, timeout)

    def barrier(self, timeout: Optional[float]) -> Operation:
        empty = torch.empty(0, dtype=torch.int32)
        return self._submit("barrier", "", once([reduce("sum", empty, None)]), [], None, timeout)
