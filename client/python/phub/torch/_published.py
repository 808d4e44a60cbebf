"""What ranks publish for each other in the store of a process group, as JSON.

The store is a process of the run (usually rank 0), and may have died: each call has a time limit.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Callable, Optional, TypeVar

T = TypeVar("T")

_CALL_S = 2.0


def _bounded(call: Callable[[], T]) -> Optional[T]:
    """The result of `call`; None if it fails or takes too long."""
    results: list[T] = []

    def body() -> None:
        try:
            results.append(call())
        except Exception:
            pass

    thread = threading.Thread(target=body, name="phub-store", daemon=True)
    thread.start()
    thread.join(_CALL_S)
    return results[0] if results else None


def _mark_of(key: str) -> str:
    """torch 1.13 has no check(): this key counts how often `key` was written. A wait() with a short
    time limit cannot be used, because the limit stays on the connection, for torch's own calls."""
    return f"{key}/written"


def keys_of(store: Any, key: str) -> list[str]:
    """The keys of the store that write(key, ...) has made, in the order in which to delete them."""
    return [key] if hasattr(store, "check") else [_mark_of(key), key]


class Published:
    """In one store. After the first call without an answer, nothing is read any more."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.usable = True

    def write(self, key: str, values: dict[str, Any]) -> None:
        text, store = json.dumps(values), self._store

        def call() -> bool:
            store.set(key, text)
            if not hasattr(store, "check"):
                store.add(_mark_of(key), 1)
            return True

        done = _bounded(call)
        self.usable = self.usable and done is not None

    def read(self, key: str) -> Optional[dict[str, Any]]:
        """None: nothing, or the store does not answer."""
        store = self._store
        if not self.usable:
            return None

        def call() -> bytes:
            if hasattr(store, "check"):
                is_there = bool(store.check([key]))
            else:
                is_there = store.add(_mark_of(key), 0) > 0
            return bytes(store.get(key)) if is_there else b"{}"

        text = _bounded(call)
        if text is None:
            self.usable = False
            return None
        values: dict[str, Any] = json.loads(text)
        return values if values else None

    def close(self) -> None:
        """The store's server ends when nothing refers to it; a later group needs a new one."""
        self._store, self.usable = None, False
