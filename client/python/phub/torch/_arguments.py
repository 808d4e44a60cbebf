"""Arguments and results of torch's methods: with options, or in the older forms without."""

from __future__ import annotations

import datetime
import functools
from typing import Any, Optional

import torch


def seconds_of(options: Any) -> Optional[float]:
    """The timeout of options; None: the group's."""
    timeout = options if isinstance(options, datetime.timedelta) else getattr(
        options, "timeout", None
    )
    if not isinstance(timeout, datetime.timedelta) or timeout.total_seconds() <= 0:
        return None
    return timeout.total_seconds()


def list_of(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def operation_of(options: Any, default: Any) -> Any:
    """Options with a reduceOp, or the operation itself."""
    if options is None:
        return default
    return getattr(options, "reduceOp", options)


def collective(method: Any) -> Any:
    """Tensors that are made in inference mode could not be written by the engine thread."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return method(*arguments, **options)
        with torch.inference_mode(False):
            return method(*arguments, **options)

    return call


class Together:
    """Several collectives as one Work, for callers in Python."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self, *arguments: Any) -> bool:
        return all([work.wait(*arguments) for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        return torch.futures.collect_all([work.get_future() for work in self._works])
