"""Reductions as transfers (phub.torch._transfer)."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Sequence

import torch

from . import _cuda, _sparse
from ._buffers import Buffer, joined, readable
from ._copy import copy
from ._operation import Call, Operation
from ._submitter import SMALL_BYTES_MAX, Submitter, sizes_of
from ._transfer import PIECE_MIN, reduce, reduce_later, reduce_scatter
from ._types import NUMBERS, Reduction, check, reduction


def _converted(flat: Any, how: Reduction) -> Any:
    """What phub reduces."""
    source = flat.view(how.dtype) if how.same_bits else flat.to(how.dtype)
    if how.factor is not None:
        factor = how.factor
        source = source * (
            factor.to(source.dtype) if isinstance(factor, torch.Tensor) else factor
        )
    return source


def _restored(value: Any, how: Reduction, dtype: Any) -> Any:
    """The result in the caller's type."""
    return value.view(dtype) if how.same_bits else value.to(dtype)


class Reductions(Submitter):
    """Each method starts a collective and returns its Operation."""

    def _reduce_one(
        self,
        call: Call,
        flat: Any,
        how: Reduction,
        store: Optional[Callable[[Any], None]],
        in_place: bool,
    ) -> None:
        """Adds what reduces `flat`.

        store: takes the result; None: it is not wanted here. in_place: `flat` takes it.
        """
        dtype = flat.dtype
        source = _converted(flat, how)
        unwanted = store is None and not in_place
        if unwanted or in_place and source.data_ptr() == flat.data_ptr():
            call.transfers.append(reduce(how.operation, source, None if unwanted else source))
            return
        transfer = reduce_later(how.operation, source)
        call.transfers.append(transfer)
        if unwanted:
            return

        def finish() -> None:
            value, transfer.target = _restored(transfer.target, how, dtype), None
            if in_place:
                copy(flat, value)
            elif store is not None:
                store(value)

        call.finishes.append(finish)

    def all_reduce(
        self,
        name: str,
        tensors: Sequence[Any],
        op: Any,
        timeout: Optional[float],
        takes_result: bool = False,
    ) -> Operation:
        """takes_result: the caller uses the result of the future, or waits for the Work."""
        if name == "all_reduce" and len(tensors) == 1 and _sparse.is_sparse(tensors[0]):
            return _sparse.all_reduce(self, name, tensors[0], op, timeout)
        call = Call(name, timeout, result=list(tensors))
        text = ""
        try:
            for tensor in tensors:
                check(tensor, name)
                how = reduction(op, tensor.dtype, name)
                text = how.name
                self._reduce_in_place(call, tensor, how, takes_result and len(tensors) == 1)
            call.details = f"({text}) of {sizes_of(tensors)}"
            return self.exchange.submit(call)
        except Exception:
            call.release()
            raise

    def _reduce_in_place(
        self, call: Call, tensor: Any, how: Reduction, takes_result: bool
    ) -> None:
        """Adds what reduces the tensor, if it is large without copies that can be avoided."""
        size = tensor.numel() * tensor.element_size()
        if how.is_plain(tensor.dtype) and size >= PIECE_MIN:
            if _cuda.on_device(tensor):
                self._reduce_on_device(call, tensor, how)
                return
            if takes_result and tensor.is_contiguous() and not tensor.is_neg():
                self._reduce_into_result(call, tensor, how)
                return
        buffer = Buffer(tensor, call.name)
        call.sources.append(buffer)
        call.targets.append(buffer)
        self._reduce_one(call, _elements(buffer, how), how, None, True)

    def _reduce_into_result(self, call: Call, tensor: Any, how: Reduction) -> None:
        """The result is another tensor, which the caller takes, or waits for."""
        # This may move the tensor's memory, so its address is taken afterwards.
        home = self.exchange.home_of(tensor, NUMBERS[tensor.dtype], how.operation)
        flat = Buffer(tensor, call.name).flat()
        transfer = reduce_later(how.operation, flat)
        transfer.home = home
        call.transfers.append(transfer)
        result = call.result = []

        def finish() -> None:
            result.append(transfer.target.view(tensor.shape))

        call.finishes.append(finish)
        call.copy_back = functools.partial(_copy_first, flat, result)

    def _reduce_on_device(self, call: Call, tensor: Any, how: Reduction) -> None:
        """The tensor is copied into memory that the daemon maps, and the result is copied from
        there, if such memory is free."""
        number = NUMBERS[tensor.dtype]
        home = self.exchange.claim_home(number, how.operation, tensor.numel())
        memory = None
        if home is not None:
            memory = home.memory().view(tensor.dtype)
            call.releases.append(home.end_claim)
        buffer = Buffer(tensor, call.name, memory=memory)
        call.sources.append(buffer)
        call.targets.append(buffer)
        transfer = reduce_later(how.operation, buffer.flat())
        transfer.home = home
        transfer.pinned = True
        call.transfers.append(transfer)

        def finish() -> None:
            buffer.result, transfer.target = transfer.target, None

        call.finishes.append(finish)

    def reduce(
        self, name: str, tensor: Any, root: int, op: Any, timeout: Optional[float]
    ) -> Operation:
        buffer = Buffer(tensor, name)
        how = reduction(op, buffer.dtype, name)
        is_root = self.rank == root
        details = f"({how.name}, root {root}) of {sizes_of([tensor])}"
        call = Call(name, timeout, details, result=[tensor], sources=[buffer])
        if is_root:
            call.targets.append(buffer)
        self._reduce_one(call, _elements(buffer, how), how, None, is_root)
        return self.exchange.submit(call)

    def _scatter_one(
        self, call: Call, flat: Any, how: Reduction, target: Buffer, begin: int, equal: bool
    ) -> None:
        """Adds what reduces `flat`, whose elements from `begin` on are wanted here. equal: all
        ranks want as many."""
        small = flat.numel() * flat.element_size() <= SMALL_BYTES_MAX
        if not equal or small:
            self._reduce_one(call, flat, how, _part_of(target, begin), False)
            return
        source = _converted(flat, how)
        if how.is_plain(flat.dtype) and not flat.dtype.is_complex:
            call.transfers.append(
                reduce_scatter(how.operation, source, target.flat(), self.size)
            )
            return
        transfer = reduce_scatter(how.operation, source, None, self.size)
        call.transfers.append(transfer)

        def finish() -> None:
            value, transfer.target = _restored(transfer.target, how, flat.dtype), None
            copy(target.flat(), value)

        call.finishes.append(finish)

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
        call = Call(name, timeout, result=list(outputs))
        texts = []
        operation = ""
        for output, given in zip(outputs, inputs):
            target = Buffer(output, name, read=False)
            call.targets.append(target)
            how = reduction(op, target.dtype, name)
            operation = how.name
            if isinstance(given, torch.Tensor):
                whole = Buffer(given, name)
                if whole.count != target.count * self.size or whole.dtype != target.dtype:
                    raise ValueError(
                        f"{name}: the input has {sizes_of([given])} and the output "
                        f"{sizes_of([output])}; the input needs {self.size} times as many elements "
                        "of the same type"
                    )
                call.sources.append(whole)
                flat, begin, equal = _elements(whole, how), self.rank * target.count, True
            else:
                self._check_list(name, "input", given, output)
                pieces = readable([Buffer(each, name) for each in given])
                flat, begin = joined(pieces), sum(len(each) for each in pieces[: self.rank])
                equal = all(len(each) == target.count for each in pieces)
            texts.append(flat)
            self._scatter_one(call, flat, how, target, begin, equal)
        call.details = f"({operation}) of {sizes_of(texts)}"
        return self.exchange.submit(call)


def _elements(buffer: Buffer, how: Reduction) -> Any:
    """Of the buffer. Waits for them if they are converted before they are sent."""
    if not how.is_plain(buffer.dtype):
        buffer.wait()
    return buffer.flat()


def _copy_first(flat: Any, result: list[Any]) -> None:
    copy(flat, result[0].view(-1))


def _part_of(target: Buffer, begin: int) -> Callable[[Any], None]:
    def store(value: Any) -> None:
        copy(target.flat(), value[begin : begin + target.count])

    return store
