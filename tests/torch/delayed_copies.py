"""Makes phub.torch treat CPU tensors as tensors of a device whose copies to the host take a while.

For machines without a GPU: what is read before it is copied has wrong values here. Copies back,
streams and pinned memory are CUDA's own, which cuda_test.py runs where there is a GPU.
"""

from __future__ import annotations

import random
import threading
from typing import Any, Optional

import torch

from phub.torch import _cuda, _receivers

_DELAY_S = 0.004
_random = random.Random(7)


class DelayedCopies:
    device = None
    refuses = False  # like CUDA while a graph is captured

    def __init__(self, tensor: Any, read: bool, memory: Optional[Any]) -> None:
        if DelayedCopies.refuses:
            raise RuntimeError("copies are refused")
        self._tensor = tensor
        if memory is None:
            memory = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
        self.host = memory.view(tensor.shape)
        self._ready = threading.Event()
        if not read:
            self._ready.set()
            return
        self.host.view(-1).view(torch.uint8).fill_(0x55)  # not what the tensor has
        values = tensor.clone()
        threading.Timer(_random.random() * _DELAY_S, self._copy, [values]).start()

    def _copy(self, values: Any) -> None:
        self.host.copy_(values)
        self._ready.set()

    def ready(self) -> bool:
        return self._ready.is_set()

    def wait(self) -> None:
        self._ready.wait()

    def copy_back(self, source: Optional[Any]) -> None:
        tensor = self._tensor
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.copy_(self.host if source is None else source.view(tensor.shape))


class NoPins:
    def add(self, address: int, size: int, read_only: bool) -> None:
        pass

    def end(self) -> None:
        pass


def install() -> None:
    """In this process, until it ends."""
    take = _receivers.receivers.take
    own: set[int] = set()  # addresses of memory that phub.torch took for itself

    def take_own(dtype: Any, count: int, pinned: bool = False) -> Any:
        memory = take(dtype, count)
        own.add(memory.data_ptr())
        return memory

    replacements: dict[str, Any] = {
        "Staging": DelayedCopies,
        "Pins": NoPins,
        "on_device": lambda tensor: tensor.data_ptr() not in own,
        "return_memory": lambda: None,
        "await_copies": lambda: None,
    }
    for name, value in replacements.items():
        setattr(_cuda, name, value)
    setattr(_receivers.receivers, "take", take_own)
