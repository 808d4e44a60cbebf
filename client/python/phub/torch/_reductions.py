"""Reductions as transfers (phub.torch._transfer)."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch

from ._buffers import Buffer, all_of, in_order
from ._operation import Operation
from ._submitter import SMALL_BYTES_MAX, Submitter, once, sizes_of
from ._transfer import PIECE_MIN, Transfer, reduce, reduce_later, reduce_scatter
from ._types import NUMBERS, Reduction, name_of, reduction


def _combine(parts: list[Any], operation: str) -> Any:
    """Bitwise operations, which phub does not have."""
    apply = {
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[operation]
    result = parts[0]
    for part in parts[1:]:
        result = apply(result, part)
    return result


def _converted(flat: Any, how: Reduction) -> Any:
    """What phub reduces."""
    source = flat.view(how.dtype) if flat.dtype.is_complex else flat
    if source.dtype != how.dtype:
        source = source.to(how.dtype)
    if how.factor is not None:
        factor = how.factor
        source = source * (
            factor.to(source.dtype) if isinstance(factor, torch.Tensor) else factor
        )
    return source


def _restored(value: Any, how: Reduction, dtype: Any) -> Any:
    """The result in the caller's type."""
    if how.parity:
        value = value & 1
    if value.dtype == dtype:
        return value
    if dtype.is_complex:
        return value.view(dtype)
    return value != 0 if dtype == torch.bool else value.to(dtype)


