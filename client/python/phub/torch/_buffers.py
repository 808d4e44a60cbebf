"""Tensors of the caller as flat memory of this host."""

from __future__ import annotations

from typing import Any, Optional

import torch

from . import _cuda
from ._copy import join
from ._receivers import receivers
from ._types import bytes_of, check


def joined(pieces: list[Any]) -> Any:
    """Flat tensors end to end, in memory that is used again."""
    if any(each.dtype != pieces[0].dtype for each in pieces):
        return torch.cat(pieces)
    whole = receivers.take(pieces[0].dtype, sum(len(each) for each in pieces))
    return join(pieces, whole)


class Buffer:
    """A tensor of the caller as flat contiguous memory of this host.

    The memory is the tensor's own if it is contiguous and on the CPU, otherwise a copy; then
    give_back() copies it into the tensor. Views of raw memory are used, since results arrive on
    another thread, where autograd and inference mode must not see them.

    A CUDA tensor is still being copied when this returns: see ready().
    """

    def __init__(
        self, tensor: Any, what: str, read: bool = True, memory: Optional[Any] = None
    ) -> None:
        """memory: for the copy of a CUDA tensor; flat, of its type and size."""
        check(tensor, what)
        tensor = tensor.detach()
        self.tensor = tensor
        self.dtype = tensor.dtype
        self.count = tensor.numel()
        # Other memory that has the result of a CUDA tensor.
        self.result: Optional[Any] = None
        self._compact: Optional[Any] = None  # the copy of a CPU tensor
        self._staging: Optional[_cuda.Staging] = None
        if _cuda.on_device(tensor):
            self._staging = _cuda.Staging(tensor, read, memory)
            self.bytes = bytes_of(self._staging.host)
        elif tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            self.bytes = bytes_of(tensor)
        else:
            self._compact = torch.empty(tensor.shape, dtype=self.dtype, device="cpu")
            if read:
                self._compact.copy_(tensor)
            self.bytes = bytes_of(self._compact)

    def flat(self, dtype: Any = None) -> Any:
        """The elements, seen as `dtype` (default: the tensor's type)."""
        return self.bytes.view(dtype or self.dtype)

    @property
    def device(self) -> Optional[Any]:
        """The device from which the tensor is copied; None: it is on the CPU."""
        return None if self._staging is None else self._staging.device

    @property
    def is_own(self) -> bool:
        """`flat` is the tensor's own memory."""
        return self._compact is None and self._staging is None

    def ready(self) -> bool:
        """The memory has the tensor's values."""
        return self._staging is None or self._staging.ready()

    def wait(self) -> None:
        """Blocks until ready(): for callers that read the memory at once."""
        if self._staging is not None:
            self._staging.wait()

    def give_back(self) -> Optional[Any]:
        """Copies the memory into the caller's tensor, if it is a copy. Returns an event if that
        continues on the tensor's device."""
        if self._staging is not None:
            return self._staging.copy_back(self.result)
        if self._compact is not None:
            with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
                self.tensor.copy_(self._compact)
        return None


def readable(buffers: list[Buffer]) -> list[Any]:
    """The elements of all. Waits for them."""
    for buffer in buffers:
        buffer.wait()
    return [buffer.flat() for buffer in buffers]
