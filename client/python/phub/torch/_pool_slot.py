"""Pooled keys: each round has the type, operation and length of its part."""

from __future__ import annotations

from typing import Any, Optional

from .._key_spec import MOVEMENTS, OPERATIONS
from .._library import lib
from ._copy import copy
from ._slot import PartsSlot, Slot, elements_at, start_round
from ._subgroup import AnyJob, rank_in_job
from ._transfer import DTYPES, SIZES, Fingerprint, Kind, Part
from ._types import U8


class PoolSlot(Slot):
    """Over shared memory, gradients are copied into the key's memory, which the daemon maps.
    Otherwise they are sent from where they are. Results arrive in the key's memory, unless they
    have memory of their own and come over a network."""

    def __init__(
        self, pointer: int, kind: Kind, job: AnyJob, in_place: bool, memory: Optional[Any]
    ) -> None:
        super().__init__(pointer, kind, job, in_place, memory)
        self._sent_at = self.gradients.data_ptr()
        self._received_at = self.parameters.data_ptr()
        self._views: dict[int, tuple[Any, Any]] = {U8: (self.gradients, self.parameters)}

    def _view(self, number: int) -> tuple[Any, Any]:
        """The key's gradients and parameters as elements of this type."""
        views = self._views.get(number)
        if views is None:
            dtype, size = DTYPES[number], self.kind.capacity // SIZES[number] * SIZES[number]
            views = self.gradients[:size].view(dtype), self.parameters[:size].view(dtype)
            self._views[number] = views
        return views

    def free(self) -> None:
        self._views.clear()
        super().free()

    def start(self, part: Part, fingerprint: Fingerprint) -> int:
        transfer = part.transfer
        if transfer.moves and part.count > 0:
            return self._start_move(part, fingerprint)
        number, operation, count = transfer.number, transfer.operation, part.count
        sent, received = self._sent_at, self._received_at
        if count == 0:  # only compares the collectives, and asks for wishes
            number, operation, count = U8, "max", 1
            self.gradients[0] = int(transfer.wish is not None and transfer.wish.own)
        else:
            item = SIZES[number]
            begin, size = part.offset * item, count * item
            source = int(transfer.source.data_ptr()) + begin
            if self._in_place or source % item != 0:
                piece = transfer.source[part.offset : part.offset + count]
                copy(self._view(number)[0][:count], piece)
            else:
                sent = source
            if not self._in_place and transfer.target is not None:
                target = int(transfer.target.data_ptr()) + begin
                apart = target >= source + size or source >= target + size
                if (apart or target == source) and target % item == 0:
                    received = target
        self._in_own = received == self._received_at
        return start_round(
            lib.phub_key_all_reduce,
            self.pointer,
            elements_at(sent, count, number),
            elements_at(received, count, number),
            OPERATIONS[operation],
            fingerprint.sequence(part.left),
        )

    def _start_move(self, part: Part, fingerprint: Fingerprint) -> int:
        transfer, count = part.transfer, part.count
        if transfer.source is not None:
            piece = transfer.source[part.offset : part.offset + count]
            at = int(piece.data_ptr())
            if self._in_place:
                copy(self.gradients[:count], piece)
                at = self._sent_at
            self._in_own = False
            _put(piece, part)
        else:
            whole = _wanted(part) == (part.offset, part.offset + count)
            self._in_own = self._in_place or not whole
            at = self._received_at
            if not self._in_own:
                at = int(transfer.target.data_ptr()) + part.offset - transfer.first
        return start_round(
            lib.phub_key_broadcast,
            self.pointer,
            elements_at(at, count, U8),
            rank_in_job(self._job, transfer.root),
            fingerprint.sequence(part.left),
        )

    def finish(self, part: Part, fingerprint: Fingerprint) -> bool:
        """The daemon has compared the ranks' collectives."""
        transfer = part.transfer
        if transfer.moves and part.count > 0:
            if self._in_own:
                _put(self.parameters[: part.count], part)
            return True
        if part.count == 0:
            if transfer.wish is not None:
                transfer.wish.agreed = bool(self.parameters[0] != 0)
        elif self._in_own and transfer.target is not None:
            target = transfer.target[part.offset : part.offset + part.count]
            copy(target, self._view(transfer.number)[1][: part.count])
        return True


def _wanted(part: Part) -> tuple[int, int]:
    """Which of the part's bytes belong to the target of a move; an empty range: none."""
    transfer = part.transfer
    if transfer.target is None:
        return part.offset, part.offset
    begin = max(part.offset, transfer.first)
    return begin, min(part.offset + part.count, transfer.first + transfer.target.numel())


def _put(piece: Any, part: Part) -> None:
    """Copies the part's bytes to the target, where they are wanted."""
    first = part.transfer.first
    begin, end = _wanted(part)
    if begin < end:
        target = part.transfer.target[begin - first : end - first]
        copy(target, piece[begin - part.offset : end - part.offset])


def slot_of(
    pointer: int, kind: Kind, job: AnyJob, in_place: bool, memory: Optional[Any]
) -> Slot:
    make = Slot
    if kind.pooled:
        make = PoolSlot
    elif MOVEMENTS[kind.movement].has_parts:
        make = PartsSlot
    return make(pointer, kind, job, in_place, memory)
