"""CUDA tensors: staged through pinned memory of this host. Written but never run on a GPU."""

from __future__ import annotations

from typing import Any

import torch

_streams: dict[Any, Any] = {}


def _side_stream(device: Any) -> Any:
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = torch.cuda.Stream(device)
    return stream


class Staged:
    """A copy of a CUDA tensor in pinned memory, made when the work that was queued on the caller's
    current stream is complete."""

    def __init__(self, tensor: Any, read: bool) -> None:
        self._tensor = tensor
        self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream = _side_stream(tensor.device)
        # Also if the tensor is not read: the result must not overtake the caller's own work.
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        if read:
            with torch.cuda.stream(self._stream):
                self.host.copy_(tensor, non_blocking=True)
            self._stream.synchronize()

    def give_back(self) -> None:
        """Returns when the tensor has the values, so that any stream may use it."""
        with torch.cuda.stream(self._stream), torch.no_grad():
            self._tensor.copy_(self.host, non_blocking=True)
        self._stream.synchronize()
