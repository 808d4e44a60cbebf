"""Gradients that take fewer bytes on the wire."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Optional, Union


@dataclasses.dataclass(frozen=True)
class Int8:
    """8 bits for each element, and a scale for each 256 elements: 0.254 of the bytes.

    error_feedback: what is rounded off is added to the gradients of the next push. It takes memory
    of the size of the gradients.
    """

    number: ClassVar[int] = 1  # PHUB_COMPRESSION_INT8
    name: ClassVar[str] = "int8"
    error_feedback: bool = False

    @property
    def kept(self) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True)
class _Sparse:
    kept: float
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if not 1e-6 <= self.kept <= 0.5:
            raise ValueError(
                f"{type(self).__name__}({self.kept}): the share of elements that is sent must be "
                "from 0.000001 to 0.5"
            )


@dataclasses.dataclass(frozen=True)
class TopK(_Sparse):
    """The elements of each chunk with the greatest magnitude; 6 bytes for each.

    kept: the share of elements that is sent, up to 0.5; at least one of each chunk.
    error_feedback: the other elements are added to the gradients of the next push. It takes memory
    of the size of the gradients.
    """

    number: ClassVar[int] = 2
    name: ClassVar[str] = "topk"


@dataclasses.dataclass(frozen=True)
class RandomK(_Sparse):
    """Elements of each chunk that are drawn again in each round, the same on all ranks; 4 bytes for
    each. The options are those of TopK."""

    number: ClassVar[int] = 3
    name: ClassVar[str] = "randomk"


Compression = Union[Int8, TopK, RandomK]


def feedback_number(compression: Optional[Compression]) -> int:
    """PHUB_FEEDBACK_*."""
    if compression is None:
        return 0
    return 1 if compression.error_feedback else 2


def describe(compression: Optional[Compression]) -> str:
    """For messages, for example "TopK(0.01)"."""
    if compression is None:
        return "None"
    share = "" if isinstance(compression, Int8) else f"({compression.kept:g})"
    return type(compression).__name__ + share