class Reductions(Submitter):
    """Each method starts a collective and returns its Operation."""

    def _reduce_one(
        self,
        flat: Any,
        how: Reduction,
        store: Optional[Callable[[Any], None]],
        in_place: bool,
    ) -> tuple[list[Transfer], Optional[Callable[[], None]]]:
        """Transfers that reduce `flat`, and what to do afterwards.

        store: takes the result; None: it is not wanted here. in_place: `flat` takes it.
        """
        dtype = flat.dtype
        if how.gather is not None:
            return self._gather_and_combine(flat, how.gather, store, in_place)
        source = _converted(flat, how)
        direct = source.numel() * source.element_size() >= PIECE_MIN
        unwanted = store is None and not in_place
        if not direct and (unwanted or in_place and source.data_ptr() == flat.data_ptr()):
            return [reduce(how.operation, source, None if unwanted else source)], None
        transfer = reduce_later(how.operation, source)
        if unwanted:
            return [transfer], None

        def finish() -> None:
            value, transfer.target = _restored(transfer.target, how, dtype), None
            if in_place:
                flat.copy_(value)
            elif store is not None:
                store(value)

        return [transfer], finish

    def _gather_and_combine(
        self, flat: Any, operation: str, store: Optional[Callable[[Any], None]], in_place: bool
    ) -> tuple[list[Transfer], Optional[Callable[[], None]]]:
        source = flat.view(torch.uint8)
        size = source.numel()
        target = torch.empty(self.size * size, dtype=torch.uint8)
        finishes: list[Callable[[], None]] = []
        transfers = self._gather(
            [size] * self.size, source, list(target.view(self.size, size)), finishes
        )

        def finish() -> None:
            in_order(finishes)()
            parts = [each.view(flat.dtype) for each in target.view(self.size, size)]
            value = _combine(parts, operation) if size else flat
            if in_place:
                flat.copy_(value)
            elif store is not None:
                store(value)

        return transfers, finish

    def all_reduce(
        self,
        name: str,
        tensors: Sequence[Any],
        op: Any,
        timeout: Optional[float],
        takes_result: bool = False,
    ) -> Operation:
        """takes_result: the caller uses the result of the future, or waits for the Work."""
        buffers = [Buffer(each, name) for each in tensors]
        if takes_result and len(buffers) == 1 and buffers[0].is_own:
            how = reduction(op, buffers[0].dtype, name)
            if how.is_plain(buffers[0].dtype) and buffers[0].bytes.numel() >= PIECE_MIN:
                return self._reduce_into_result(name, tensors[0], how, timeout)
        transfers: list[Transfer] = []
        finishes: list[Callable[[], None]] = []
        text = ""
        for buffer in buffers:
            how = reduction(op, buffer.dtype, name)
            text = how.name
            more, finish = self._reduce_one(buffer.flat(), how, None, True)
            transfers += more
            if finish is not None:
                finishes.append(finish)

        finishes.append(all_of(buffers))

        details = f"({text}) of {sizes_of(tensors)}"
        result, finish_all = list(tensors), in_order(finishes)
        return self._submit(name, details, once(transfers), result, finish_all, timeout)

    def _reduce_into_result(
        self, name: str, tensor: Any, how: Reduction, timeout: Optional[float]
    ) -> Operation:
        # This may move the tensor's memory, so its address is taken afterwards.
        home = self.exchange.home_of(tensor, NUMBERS[tensor.dtype], how.operation)
        flat = Buffer(tensor, name).flat()
        transfer = reduce_later(how.operation, flat)
        transfer.home = home
        details = f"({how.name}) of {sizes_of([tensor])}"
        result: list[Any] = []

        def finish() -> None:
            result.append(transfer.target.view(tensor.shape))

        operation = self._submit(name, details, once([transfer]), result, finish, timeout)

        def copy_back() -> None:
            flat.copy_(result[0].view(-1))

        operation.copy_back = copy_back
        return operation

    def reduce(
        self, name: str, tensor: Any, root: int, op: Any, timeout: Optional[float]
    ) -> Operation:
        buffer = Buffer(tensor, name)
        how = reduction(op, buffer.dtype, name)
        is_root = self.rank == root
        transfers, finish = self._reduce_one(buffer.flat(), how, None, is_root)

        def finish_all() -> None:
            if finish is not None:
                finish()
            if is_root:
                buffer.give_back()

        details = f"({how.name}, root {root}) of {sizes_of([tensor])}"
        return self._submit(name, details, once(transfers), [tensor], finish_all, timeout)

    def _scatter_one(
        self, flat: Any, how: Reduction, target: Buffer, begin: int, equal: bool
    ) -> tuple[list[Transfer], Optional[Callable[[], None]]]:
        """Transfers that reduce `flat`, whose elements from `begin` on are wanted here. equal: all
        ranks want as many."""
        small = flat.numel() * flat.element_size() <= SMALL_BYTES_MAX
        if not equal or small or how.gather is not None:
            return self._reduce_one(flat, how, _part_of(target, begin), False)
        source = _converted(flat, how)
        if how.is_plain(flat.dtype) and not flat.dtype.is_complex:
            return [reduce_scatter(how.operation, source, target.flat(), self.size)], None
        transfer = reduce_scatter(how.operation, source, None, self.size)

        def finish() -> None:
            value, transfer.target = _restored(transfer.target, how, flat.dtype), None
            target.flat().copy_(value)

        return [transfer], finish

    def reduce_scatter(
        self,
        name: str,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        op: Any,
        timeout: Optional[float],
    ) -> Operation:
        """inputs[i]: a tensor, or a list of one tensor for each rank; outputs[i] takes this rank's
        part of its reduction."""
        transfers: list[Transfer] = []
        finishes: list[Callable[[], None]] = []
        targets = []
        texts = []
        operation = ""
        for output, given in zip(outputs, inputs):
            target = Buffer(output, name, read=False)
            targets.append(target)
            if isinstance(given, torch.Tensor):
                whole = Buffer(given, name)
                if whole.count != target.count * self.size or whole.dtype != target.dtype:
                    raise ValueError(
                        f"{name}: the input has {sizes_of([given])} and the output "
                        f"{sizes_of([output])}; the input needs {self.size} times as many elements "
                        "of the same type"
                    )
                flat, begin, equal = whole.flat(), self.rank * target.count, True
            else:
                self._check_list(name, "input", given, output)
                pieces = [Buffer(each, name).flat() for each in given]
                flat, begin = torch.cat(pieces), sum(len(each) for each in pieces[: self.rank])
                equal = all(len(each) == target.count for each in pieces)
            how = reduction(op, flat.dtype, name)
            operation = how.name
            texts.append(flat)
            more, finish = self._scatter_one(flat, how, target, begin, equal)
            transfers += more
            if finish is not None:
                finishes.append(finish)

        finishes.append(all_of(targets))

        details = f"({operation}) of {sizes_of(texts)}"
        result, finish_all = list(outputs), in_order(finishes)
        return self._submit(name, details, once(transfers), result, finish_all, timeout)


def _part_of(target: Buffer, begin: int) -> Callable[[Any], None]:
    def store(value: Any) -> None:
        target.flat().copy_(value[begin : begin + target.count])

    return store
