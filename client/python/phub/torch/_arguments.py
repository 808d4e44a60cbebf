"""Arguments and results of torch's methods: with options, or in the older forms without."""

from __future__ import annotations

import datetime
import functools
import os
import sys
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


_OWN_FOLDER = os.path.dirname(__file__)
# Calls what not_compiled() returns.
_COMPILER = os.path.join("torch", "_dynamo", "eval_frame.py")


def _caller() -> tuple[Any, set[str]]:
    """The code that called this package (None: C++, in a thread without other Python), and the
    names of this package's functions that run because of it."""
    own: set[str] = set()
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OWN_FOLDER):
            own.add(code.co_name)
        elif not code.co_filename.endswith(_COMPILER):
            return code, own
        frame = frame.f_back  # type: ignore[assignment]
    return None, own


def called_in_backward() -> bool:
    """True if C++ called this group during the backward pass, with no other Python between.

    That is DistributedDataParallel, which takes its gradients from the future's result, or a
    functional collective, which waits for the Work. A hook in Python would be in between; it may
    expect its tensor to be changed.
    """
    code, _ = _caller()
    if code is None:
        return True  # a thread of autograd
    folder = os.path.basename(os.path.dirname(code.co_filename))
    return folder == "autograd" and code.co_name in ("_engine_run_backward", "backward")


def called_from_python() -> bool:
    """True if code in Python called the group's method by its name, False if C++ called it."""
    code, own = _caller()
    return code is not None and not own.isdisjoint(code.co_names)


def not_compiled(function: Any) -> Any:
    """Keeps torch.compile away from the function. torch.compiler.disable would import the compiler,
    also in programs that do not use it."""
    disabled: list[Any] = []

    @functools.wraps(function)
    def not_compiled_call(*arguments: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **options)
        if not disabled:
            disabled.append(sys.modules["torch._dynamo"].disable(function))
        return disabled[0](*arguments, **options)

    setattr(not_compiled_call, "_torchdynamo_disable", True)  # what torch.compiler.disable sets
    return not_compiled_call


def collective(method: Any) -> Any:
    """Tensors that are made in inference mode could not be written by the engine thread."""

    @functools.wraps(method)
    def collective_call(*arguments: Any, **options: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return method(*arguments, **options)
        with torch.inference_mode(False):
            return method(*arguments, **options)

    return not_compiled(collective_call)


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
