"""Which parameters have no gradient on any rank (skip_unused): one small round in each step."""

from __future__ import annotations

from typing import Any, Callable, NoReturn, Optional

from .._job import Job
from ._bundles import Slot, listed

_NAME = "parameters with gradients"


class Agreement:
    """Of all ranks, about the gradients of one step. One thread at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._key: Any = None
        self._slots: list[Slot] = []

    def add(self, slots: list[Slot]) -> None:
        """All parameters. Every rank calls it alike, between steps."""
        name = _NAME if self._key is None else f"{_NAME}, {len(slots)}"
        self._slots = list(slots)
        self._key = self._job.add_key(name, len(slots), "int32", priority=1 << 20)

    def unused(
        self, wait: Callable[[Any], None], fail: Callable[[str], NoReturn]
    ) -> list[Slot]:
        """Parameters without a gradient on all ranks. `fail` raises if ranks differ."""
        for index, slot in enumerate(self._slots):
            self._key.gradients[index] = slot.parameter.grad is not None
        wait(self._key.push_pull())
        counts = self._key.parameters.tolist()
        size = self._job.world_size
        odd = [slot for slot, count in zip(self._slots, counts) if 0 < count < size]
        if odd:
            fail(self._described(odd, counts))
        return [slot for slot, count in zip(self._slots, counts) if count == 0]

    def _described(self, odd: list[Slot], counts: list[int]) -> str:
        first: Optional[int] = counts[self._slots.index(odd[0])]
        own = "has one" if odd[0].parameter.grad is not None else "has none"
        return (
            f"ranks disagree about {listed(odd)}: {first} of {self._job.world_size} ranks have a "
            f"gradient of {odd[0].name}, and rank {self._job.rank} {own}. All ranks must use the "
            "same parameters in a step"
        )
