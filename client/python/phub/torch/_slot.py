"""Keys of phub that run the rounds of transfers, one at a time."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Optional

from .._errors import OK, error_of
from .._key_spec import MOVEMENTS, part_count
from .._library import Elements, lib
from . import _cuda
from ._copy import copy, copy_rows
from ._home import Home, can_house
from ._lender import Lender
from ._subgroup import AnyJob, rank_in_job
from ._transfer import DTYPES, FINGERPRINT, SIZES, Fingerprint, Kind, Part, Transfer, Wish
from ._types import U8, raw

_WISH = -FINGERPRINT - 1  # the element before the fingerprint


def elements_at(address: int, count: int, number: int) -> Elements:
    return Elements(data=address, count=count, type=number)


def _address(tensor: Optional[Any], offset: int) -> int:
    """Of the tensor's bytes from `offset` on; 0: this rank has none."""
    return 0 if tensor is None else int(tensor.data_ptr()) + offset


def start_round(function: Any, *arguments: Any) -> int:
    """Starts a round. Returns its handle, or raises."""
    handle = ctypes.c_void_p()
    error = ctypes.c_void_p()
    result = function(*arguments, ctypes.byref(handle), ctypes.byref(error))
    if result != OK:
        raise error_of(result, error)
    assert handle.value is not None
    return handle.value


def shares_memory(job: AnyJob) -> bool:
    """The daemon is on this host, and reads and writes memory of this rank."""
    return (lib.phub_job_transports(job._pointer) or b"") == b"shm"


