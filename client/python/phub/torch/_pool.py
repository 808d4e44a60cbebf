"""The lower half: collectives as rounds of ordinary keys of one job.

A transfer (the reduction of one tensor, or one rank's bytes sent to all) is cut into parts: whole
pieces of 256 KiB to 16 MiB, and a rest that is padded to a size class. Keys are kept by kind and
size class, a ring of a few for each. A part uses the next key of its ring, whether or not others
are free: so the choice depends only on the order of collectives, which is the same on all ranks.

A reduction whose size has occurred before, as that of a bucket of DistributedDataParallel, is one
whole part with keys of exactly this size. Over shared memory these keys have phub's memory: the
daemon sums gradients there and writes results there, and the result is a tensor in this memory.

The rest carries a fingerprint of the collective, so ranks that called something else are detected.
Its 64 elements are 0 or 1, which every operation of phub computes exactly.

Invariants: parts are started in the order of the collectives; a key has one round in flight.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import mmap
import zlib
from typing import Any, Optional

import torch

from .. import _library
from .._errors import OK, ResourceExhausted, check, error_of
from .._job import Job
from .._library import Elements, lib
from ._buffers import receivers
from ._lender import Lender
from ._types import NUMBERS, U8, raw

FINGERPRINT = 64  # elements
PIECE_MIN = 1 << 18  # smaller parts are copied into phub's memory, larger ones sent from the tensor
_PIECE_MAX = {"reduce": 1 << 24, "move": 1 << 22}
_CLASS_MIN = 1 << 12
_HINT = "Or set bucket_bytes of phub.torch.Options to 0: then no size gets keys of its own"
_SEEN_MAX = 256  # sizes that have occurred once
SIZES = {1: 4, 2: 2, 3: 2, 4: 8, 5: 4, 6: 8, 7: 1}  # bytes of phub's element types
_DTYPES = {number: dtype for dtype, number in NUMBERS.items()}
_OPERATIONS = {"sum": 1, "mean": 2, "min": 3, "max": 4, "product": 5}


def size_class(size: int) -> int:
    """The smallest class of at least `size` bytes: powers of two up to 16 KiB, then at most 1/8
    apart."""
    if size <= 4 * _CLASS_MIN:
        return max(_CLASS_MIN, 1 << (size - 1).bit_length())
    step = 1 << ((size - 1).bit_length() - 4)
    return (size + step - 1) // step * step


def _depth(capacity: int) -> int:
    """Keys in a ring: rounds of this class that may be in flight."""
    return 8 if capacity <= 1 << 16 else 4 if capacity <= 1 << 20 else 2


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the keys of a ring have in common."""

    number: int  # element type
    operation: str  # "sum", ..., or "move"
    capacity: int  # bytes
    direct: bool  # rounds use the caller's memory
    whole: bool = False  # a reduction of exactly this size

    def name(self, index: int) -> str:
        text = f"{self.operation}.{_DTYPES[self.number]}".replace("torch.", "")
        letter = "w" if self.whole else "d" if self.direct else ""
        return f"{text}.{self.capacity}{letter}.{index}"


