"""Compressed gradients in torch, written plainly: what the daemon makes of one chunk of a rank's
gradient. Part of phub.torch.reference. All arguments and results are float32."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from .._compression import Compression, Int8, TopK

_BLOCK = 256  # elements with one scale
_MASK = (1 << 64) - 1


def transmitted(
    compression: Compression, values: Any, seed: int = 0, residual: Optional[Any] = None
) -> Any:
    """What arrives of a chunk. With a residual, which starts as zeros and is updated, the values
    and the residual are sent together, and the residual becomes what is left out.

    seed: of RandomK, seed_of() for this round.
    """
    wanted = values if residual is None else torch.add(values, residual)
    if isinstance(compression, Int8):
        arrived = torch.cat([_int8(block) for block in wanted.split(_BLOCK)])
        finite = torch.cat(
            [block.isfinite().all().expand(block.numel()) for block in wanted.split(_BLOCK)]
        )
    else:
        arrived = _sparse(compression, wanted, seed)
        finite = wanted.isfinite().all().expand(wanted.numel())
    if residual is not None:
        left = torch.sub(wanted, arrived)
        residual.copy_(torch.where(finite, left, torch.zeros_like(left)))
    return arrived


def kept_of(compression: Compression, count: int) -> int:
    """The number of elements that are sent of a chunk."""
    return max(1, math.ceil(count * round(compression.kept * 1_000_000) / 1_000_000))


def seed_of(key: int, iteration: int, chunk: int) -> int:
    """The seed of RandomK for a chunk of a key, in the round that makes version `iteration`."""
    return _mixed(_mixed(_mixed(key) ^ iteration) ^ chunk)


def _int8(block: Any) -> Any:
    if not bool(block.isfinite().all()):
        return torch.full_like(block, math.nan)
    scale = torch.div(block.abs().max(), torch.tensor(127.0))
    if float(scale) == 0.0:
        return torch.zeros_like(block)
    return torch.mul(torch.div(block, scale).round().clamp(-127.0, 127.0), scale)


def _sparse(compression: Compression, values: Any, seed: int) -> Any:
    count = values.numel()
    kept = kept_of(compression, count)
    finite = bool(values.isfinite().all())
    if not isinstance(compression, TopK):
        places = torch.tensor([_place(seed, count, kept, number) for number in range(kept)])
    elif finite:
        places = torch.argsort(values.abs(), descending=True, stable=True)[:kept]
    else:
        places = torch.arange(kept)
    arrived = torch.zeros_like(values)
    arrived[places] = torch.add(arrived[places], values[places] if finite else math.nan)
    return arrived


def _mixed(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _place(seed: int, count: int, kept: int, number: int) -> int:
    """One element of each of `kept` parts of about the same size."""
    begin, end = number * count // kept, (number + 1) * count // kept
    return begin + (((_mixed((seed + number) & _MASK) >> 32) * (end - begin)) >> 32)
