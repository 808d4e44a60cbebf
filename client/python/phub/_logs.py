"""libphub's log lines: on standard error, or passed to a logger."""

from __future__ import annotations

import ctypes
import enum
import logging
from typing import Any, Optional, Union

from ._errors import check
from ._library import LOG_CALLBACK, lib


class LogLevel(enum.IntEnum):
    """Levels of log lines. The environment variable PHUB_LOG_LEVEL sets the first one."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


_PYTHON_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_callback: Any = None  # libphub has its address


def set_log_level(level: Union[LogLevel, str]) -> None:
    """Discards lines below `level`, for example "error"; the default is WARNING."""
    if isinstance(level, str):
        names = [known.name.lower() for known in LogLevel]
        if level.lower() not in names:
            raise ValueError(f"set_log_level: {level!r} is not one of {', '.join(names)}")
        level = LogLevel[level.upper()]
    check(lib.phub_set_log_level, int(level))


def log_to(logger: Optional[logging.Logger]) -> None:
    """Passes lines to `logger` instead of standard error; None: standard error again."""
    global _callback

    def pass_on(context: Any, level: int, line: bytes) -> None:
        if logger is not None:
            logger.log(_PYTHON_LEVELS[level], "%s", line.decode(errors="replace"))

    callback = ctypes.cast(0, LOG_CALLBACK) if logger is None else LOG_CALLBACK(pass_on)
    lib.phub_set_log_callback(callback, None)  # returns when the previous one is not in use
    _callback = callback


def stop() -> None:
    """Before the interpreter ends: no thread of libphub may call Python after that."""
    if _callback is not None:
        log_to(None)
