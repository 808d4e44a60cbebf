"""What collectives consist of: transfers, which are cut into parts, one for each round.

A reduction or a move is cut into rounds of pools (phub/pool.h has the idea): the first one of up to
64 KiB in a pool of small rounds, the rest in a pool of large ones. The daemon compares their types,
operations, roots, lengths and sequence numbers. The number is made from the collective, so ranks
that called something else are detected in the first round, if it uses pools, too.

With daemons that do not know such rounds, the transfer is cut into whole pieces of 256 KiB to 4 MiB
(16 MiB for reductions), and a rest that is padded to a size class. The rest carries a fingerprint
of the collective, with the same purpose. Its 64 elements are integers of one byte, which every
operation of phub computes exactly.

A message (send and recv) of a stream that is its own begins with a round of 4 KiB that does not
depend on the message's size. It is a sum of fingerprints, and of small messages and zeros: so both
ranks find that they differ before they use keys of their own sizes.

A transfer of another movement than all-reduce has an equal part for every rank, and is cut like one
part: each of its rounds moves an equal piece of every part, with a fingerprint in every part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from typing import TYPE_CHECKING, Any, Optional

import torch

from .._key_spec import MOVEMENTS, part_count
from ._receivers import receivers
from ._types import NUMBERS, U8

if TYPE_CHECKING:
    from ._home import Home
    from ._slot import Slot

FINGERPRINT = 64  # elements
_XOR = "bitwise_xor"
PIECE_MIN = 1 << 18  # smaller parts are copied into phub's memory, larger ones sent from the tensor
_PIECE_MAX = {"reduce": 1 << 24, "move": 1 << 22}
_CLASS_MIN = 1 << 12
_OPENING_BYTES = _CLASS_MIN - FINGERPRINT  # of a message that needs no other round
POOL_SMALL = 1 << 16  # bytes of a round of a pool
POOL_LARGE = 1 << 22
_SEQUENCE_BITS = 24  # above them: how many rounds of the transfer follow
SIZES = {1: 4, 2: 2, 3: 2, 4: 8, 5: 4, 6: 8, 7: 1}  # bytes of phub's element types
DTYPES = {number: dtype for dtype, number in NUMBERS.items()}


def size_class(size: int) -> int:
    """The smallest class of at least `size` bytes: powers of two up to 16 KiB, then at most 1/8
    apart."""
    if size <= 4 * _CLASS_MIN:
        return max(_CLASS_MIN, 1 << (size - 1).bit_length())
    step = 1 << ((size - 1).bit_length() - 4)
    return (size + step - 1) // step * step


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the keys of a ring have in common."""

    number: int  # element type
    operation: str  # "sum", ..., or "move"
    capacity: int  # bytes; one part, if the movement has parts
    direct: bool  # rounds use the caller's memory
    whole: bool = False  # exactly this size
    movement: str = "all_reduce"
    root: int = 0  # of the movement, if it has one
    pooled: bool = False  # rounds have types and operations of their own

    def name(self, index: int) -> str:
        if self.pooled:
            return f"pool.{self.capacity}.{index}"
        text = f"{self.operation}.{DTYPES[self.number]}".replace("torch.", "")
        if MOVEMENTS[self.movement].has_root:
            text = f"{self.root}.{text}"
        if self.movement != "all_reduce":
            text = f"{self.movement}.{text}"
        letter = "w" if self.whole else "d" if self.direct else ""
        return f"{text}.{self.capacity}{letter}.{index}"


@dataclasses.dataclass
class Wish:
    """Whether a ring needs more keys, since results are still in use when their keys' turns come
    again. Ranks decide together: the part with the fingerprint also sums their wishes."""

    own: bool = False
    agreed: Optional[bool] = None  # None: not known yet


