"""Handles of collectives, as torch.distributed expects them."""

from __future__ import annotations

import datetime
from typing import Any, Optional

import torch
import torch.distributed

from ._arguments import called_from_python
from ._errors import CollectiveTimeout
from ._operation import Operation

c10d: Any = torch._C._distributed_c10d
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# From here on C++ keeps a Work in Python alive; the tests run with 2.13.
PYTHON_WORK = VERSION >= (2, 7)


class Work(c10d.Work):  # type: ignore[misc]
    """A collective in flight."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Blocks until the collective is complete; CUDA results are then on their way, and the
        current stream waits for them. timeout: zero or less is the group's."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        operation = self._operation
        if not operation.wait(seconds if seconds > 0 else None):
            raise CollectiveTimeout(
                f"{operation.text} is not complete within the timeout of {seconds:g} s (operation "
                f"{operation.sequence}); it continues",
                operation=operation.text,
            )
        return True

    def get_future(self) -> Any:
        return self._operation.future()

    def is_completed(self) -> bool:
        return self._operation.arrived()

    def is_success(self) -> bool:
        return self._operation.done() and self._operation.error is None

    def exception(self) -> Any:
        return self._operation.error

    def result(self) -> list[Any]:
        return self._operation.result

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return -1

    def _source_rank(self) -> int:
        return -1


def work_of(operation: Operation) -> Any:
    if PYTHON_WORK or called_from_python():
        return Work(operation)
    # wait() of this Work raises no error. C++ that takes values from its future sees the error, as
    # DistributedDataParallel does with gradients; other C++ sees it in the next collective.
    if operation.error is not None:
        operation.wait()
    return c10d._create_work_from_future(operation.future())
