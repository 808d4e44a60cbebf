"""Copies of tensors' values by the calling thread alone."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

# torch copies fewer elements than these with one thread, too (at::internal::GRAIN_SIZE).
_GRAIN = 1 << 15


def copy(target: Any, source: Any) -> None:
    """Copies the values of `source` to `target`, which has as many elements.

    From 32,768 elements on, copy_() of torch wakes a team of OpenMP threads. When the copy is
    done, these spin for milliseconds, so on a busy host they keep the daemon and other ranks from
    running: an all_gather of 64 KiB took 6.7 instead of 0.8 ms (two ranks, two cores).
    """
    if target.numel() >= _GRAIN and _is_plain(target, source):
        size = target.numel() * target.element_size()
        ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
    else:
        target.copy_(source)


def copy_rows(target: Any, source: Any) -> None:
    """The same for two matrices of one shape, whose rows are contiguous."""
    if target.numel() < _GRAIN:
        target.copy_(source)
        return
    for to, values in zip(target, source):
        copy(to, values)


def join(pieces: Sequence[Any], whole: Any) -> Any:
    """Copies flat tensors end to end to `whole`, which is returned."""
    for part, piece in zip(whole.split([len(each) for each in pieces]), pieces):
        copy(part, piece)
    return whole


def _is_plain(target: Any, source: Any) -> bool:
    """The values lie in the CPU's memory in the same form and order."""
    return (
        target.dtype == source.dtype
        and target.numel() == source.numel()
        and all(each.device.type == "cpu" and each.is_contiguous() for each in (target, source))
        and not (source.is_conj() or source.is_neg())
    )