@dataclasses.dataclass
class Transfer:
    """`source` of the ranks combined into `target`; or the root's `source`, from byte `first` on,
    into `target`; or, with another movement, the parts that this rank sends, and those that it
    receives. Flat, contiguous CPU tensors; for moves, of bytes.
    """

    operation: str
    number: int
    count: int  # elements that are sent; those of one part, if the movement has parts
    source: Any = None  # None: this rank sends nothing
    target: Any = None  # None: the result is not wanted
    first: int = 0
    root: int = -1
    later: bool = False  # `target` is set when the transfer is complete
    movement: str = "all_reduce"
    ranks: int = 1  # if the movement has parts
    received: int = 1  # parts that this rank receives, if the movement has parts
    home: Optional["Home"] = None  # `source` lives there
    pinned: bool = False  # the result will be copied to a device
    wish: Optional[Wish] = None  # of a whole transfer
    opens: bool = False  # a message whose size the ranks have not compared

    @property
    def has_parts(self) -> bool:
        return MOVEMENTS[self.movement].has_parts

    @property
    def size(self) -> int:
        """Bytes, of as many parts as there are ranks."""
        return self.count * self.ranks * SIZES[self.number]

    def whole_kind(self) -> "Kind":
        """Of keys of exactly this size."""
        return Part(self, 0, self.count, self.count * SIZES[self.number], False, True).kind()

    def take(self, count: int) -> Any:
        """Memory for `target`."""
        return receivers.take(DTYPES[self.number], count, self.pinned)

    @property
    def reduces(self) -> bool:
        """All elements of all ranks, for all ranks."""
        return self.operation != "move" and not self.has_parts

    @property
    def moves(self) -> bool:
        """The root's elements, for all ranks."""
        return self.operation == "move" and not self.has_parts

    def parts(self, whole: bool, pooled: bool) -> list["Part"]:
        """whole: it has keys of its size. pooled: it uses pools."""
        item = SIZES[self.number]
        if whole:
            self.wish = None if self.has_parts else Wish()
            capacity = POOL_SMALL if pooled else size_class(FINGERPRINT * item)
            return [
                Part(self, 0, self.count, self.count * item, False, True),
                Part(self, self.count, 0, capacity, True, pooled=pooled),
            ]
        if self.later:
            self.target = self.take(self.count * self.received)
        if pooled:
            return self._pool_parts()
        largest = _PIECE_MAX["move" if self.operation == "move" else "reduce"]
        if self.has_parts:
            largest = max(PIECE_MIN, 1 << ((largest // self.ranks).bit_length() - 1))
        parts = []
        offset, left = 0, self.count
        if self.opens:
            whole = left <= _OPENING_BYTES
            parts.append(Part(self, 0, left if whole else 0, _CLASS_MIN, True, opens=True))
            if whole:
                return parts
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

    def _pool_parts(self) -> list["Part"]:
        item = SIZES[self.number]
        most = POOL_LARGE // item
        first = min(self.count, POOL_SMALL // item)
        left = -(-(self.count - first) // most)
        parts = [Part(self, 0, first, POOL_SMALL, left == 0, pooled=True, left=left)]
        for offset in range(first, self.count, most):
            left -= 1
            count = min(most, self.count - offset)
            parts.append(
                Part(self, offset, count, POOL_LARGE, left == 0, pooled=True, left=left)
            )
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
    pooled: bool = False
    left: int = 0  # parts of the transfer that follow, if it is pooled
    opens: bool = False  # the first one of a message, which both ranks compare

    def kind(self) -> Kind:
        if self.pooled:
            return pool_kind(self.capacity)
        if self.opens:
            return Kind(U8, "sum", self.capacity, direct=False)
        transfer = self.transfer
        # The pieces of a part lie apart in the caller's memory.
        direct = self.whole if transfer.has_parts else transfer.root < 0 and not self.last
        return Kind(
            transfer.number,
            transfer.operation,
            self.capacity,
            direct,
            self.whole,
            transfer.movement,
            transfer.root if MOVEMENTS[transfer.movement].has_root else 0,
        )


def pool_kind(capacity: int) -> Kind:
    return Kind(U8, "pool", capacity, direct=False, pooled=True)


class Fingerprint:
    """A number, and 64 elements of each rank whose reduction has the expected value only if the
    ranks' texts are equal."""

    def __init__(self, text: str) -> None:
        self._value = zlib.crc32(text.encode())
        self._bits: Any = None

    def sequence(self, left: int) -> int:
        """Of a round of a pool, after which `left` rounds of the same transfer follow."""
        return (self._value & (1 << _SEQUENCE_BITS) - 1) | min(left, 255) << _SEQUENCE_BITS

    def pattern(self, operation: str, rank: int) -> Any:
        """What the rank sends in a round of this operation."""
        if operation == _XOR:
            return _elements(self._digest(rank))
        if self._bits is None:
            bits = [(self._value >> i) & 1 for i in range(32)]
            # A bit and its complement: where ranks differ, sum, mean, maximum and or make both
            # nonzero, minimum, product and and both zero.
            self._bits = _elements(bytes(bits + [1 - bit for bit in bits]))
        return self._bits

    def matches(self, received: Any, operation: str, ranks: int) -> bool:
        """Whether the round's result says that all ranks have this fingerprint."""
        if operation != _XOR:
            return bool(torch.equal(received != 0, self.pattern(operation, 0).to(torch.bool)))
        expected = 0
        for rank in range(ranks):
            expected ^= int.from_bytes(self._digest(rank), "little")
        elements = _elements(expected.to_bytes(FINGERPRINT, "little"))
        return bool(torch.equal(received, elements.to(received.dtype)))

    def _digest(self, rank: int) -> bytes:
        """Equal patterns of an even number of ranks would cancel each other in an exclusive or. So
        each rank sends another one, and all ranks compute what those of all ranks give."""
        text = f"{self._value} {rank}"
        return hashlib.blake2b(text.encode(), digest_size=FINGERPRINT).digest()


def _elements(values: bytes) -> Any:
    return torch.tensor(list(values), dtype=torch.uint8, device="cpu")


def move(root: int, size: int, source: Any, target: Any, first: int = 0) -> Transfer:
    """Sends `size` bytes of rank `root`; `target` receives those from `first` on."""
    return Transfer("move", U8, size, source, target, first, root)


def message(root: int, size: int, source: Any, target: Any) -> Transfer:
    """As move(), between two ranks that may disagree about the size."""
    return Transfer("move", U8, size, source, target, root=root, opens=True)


def reduce_later(operation: str, source: Any) -> Transfer:
    """Its `target` is the result, once it is complete."""
    return Transfer(operation, NUMBERS[source.dtype], source.numel(), source, later=True)


def reduce(operation: str, source: Any, target: Any) -> Transfer:
    return Transfer(operation, NUMBERS[source.dtype], source.numel(), source, target)


def reduce_scatter(operation: str, source: Any, target: Any, ranks: int) -> Transfer:
    """Combines the ranks' `source`, and sends every rank its part. target: None: `target` is the
    result, once it is complete."""
    return Transfer(
        operation,
        NUMBERS[source.dtype],
        source.numel() // ranks,
        source,
        target,
        later=target is None,
        movement="reduce_scatter",
        ranks=ranks,
    )


def move_parts(
    movement: str, rank: int, ranks: int, size: int, source: Any, target: Any, root: int = 0
) -> Transfer:
    """Moves parts of `size` bytes. source: the parts that `rank` sends; target: those that it
    receives. If no target is given, `target` is the result, once it is complete."""
    received = part_count(MOVEMENTS[movement].receives, rank == root, ranks)
    return Transfer(
        "move",
        U8,
        size,
        source,
        target,
        root=root,
        later=target is None and received > 0,
        movement=movement,
        ranks=ranks,
        received=received,
    )