class Slot:
    """A key of a ring."""

    def __init__(
        self, pointer: int, kind: Kind, job: Any, in_place: bool, memory: Optional[Any]
    ) -> None:
        """in_place: the daemon on this host uses the key's memory. memory: kept alive."""
        self._memory = memory
        self.pointer = pointer
        self.kind = kind
        self.part: Optional[Part] = None  # in flight
        self._job = job
        self.gradients: Any = None
        self.parameters: Any = None
        self._lender: Optional[Lender] = None
        self.home: Optional[Home] = None
        self.wish: Optional[Wish] = None  # of the last transfer
        self._in_place = in_place
        self._pins: Optional[_cuda.Pins] = None  # for copies between the key's memory and devices
        self._in_own = False  # the result of the round in flight arrives in `parameters`
        if not kind.direct or in_place:
            dtype = DTYPES[kind.number]
            sent, received = lib.phub_key_gradients(pointer), lib.phub_key_parameters(pointer)
            item = SIZES[kind.number]
            self.gradients = raw(sent.data, sent.count * item).view(dtype)
            self.parameters = raw(received.data, received.count * item).view(dtype)
            self._sent = elements_at(sent.data, sent.count, kind.number)
            if kind.direct:
                if received.count > 0:
                    self._lender = Lender(received.data, received.count * item)
                if sent.count > 0 and can_house(sent.data):
                    self.home = Home(sent.data, sent.count * item)

    def free(self) -> None:
        if self.home is not None and not self.home.removed:
            self.home.move_out()
        self.gradients = self.parameters = None
        pointer, self.pointer = self.pointer, 0
        pins = self._pins
        if pins is not None:
            _cuda.await_copies()

        def free_key() -> None:
            if pins is not None:
                pins.end()
            lib.phub_key_free(pointer)

        if pointer and self._lender is not None:
            self._lender.when_returned(free_key)
        elif pointer:
            free_key()

    def claim_home(self) -> Optional[Home]:
        """The home, for a gradient of a device, whose copies are fast there. None: it is in use."""
        home = self.home
        if home is None or not home.free or self.part is not None:
            return None
        if self._pins is None:
            self._pins = _cuda.Pins()
            for each, read_only in ((self.gradients, False), (self.parameters, True)):
                size = -(-each.numel() * each.element_size() // mmap.PAGESIZE) * mmap.PAGESIZE
                if each.data_ptr() % mmap.PAGESIZE == 0:
                    self._pins.add(each.data_ptr(), size, read_only)
        home.claimed = True
        return home

    def start(self, part: Part, fingerprint: Fingerprint) -> int:
        """Starts the part's round. Returns its handle."""
        transfer = part.transfer
        if self.kind.direct:
            return self._start_direct(transfer, part.offset, part.count)
        moves_whole = transfer.moves and not part.opens
        sent = self._sent
        if transfer.source is not None or part.opens:
            if moves_whole and not part.last and not shares_memory(self._job):
                sent = elements_at(_address(transfer.source, part.offset), part.count, U8)
            else:
                self._fill(part, fingerprint)
        if not moves_whole:
            return start_round(lib.phub_key_push_pull, self.pointer)
        return start_round(
            lib.phub_job_broadcast,
            self._job._pointer,
            self.pointer,
            rank_in_job(self._job, transfer.root),
            sent,
        )

    def _fill(self, part: Part, fingerprint: Fingerprint) -> None:
        """Sets what this rank sends, in `gradients`."""
        count = part.count
        source = part.transfer.source
        if count > 0 and source is not None:  # the receiver of a message sends zeros
            copy(self.gradients[:count], source[part.offset : part.offset + count])
        if part.last:
            pattern = fingerprint.pattern(self.kind.operation, self._job.rank)
            self.gradients[-FINGERPRINT:].copy_(pattern)
            if part.transfer.wish is not None:
                self.gradients[_WISH] = int(part.transfer.wish.own)

    def _agrees(self, fingerprint: Fingerprint, received: Any) -> bool:
        return fingerprint.matches(received, self.kind.operation, self._job.world_size)

    def _counts(self, count: int) -> tuple[int, int]:
        """Elements that a rank sends and receives in a direct round of `count` elements a part."""
        return count, count

    def _start_direct(self, transfer: Transfer, offset: int, count: int) -> int:
        item, number = SIZES[self.kind.number], self.kind.number
        sent_count, received_count = self._counts(count)
        self._in_own = False
        if transfer.pinned:
            _cuda.return_memory()
        self.wish = transfer.wish
        if self.wish is not None:
            self.wish.own = self._lender is not None and self._lender.lent
        sent = self._shared_gradient(transfer)
        lent = self._lender is not None and self._lender.lent
        if sent is not None and not lent:
            self._in_own = True
            return start_round(lib.phub_key_push_pull_with, self.pointer, sent, None)
        if transfer.target is None and received_count > 0:  # all of it, or its first part
            whole = received_count if transfer.has_parts else transfer.count
            transfer.target = transfer.take(whole)
        if sent is None:
            sent = elements_at(_address(transfer.source, offset * item), sent_count, number)
        target = elements_at(_address(transfer.target, offset * item), received_count, number)
        return start_round(lib.phub_key_push_pull_with, self.pointer, sent, target)

    def _shared_gradient(self, transfer: Transfer) -> Optional[Elements]:
        """The gradient in memory that the daemon maps; None: it is elsewhere."""
        if transfer.home is not None and not transfer.home.removed:
            count = transfer.source.numel()
            return elements_at(transfer.home.address, count, self.kind.number)
        if not self._in_place or (self.home is not None and not self.home.free):
            return None
        if transfer.source is not None:
            copy(self.gradients, transfer.source)
        return self._sent

    def _finish_direct(self, transfer: Transfer) -> None:
        if not self._in_own or self._lender is None:
            return
        if transfer.target is None:
            transfer.target = self._lender.lend(DTYPES[self.kind.number])
        else:
            copy(transfer.target, self.parameters)

    def finish(self, part: Part, fingerprint: Fingerprint) -> bool:
        """Copies what was received to the transfer's target. False: the ranks' collectives differ.

        The daemon computes every element of a part, so the fingerprint is in the same round.
        """
        if self.kind.direct:
            self._finish_direct(part.transfer)
            return True
        if part.last and not self._agrees(fingerprint, self.parameters[-FINGERPRINT:]):
            return False
        transfer = part.transfer
        if transfer.wish is not None:
            transfer.wish.agreed = bool(self.parameters[_WISH] != 0)
        if transfer.target is None or part.count == 0:
            return True
        # The part has elements [offset, offset + count); wanted are those from `first` on.
        begin = max(part.offset, transfer.first)
        end = min(part.offset + part.count, transfer.first + transfer.target.numel())
        if begin < end:
            target = transfer.target[begin - transfer.first : end - transfer.first]
            copy(target, self.parameters[begin - part.offset : end - part.offset])
        return True


class PartsSlot(Slot):
    """Of a movement whose keys have an equal part for every rank."""

    def __init__(
        self, pointer: int, kind: Kind, job: Any, in_place: bool, memory: Optional[Any]
    ) -> None:
        super().__init__(pointer, kind, job, in_place, memory)
        movement, is_root = MOVEMENTS[kind.movement], job.rank == kind.root
        self._sent_parts = part_count(movement.sends, is_root, job.world_size)
        self._received_parts = part_count(movement.receives, is_root, job.world_size)

    def _counts(self, count: int) -> tuple[int, int]:
        return count * self._sent_parts, count * self._received_parts

    def _fill(self, part: Part, fingerprint: Fingerprint) -> None:
        rows = self.gradients.view(self._sent_parts, -1)
        count = part.count
        if count > 0:
            source = part.transfer.source.view(self._sent_parts, -1)
            copy_rows(rows[:, :count], source[:, part.offset : part.offset + count])
        if part.last:
            pattern = fingerprint.pattern(self.kind.operation, self._job.rank)
            rows[:, -FINGERPRINT:].copy_(pattern)

    def finish(self, part: Part, fingerprint: Fingerprint) -> bool:
        transfer = part.transfer
        if self.kind.direct:
            self._finish_direct(transfer)
            return True
        if self._received_parts == 0:
            return True
        rows = self.parameters.view(self._received_parts, -1)
        if part.last and not all(self._agrees(fingerprint, row[-FINGERPRINT:]) for row in rows):
            return False
        if transfer.target is not None and part.count > 0:
            target = transfer.target.view(self._received_parts, -1)
            copy_rows(target[:, part.offset : part.offset + part.count], rows[:, : part.count])
        return True
