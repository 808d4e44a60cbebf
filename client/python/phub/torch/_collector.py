"""Whether Python's garbage collector runs. It may, in any thread, whenever memory is allocated."""

from __future__ import annotations

import gc
import threading
from typing import Any, Optional

_thread: Optional[int] = None  # that collects


def _note(phase: str, _: dict[str, Any]) -> None:
    global _thread
    _thread = threading.get_ident() if phase == "start" else None


def watch() -> None:
    """From now on runs_here() knows. May be called again."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def runs_here() -> bool:
    """Whether the caller was called by the collector: it must not wait for a lock."""
    return _thread == threading.get_ident()
