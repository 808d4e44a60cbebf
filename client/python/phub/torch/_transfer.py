"""What collectives consist of: transfers, which are cut into parts, one for each round.

A transfer is cut into whole pieces of 256 KiB to 16 MiB, and a rest that is padded to a size class.
The rest carries a fingerprint of the collective, so ranks that called something else are detected.
Its 64 elements are 0 or 1, which every operation of phub computes exactly.

A transfer of another movement than all-reduce has an equal part for every rank, and is cut like one
part: each of its rounds moves an equal piece of every part, with a fingerprint in every part.
"""

from __future__ import annotations

import dataclasses
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
PIECE_MIN = 1 << 18  # smaller parts are copied into phub's memory, larger ones sent from the tensor
_PIECE_MAX = {"reduce": 1 << 24, "move": 1 << 22}
_CLASS_MIN = 1 << 12
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

    def name(self, index: int) -> str:
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

    def parts(self, whole: bool) -> list["Part"]:
        item = SIZES[self.number]
        if whole:
            self.wish = None if self.has_parts else Wish()
            return [
                Part(self, 0, self.count, self.count * item, False, True),
                Part(self, self.count, 0, size_class(FINGERPRINT * item), True),
            ]
        if self.later:
            self.target = self.take(self.count * self.received)
        largest = _PIECE_MAX["move" if self.operation == "move" else "reduce"]
        if self.has_parts:
            largest = max(PIECE_MIN, 1 << ((largest // self.ranks).bit_length() - 1))
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


class Fingerprint:
    """64 elements that are equal on all ranks only if the ranks' texts are."""

    def __init__(self, text: str) -> None:
        value = zlib.crc32(text.encode())
        bits = [(value >> i) & 1 for i in range(32)]
        # A bit and its complement: where ranks differ, sum, mean and maximum make both nonzero,
        # minimum and product both zero.
        self.pattern = torch.tensor(
            bits + [1 - bit for bit in bits], dtype=torch.uint8, device="cpu"
        )
        self._expected = self.pattern.to(torch.bool)

    def matches(self, received: Any) -> bool:
        return bool(torch.equal(received != 0, self._expected))


def move(root: int, size: int, source: Any, target: Any, first: int = 0) -> Transfer:
    """Sends `size` bytes of rank `root`; `target` receives those from `first` on."""
    return Transfer("move", U8, size, source, target, first, root)


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
