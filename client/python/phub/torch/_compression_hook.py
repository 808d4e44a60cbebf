"""Compressed gradients for DistributedDataParallel: a communication hook, for any backend.

No `from __future__ import annotations` here: torch compares the annotations of a hook.
"""

import zlib
from typing import Any, Optional

import torch
import torch.distributed as dist

from .._compression import Compression, Int8, TopK
from ._errors import NotServed

_BLOCK = 256  # elements with one scale


class CompressionState:
    """The state of :func:`compression_hook` in one rank. All ranks use the same compression.

    process_group: where gradients are exchanged; default: the default group.
    """

    def __init__(self, compression: Compression, process_group: Any = None) -> None:
        self.compression = compression
        self.process_group = process_group
        self._residuals: dict[tuple[int, ...], Any] = {}  # by the parameters of a bucket
        self._rounds: dict[int, int] = {}  # of each bucket

    @property
    def group(self) -> Any:
        return dist.group.WORLD if self.process_group is None else self.process_group

    def residual_of(self, bucket: Any) -> Optional[Any]:
        """What earlier rounds of these parameters left out. None: no error feedback."""
        if not self.compression.error_feedback:
            return None
        place = tuple(id(parameter) for parameter in bucket.parameters())
        if place not in self._residuals:
            # DistributedDataParallel has made new buckets, which it does once: those of before,
            # with the first step's rest, are not used any more.
            self._residuals = {
                other: residual
                for other, residual in self._residuals.items()
                if not set(other) & set(place)
            }
            self._residuals[place] = torch.zeros_like(bucket.buffer())
        return self._residuals[place]

    def next_seed(self, index: int) -> int:
        """A number that all ranks have for this round of the bucket."""
        self._rounds[index] = self._rounds.get(index, 0) + 1
        return zlib.crc32(f"{index} {self._rounds[index]}".encode())


def compression_hook(
    state: CompressionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages compressed gradients.

        model = DistributedDataParallel(model)
        state = phub.torch.CompressionState(phub.TopK(0.01))
        model.register_comm_hook(state, phub.torch.compression_hook)

    Int8 and TopK gather the payloads of all ranks, and each rank decodes and sums them in float32,
    RandomK sums the values that are sent. The share of TopK and RandomK is that of a bucket.
    Residuals are not saved.
    """
    buffer = bucket.buffer()
    if buffer.dtype != torch.float32:
        raise NotServed(f"compression_hook serves float32 gradients, not {buffer.dtype}")
    residual = state.residual_of(bucket)
    if residual is not None:
        buffer = buffer.add_(residual)
    finite = bool(buffer.isfinite().all())
    compression = state.compression
    if isinstance(compression, Int8):
        sent, decode = _int8(buffer)
    elif isinstance(compression, TopK):
        sent, decode = _topk(buffer, compression.kept, finite)
    else:
        return _random(state, bucket, buffer, residual, finite)
    if residual is not None:
        _leave(residual, buffer, decode(sent), finite)
    size = dist.get_world_size(state.group)
    everyone = sent.new_empty(size * sent.numel())
    # torch 2.13 has a new name, and warns about the old one.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    work = gather(everyone, sent, group=state.group, async_op=True)

    def combine(done: Any) -> Any:
        done.value()  # raises the error of the exchange, which has left no payloads
        total = decode(everyone[: sent.numel()])
        for part in everyone.split(sent.numel())[1:]:
            total.add_(decode(part))
        return total.div_(size)

    return work.get_future().then(combine)


def _leave(residual: Any, wanted: Any, sent: Any, finite: bool) -> None:
    if finite:
        torch.sub(wanted, sent, out=residual)
    else:
        residual.zero_()  # NaN would stay for ever


def _int8(values: Any) -> Any:
    count = values.numel()
    blocks = -(-count // _BLOCK)
    padded = torch.nn.functional.pad(values, (0, blocks * _BLOCK - count)).view(blocks, _BLOCK)
    scales = padded.abs().amax(1) / 127.0
    scales = torch.where(scales.isfinite(), scales, torch.full_like(scales, torch.nan))
    whole = (padded / scales[:, None]).nan_to_num_(0.0, 0.0, 0.0).round_().clamp_(-127, 127)
    sent = torch.cat([scales.view(torch.uint8), whole.to(torch.int8).view(-1).view(torch.uint8)])

    def decode(payload: Any) -> Any:
        scale = payload[: 4 * blocks].clone().view(torch.float32)
        rest = payload[4 * blocks :].view(torch.int8).view(blocks, _BLOCK).float()
        return (rest * scale[:, None]).view(-1)[:count]

    return sent, decode


def _kept(share: float, count: int) -> int:
    return max(1, -(-count * round(share * 1_000_000) // 1_000_000))


def _topk(values: Any, share: float, finite: bool) -> Any:
    kept = _kept(share, values.numel())
    places = values.abs().topk(kept, sorted=False).indices
    chosen = values[places] if finite else torch.full_like(values[places], torch.nan)
    sent = torch.cat([chosen.view(torch.uint8), places.to(torch.int32).view(torch.uint8)])

    def decode(payload: Any) -> Any:
        half = payload.clone().view(2, -1)
        result = torch.zeros_like(values)
        result[half[1].view(torch.int32).long()] = half[0].view(torch.float32)
        return result

    return sent, decode


def _random(
    state: CompressionState, bucket: Any, values: Any, residual: Any, finite: bool
) -> torch.futures.Future[torch.Tensor]:
    count = values.numel()
    kept = _kept(state.compression.kept, count)
    generator = torch.Generator().manual_seed(state.next_seed(bucket.index()))
    number = torch.arange(kept)
    begin, end = number * count // kept, (number + 1) * count // kept
    drawn = (torch.rand(kept, generator=generator, dtype=torch.float64) * (end - begin)).long()
    places = (begin + drawn).to(values.device)
    chosen = values[places] if finite else torch.full_like(values[places], torch.nan)

    def decode(payload: Any) -> Any:
        result = torch.zeros_like(values)
        result[places] = payload
        return result

    if residual is not None:
        _leave(residual, values, decode(chosen), finite)
    size = dist.get_world_size(state.group)
    work = dist.all_reduce(chosen, group=state.group, async_op=True)

    def average(done: Any) -> Any:
        done.value()  # as in compression_hook()
        return decode(chosen).div_(size)

    return work.get_future().then(average)
