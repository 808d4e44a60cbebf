"""Jobs that compute while they exchange, and iterations of theirs (rank/training_job.h)."""

from dataclasses import dataclass, replace
from typing import Self

from .workload import Workload

COMPUTES = ("memory", "device")
SCHEDULES = ("compute", "exchange", "serial", "overlap")


@dataclass(frozen=True)
class TrainingWorkload(Workload):
    """What is timed is an iteration, by default both computed and exchanged."""

    schedule: str = "overlap"
    compute: str = "memory"
    passes: int = 1     # over the memory of each layer
    device_us: int = 0  # of an iteration

    def scheduled(self, schedule: str) -> Self:
        return replace(self, schedule=schedule)

    def computing(self, factor: float, exchange_s: float) -> Self:
        """As much computation that it alone takes `factor` times as long as the exchange, if a
        pass takes as long as now this workload's `passes`."""
        if self.compute == "device":
            return replace(self, device_us=max(1, round(factor * exchange_s * 1e6)))
        return replace(self, passes=max(1, round(factor)))

    def case(self, bench: str, transport: str) -> str:
        return f"{super().case(bench, transport)}/{self.compute}"

    def rank_arguments(self) -> list[str]:
        return [*super().rank_arguments(), "--schedule", self.schedule, "--compute", self.compute,
                "--compute-passes", str(self.passes), "--device-us", str(self.device_us)]