@dataclasses.dataclass
class Transfer:
    """`source` of the ranks combined into `target`; or the root's `source`, from byte `first` on,
    into `target`. Flat, contiguous CPU tensors; for moves, of bytes.
    """

    operation: str
    number: int
    count: int  # elements that are sent
    source: Any = None  # None: not the root
    target: Any = None  # None: the result is not wanted
    first: int = 0
    root: int = -1
    later: bool = False  # `target` is set when the transfer is complete

    def parts(self, whole: bool) -> list["Part"]:
        item = SIZES[self.number]
        if whole:
            return [
                Part(self, 0, self.count, self.count * item, False, True),
                Part(self, self.count, 0, size_class(FINGERPRINT * item), True),
            ]
        if self.later:
            self.target = receivers.take(_DTYPES[self.number], self.count)
        largest = _PIECE_MAX["move" if self.root >= 0 else "reduce"]
        parts = []
        offset, left = 0, self.count
        piece = largest
        while piece >= PIECE_MIN:
            if left * item >= piece:
                parts.append(Part(self, offset, piece // item, piece, False))
                offset, left = offset + piece // item, left - piece // item
            else:
                piece //= 2
        capacity = size_class((left + FINGERPRINT) * item)
        parts.append(Part(self, offset, left, capacity, True))
        return parts


@dataclasses.dataclass
class Part:
    """Runs in one round."""

    transfer: Transfer
    offset: int
    count: int
    capacity: int
    last: bool  # has the fingerprint
    whole: bool = False
    slot: Optional["Slot"] = None

    def kind(self) -> Kind:
        transfer = self.transfer
        direct = transfer.root < 0 and not self.last
        return Kind(transfer.number, transfer.operation, self.capacity, direct, self.whole)


class Fingerprint:
    """64 elements that are equal on all ranks only if the ranks' texts are."""

    def __init__(self, text: str) -> None:
        value = zlib.crc32(text.encode())
        bits = [(value >> i) & 1 for i in range(32)]
        # A bit and its complement: where ranks differ, sum, mean and maximum make both nonzero,
        # minimum and product both zero.
        self.pattern = torch.tensor(bits + [1 - bit for bit in bits], dtype=torch.uint8)
        self._expected = self.pattern.to(torch.bool)

    def matches(self, received: Any) -> bool:
        return bool(torch.equal(received != 0, self._expected))


def _elements(address: int, count: int, number: int) -> Elements:
    return Elements(data=address, count=count, type=number)


def _start(function: Any, *arguments: Any) -> int:
    """Starts a round. Returns its handle, or raises."""
    handle = ctypes.c_void_p()
    error = ctypes.c_void_p()
    result = function(*arguments, ctypes.byref(handle), ctypes.byref(error))
    if result != OK:
        raise error_of(result, error)
    assert handle.value is not None
    return handle.value


class Slot:
    """A key of a ring."""

    def __init__(
        self, pointer: int, kind: Kind, job: Job, in_place: bool, memory: Optional["_Unused"]
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
        self._in_own = False  # the result of the round in flight arrives in `parameters`
        if not kind.direct or in_place:
            dtype = _DTYPES[kind.number]
            sent, received = lib.phub_key_gradients(pointer), lib.phub_key_parameters(pointer)
            self.gradients = raw(sent.data, kind.capacity).view(dtype)
            self.parameters = raw(received.data, kind.capacity).view(dtype)
            self._sent = _elements(sent.data, sent.count, kind.number)
            self._lender = Lender(received.data, kind.capacity) if kind.direct else None

    def free(self) -> None:
        self.gradients = self.parameters = None
        pointer, self.pointer = self.pointer, 0
        if pointer and self._lender is not None:
            self._lender.when_returned(functools.partial(lib.phub_key_free, pointer))
        elif pointer:
            lib.phub_key_free(pointer)

    def start(self, part: Part, fingerprint: Fingerprint) -> int:
        """Starts the part's round. Returns its handle."""
        transfer, offset, count = part.transfer, part.offset, part.count
        if self.kind.direct:
            return self._start_direct(transfer, offset, count)
        if transfer.source is not None:
            if count > 0:
                self.gradients[:count].copy_(transfer.source[offset : offset + count])
            if part.last:
                self.gradients[-FINGERPRINT:].copy_(fingerprint.pattern)
        if transfer.root < 0:
            return _start(lib.phub_key_push_pull, self.pointer)
        return _start(
            lib.phub_job_broadcast, self._job._pointer, self.pointer, transfer.root, self._sent
        )

    def _start_direct(self, transfer: Transfer, offset: int, count: int) -> int:
        item, number = SIZES[self.kind.number], self.kind.number
        sent = None
        self._in_own = False
        if self._lender is not None:
            self.gradients.copy_(transfer.source)
            if not self._lender.lent:
                self._in_own = True
                return _start(lib.phub_key_push_pull, self.pointer)
            sent = self._sent  # an earlier result is still in use
        if transfer.target is None:
            transfer.target = receivers.take(_DTYPES[number], transfer.count)
        if sent is None:
            sent = _elements(transfer.source.data_ptr() + offset * item, count, number)
        target = _elements(transfer.target.data_ptr() + offset * item, count, number)
        return _start(lib.phub_key_push_pull_with, self.pointer, sent, target)

    def _finish_direct(self, transfer: Transfer) -> None:
        if not self._in_own:
            return
        assert self._lender is not None
        if transfer.target is None:
            transfer.target = self._lender.lend(_DTYPES[self.kind.number])
        else:
            transfer.target.copy_(self.parameters)

    def finish(self, part: Part, fingerprint: Fingerprint) -> bool:
        """Copies what was received to the transfer's target. False: the ranks' collectives differ.

        The daemon computes every element of a part, so the fingerprint is in the same round.
        """
        if self.kind.direct:
            self._finish_direct(part.transfer)
            return True
        if part.last and not fingerprint.matches(self.parameters[-FINGERPRINT:]):
            return False
        transfer = part.transfer
        if transfer.target is None:
            return True
        # The part has elements [offset, offset + count); wanted are those from `first` on.
        begin = max(part.offset, transfer.first)
        end = min(part.offset + part.count, transfer.first + transfer.target.numel())
        if begin < end:
            transfer.target[begin - transfer.first : end - transfer.first].copy_(
                self.parameters[begin - part.offset : end - part.offset]
            )
        return True


class _Unused:
    """Memory for keys whose rounds always use the caller's: never touched, so it costs nothing."""

    def __init__(self, size: int) -> None:
        self._maps = [mmap.mmap(-1, size) for _ in range(2)]
        self.gradients, self.parameters = (
            ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in self._maps
        )


class Pool:
    """The keys of one job."""

    def __init__(self, job: Job, bucket_bytes: int) -> None:
        """bucket_bytes: most bytes of all whole sizes; a rank needs four times as much memory."""
        self._job = job
        self._bucket_bytes = bucket_bytes
        self._rings: dict[Kind, list[Slot]] = {}
        self._next: dict[Kind, int] = {}
        self._in_place = (lib.phub_job_transports(job._pointer) or b"") == b"shm"
        self._seen: set[tuple[int, str, int]] = set()
        self._whole: set[tuple[int, str, int]] = set()
        self._whole_bytes = 0

    def is_whole(self, transfer: Transfer) -> bool:
        """True if the transfer is one part with keys of its size. Depends only on the transfers
        before, in their order."""
        size = transfer.count * SIZES[transfer.number]
        if not transfer.later or size < PIECE_MIN:
            return False
        key = (transfer.number, transfer.operation, transfer.count)
        if key in self._whole:
            return True
        if key not in self._seen:
            if len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen.add(key)
            return False
        if self._whole_bytes + size > self._bucket_bytes:
            return False
        self._whole_bytes += size
        self._whole.add(key)
        return True

    def slot(self, kind: Kind) -> Slot:
        """The key for the next part of this kind. Adds keys if there are none yet, which takes a
        call to the daemon."""
        ring = self._rings.get(kind)
        if ring is None:
            ring = self._rings[kind] = self._add(kind)
            self._next[kind] = 0
        return ring[self._next[kind]]

    def advance(self, kind: Kind) -> None:
        """The slot of this kind was used."""
        self._next[kind] = (self._next[kind] + 1) % len(self._rings[kind])

    def _add(self, kind: Kind) -> list[Slot]:
        in_place = kind.whole and self._in_place
        memory = None if in_place or not kind.direct else _Unused(kind.capacity)
        try:
            pointers = self._add_keys(kind, memory)
        except ResourceExhausted:
            if not in_place:
                raise
            # No memory to share with this rank, which is a matter of this rank alone.
            in_place = self._in_place = False
            memory = _Unused(kind.capacity)
            try:
                pointers = self._add_keys(kind, memory)
            except ResourceExhausted as error:
                text = f"{error}. {_HINT}"
                raise ResourceExhausted(text, job=error.job, rank=error.rank) from None
        return [Slot(pointer, kind, self._job, in_place, memory) for pointer in pointers]

    def _add_keys(self, kind: Kind, memory: Optional["_Unused"]) -> list[int]:
        """memory: what the keys use; None: phub allocates it."""
        count = _depth(kind.capacity)
        specs = (_library.KeySpec * count)()
        for index in range(count):
            spec = specs[index]
            lib.phub_key_spec_init(ctypes.byref(spec), ctypes.sizeof(spec))
            spec.name = kind.name(index).encode()
            spec.type = kind.number
            spec.operation = _OPERATIONS.get(kind.operation, _OPERATIONS["sum"])
            spec.element_count = kind.capacity // SIZES[kind.number]
            # Equal: parts are sent in the order in which they were started.
            spec.has_priority = 1
            if memory is not None:
                spec.gradients, spec.parameters = memory.gradients, memory.parameters
        pointers = (ctypes.c_void_p * count)()
        check(lib.phub_job_add_keys, self._job._pointer, specs, count, pointers)
        return [int(pointer or 0) for pointer in pointers]

    def free(self) -> None:
        """REQUIRES: the job was left."""
        for ring in self._rings.values():
            for slot in ring:
                slot.free()
        self._rings.clear()


def move(root: int, size: int, source: Any, target: Any, first: int = 0) -> Transfer:
    """Sends `size` bytes of rank `root`; `target` receives those from `first` on."""
    return Transfer("move", U8, size, source, target, first, root)


def reduce_later(operation: str, source: Any) -> Transfer:
    """Its `target` is the result, once it is complete."""
    return Transfer(operation, NUMBERS[source.dtype], source.numel(), source, later=True)


def reduce(operation: str, source: Any, target: Any) -> Transfer:
    return Transfer(operation, NUMBERS[source.dtype], source.numel(), source, target)
