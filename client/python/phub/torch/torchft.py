"""torchft on phub: ``torchft.Manager(pg=phub.torch.torchft.ProcessGroupPhub(), ...)``.

Each quorum is a job of its own. This module needs torchft; nothing else imports it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Optional

from torchft.process_group import ProcessGroupWrapper

from ._create import create_group
from ._options import Options


class ProcessGroupPhub(ProcessGroupWrapper):  # type: ignore[misc]
    """A group of torchft, whose ranks change from quorum to quorum."""

    def __init__(
        self, timeout: timedelta = timedelta(seconds=60), options: Optional[Options] = None
    ) -> None:
        super().__init__(timeout)
        self._options = options

    def getBackendName(self) -> str:
        return "torchft-phub"

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        return create_group(
            store,
            rank,
            world_size,
            name=f"quorum-{self._quorum_id or 0}",
            timeout=self._timeout,
            options=self._options,
        )

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)
