"""What ranks publish for each other in the store of a process group, as JSON.

The store is a process of the run (usually rank 0), and may have died: each call has a time limit.
"""

from __future__ import annotations

import datetime
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


class Published:
    """In one store. After the first call without an answer, nothing is read any more."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.usable = True

    def write(self, key: str, values: dict[str, Any]) -> None:
        text, store = json.dumps(values), self._store
        done = _bounded(lambda: store.set(key, text) or True)
        self.usable = self.usable and done is not None

    def read(self, key: str) -> Optional[dict[str, Any]]:
        """None: nothing, or the store does not answer."""
        store = self._store
        if not self.usable:
            return None

        def call() -> bytes:
            if hasattr(store, "check"):
                return bytes(store.get(key)) if store.check([key]) else b"{}"
            try:  # torch 1.13
                store.wait([key], datetime.timedelta(milliseconds=20))
            except RuntimeError as error:
                if "imeout" in str(error) or "imed out" in str(error):
                    return b"{}"
                raise
            return bytes(store.get(key))

        text = _bounded(call)
        if text is None:
            self.usable = False
            return None
        values: dict[str, Any] = json.loads(text)
        return values if values else None

    def close(self) -> None:
        """The store's server ends when nothing refers to it; a later group needs a new one."""
        self._store, self.usable = None, False
