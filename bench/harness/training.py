"""Workloads of jobs that compute while they exchange (rank/training_job.h)."""

from dataclasses import dataclass, replace
from typing import Self

from .workload import Workload

COMPUTES = ("memory", "device")
SCHEDULES = ("compute", "exchange", "serial", "overlap")


@dataclass(frozen=True)
class TrainingWorkload(Workload):
    """Ranks time iterations, which by default both compute and exchange."""

    schedule: str = "overlap"
    compute: str = "memory"
    passes: int = 1     # passes over the memory of each layer
    device_us: int = 0  # device time of an iteration

    def scheduled(self, schedule: str) -> Self:
        return replace(self, schedule=schedule)

    def computing(self, factor: float, exchange_s: float) -> Self:
        """The workload with as much computation as `factor` asks for. For "device", `factor` is
        relative to the exchange's time; for "memory" it is the number of passes."""
        if self.compute == "device":
            return replace(self, device_us=max(1, round(factor * exchange_s * 1e6)))
        return replace(self, passes=max(1, round(factor)))

    def case(self, bench: str, transport: str) -> str:
        return f"{super().case(bench, transport)}/{self.compute}"

    def rank_arguments(self) -> list[str]:
        return [*super().rank_arguments(), "--schedule", self.schedule, "--compute", self.compute,
                "--compute-passes", str(self.passes), "--device-us", str(self.device_us)]
