"""Collectives as transfers (phub.torch._transfer)."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from ._buffers import Buffer, all_of, in_order
from ._operation import Operation
from ._reductions import Reductions
from ._submitter import once, sizes_of
from ._transfer import Transfer, move, reduce
from ._types import name_of


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
            transfers += self._gather(sizes, source.bytes, into, finishes)
        place = "" if root is None else f"(root {root})"
        details = f"{place} of {sizes_of(inputs)}"
        if result is None:
            result = [each for each in outputs[0]] if wanted and outputs else []
        finishes.append(all_of(targets))
        if more is not None:
            finishes.append(more)
        return self._submit(name, details, once(transfers), result, in_order(finishes), timeout)

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
            source = torch.cat([each.bytes for each in pieces])
            target.bytes.copy_(pieces[self.rank].bytes)
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
    ) -> Operation:
        """Flat tensors; counts[i]: elements to and from rank i."""
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

        return self._submit(
            name, f" of {name_of(source.dtype)}", stages(), result or [output], finish_all, timeout
        )

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
