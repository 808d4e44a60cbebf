"""Hooks of parameters, called when a backward pass has added to their gradients."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from ._bundles import Slot


def add_hooks(slots: list[Slot], call: Callable[[Slot], None]) -> list[Any]:
    """Calls a method with a slot, on the thread of the backward pass, while its object lives.
    Returns handles that remove the hooks."""
    method = weakref.WeakMethod(call)
    return [
        slot.parameter.register_post_accumulate_grad_hook(_hook(method, slot)) for slot in slots
    ]


def _hook(method: "weakref.WeakMethod[Callable[[Slot], None]]", slot: Slot) -> Any:
    def hook(parameter: Any) -> None:
        alive = method()
        if alive is not None:
            alive(slot)

    return hook
