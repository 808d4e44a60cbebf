"""Collectives as transfers (phub.torch._transfer)."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from ._buffers import Buffer
from ._copy import copy, join
from ._operation import Call, Operation
from ._receivers import receivers
from ._reductions import Reductions
from ._submitter import SMALL_BYTES_MAX, sizes_of
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
        call = Call(name, timeout, f"(root {root}) of {sizes_of(tensors)}", result=list(tensors))
        buffers = [Buffer(each, name, read=is_root) for each in tensors]
        for buffer in buffers:
            source, target = (buffer.bytes, None) if is_root else (None, buffer.bytes)
            call.transfers.append(move(root, buffer.bytes.numel(), source, target))
        if is_root:
            call.sources = buffers
        else:
            call.targets = buffers
        return self.exchange.submit(call)

    def all_gather(
        self,
        name: str,
        outputs: Sequence[Sequence[Any]],
        inputs: Sequence[Any],
        timeout: Optional[float],
        root: Optional[int] = None,
        result: Optional[list[Any]] = None,
        targets: Sequence[Buffer] = (),
    ) -> Operation:
        """outputs[i]: one tensor for each rank, which takes that rank's inputs[i]. root: the only
        rank with outputs. targets: whose memory the outputs are."""
        wanted = root is None or root == self.rank
        call = Call(name, timeout)
        call.sources = [Buffer(each, name) for each in inputs]
        for index, source in enumerate(call.sources):
            sizes = [source.bytes.numel()] * self.size
            into = None
            if wanted:
                buffers = self._outputs_of(name, source, outputs[index])
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
                call.targets += buffers
            if root is None or sum(sizes) <= SMALL_BYTES_MAX:
                call.transfers += self._gather(call, sizes, source.bytes, into)
            else:
                call.transfers.append(self._gather_to_one(call, root, source.bytes, into))
        place = "" if root is None else f"(root {root})"
        call.details = f"{place} of {sizes_of(inputs)}"
        call.targets += targets
        if result is not None:
            call.result = result
        elif wanted and outputs:
            call.result = list(outputs[0])
        return self.exchange.submit(call)

    def _outputs_of(self, name: str, source: Buffer, outputs: Sequence[Any]) -> list[Buffer]:
        if len(outputs) != self.size:
            raise ValueError(
                f"{name}: {len(outputs)} outputs were given, but the group has {self.size} ranks"
            )
        buffers = [Buffer(each, name, read=False) for each in outputs]
        for each in buffers:
            if each.dtype != source.dtype:
                raise ValueError(
                    f"{name}: the input is {name_of(source.dtype)}, an output "
                    f"{name_of(each.dtype)}"
                )
        return buffers

    def _gather_to_one(
        self, call: Call, root: int, source: Any, targets: Optional[Sequence[Any]]
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
                    copy(target, part)

            call.finishes.append(finish)
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
        call = Call(name, timeout, f"(root {root}) of {sizes_of([output])}", result=[output])
        target = Buffer(output, name, read=False)
        call.targets.append(target)
        size = target.bytes.numel()
        source = None
        if self.rank == root:
            if inputs is None or len(inputs) != self.size:
                raise ValueError(f"{name}: the root needs one input for each of {self.size} ranks")
            call.sources = [Buffer(each, name) for each in inputs]
            for each in call.sources:
                if each.bytes.numel() != size or each.dtype != target.dtype:
                    raise ValueError(f"{name}: inputs and output need the same size and type")
            source = receivers.take(torch.uint8, size * self.size)
            pieces = [each.bytes for each in call.sources]
            call.preparations.append(functools.partial(join, pieces, source))
        if size * self.size > SMALL_BYTES_MAX:
            call.transfers.append(
                move_parts("scatter", self.rank, self.size, size, source, target.bytes, root)
            )
        else:
            into = target.bytes
            if source is not None:
                own = source[self.rank * size : (self.rank + 1) * size]
                call.preparations.append(functools.partial(into.copy_, own))
            call.transfers.append(
                move(
                    root,
                    size * self.size,
                    source,
                    None if self.rank == root else into,
                    self.rank * size,
                )
            )
        return self.exchange.submit(call)

    def all_to_all(
        self,
        name: str,
        output: Any,
        input: Any,
        output_counts: list[int],
        input_counts: list[int],
        timeout: Optional[float],
        equal: bool = False,
        spread: Optional[Callable[[], None]] = None,
        targets: Sequence[Buffer] = (),
        result: Optional[list[Any]] = None,
    ) -> Operation:
        """Flat tensors; counts[i]: elements to and from rank i. equal: they are the same on all
        ranks. spread: copies the output into `targets`, the memory of `result`."""
        source, target = Buffer(input, name), Buffer(output, name, read=False)
        call = Call(name, timeout, f" of {name_of(source.dtype)}")
        call.sources, call.targets = [source], [target, *targets]
        call.result = [output] if result is None else result
        if spread is not None:
            call.finishes.append(spread)
        if source.dtype != target.dtype:
            raise ValueError(
                f"{name}: the input is {name_of(source.dtype)}, the output {name_of(target.dtype)}"
            )
        item = input.element_size()

        def stages() -> Iterator[tuple[list[Transfer], bool]]:
            table = torch.zeros(self.size * self.size, dtype=torch.int64, device="cpu")
            table[self.rank * self.size : (self.rank + 1) * self.size] = torch.tensor(
                input_counts, dtype=torch.int64, device="cpu"
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
                    copy(into, source.bytes[first : first + size])
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

        if equal and self._moves_pairs(len(source.bytes)):
            if source.count != target.count:
                raise ValueError(
                    f"{name}: the input has {source.count} elements, the output {target.count}"
                )
            call.details = f" in equal parts of {sizes_of([input])}"
            call.transfers.append(self._all_to_all(source.bytes, target.bytes))
        else:
            call.stages = stages()
        return self.exchange.submit(call)

    def _moves_pairs(self, size: int) -> bool:
        return size > SMALL_BYTES_MAX and self.size <= _PAIRING_RANKS_MAX

    def _all_to_all(self, source: Any, target: Any) -> Transfer:
        begin, end = source.data_ptr(), source.data_ptr() + len(source)
        if target.data_ptr() < end and begin < target.data_ptr() + len(target):
            source = source.clone()  # parts would be overwritten before they are sent
        size = len(source) // self.size
        return move_parts("all_to_all", self.rank, self.size, size, source, target)

    @staticmethod
    def message_call(
        name: str,
        tensor: Any,
        sends: bool,
        text: str,
        timeout: float,
        root: int,
        transfer: Callable[..., Transfer],
    ) -> Call:
        """Between two ranks. root: index of the one that sends. transfer: move, or message if the
        ranks may disagree about the size."""
        buffer = Buffer(tensor, name, read=sends)
        call = Call("send", timeout, f" {text} of {sizes_of([tensor])}", result=[tensor])
        if sends:
            call.sources.append(buffer)
        else:
            call.targets.append(buffer)
        source, target = (buffer.bytes, None) if sends else (None, buffer.bytes)
        call.transfers.append(transfer(root, buffer.bytes.numel(), source, target))
        return call

    def barrier(self, timeout: Optional[float]) -> Operation:
        empty = torch.empty(0, dtype=torch.int32, device="cpu")
        transfers = [reduce("sum", empty, None)]
        return self.exchange.submit(Call("barrier", timeout, transfers=transfers))
