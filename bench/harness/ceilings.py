"""What the machine itself needs for the work of an exchange, measured in the same run."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

from .build import Build
from .failure import BenchFailure
from .processes import Command, started
from .systems import System, rank_files
from .workload import Workload

IPERF_SECONDS = 1


class KernelFloor(System):
    """The daemon's kernels alone on the same bytes, in as many threads as it has core loops."""

    name = "kernel"
    transport = "none"

    def __init__(self, build: Build, threads: int) -> None:
        self._build = build
        self._threads = threads

    @property
    def description(self) -> str:
        return f"the kernel alone, {self._threads} thread{'s' if self._threads > 1 else ''}"

    def rank_count(self, workload: Workload) -> int:
        return 1

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        own, log = rank_files(0, folder)
        return [Command([str(self._build.program("bench-kernel-floor")), *own,
                         *workload.rank_arguments(), "--threads", str(self._threads)], log)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Loopback:
    """How fast iperf3 moves bytes over the loopback, over as many streams as there are workers."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._bytes_per_s: dict[int, float] = {}

    @staticmethod
    def missing() -> str:
        return "" if shutil.which("iperf3") else "iperf3 is not installed"

    def sample(self, streams: int) -> None:
        """Once more; the fastest counts, either all streams one way, or as many again the other."""
        for options in (["--bidir"], []):
            moved = self._run(streams, options)
            self._bytes_per_s[streams] = max(moved, self._bytes_per_s.get(streams, 0.0))

    def bytes_per_s(self, streams: int) -> float:
        return self._bytes_per_s[streams]

    def _run(self, streams: int, options: list[str]) -> float:
        port = str(free_port())
        log = self._scratch / "iperf3.log"
        server = Command(["iperf3", "--server", "--one-off", "--bind", "127.0.0.1",
                          "--port", port], log)
        with started([server]):
            for _ in range(20):
                answer = subprocess.run(
                    ["iperf3", "--client", "127.0.0.1", "--port", port, "--parallel", str(streams),
                     "--time", str(IPERF_SECONDS), "--json", *options],
                    capture_output=True, text=True, check=False, timeout=60)
                try:
                    end = json.loads(answer.stdout)["end"]
                    break
                except (ValueError, KeyError):  # the server does not listen yet
                    continue
            else:
                raise BenchFailure(f"iperf3 failed: {answer.stdout} {answer.stderr}")
        bits_per_s = end["sum_received"]["bits_per_second"]
        if "--bidir" in options:
            bits_per_s += end["sum_received_bidir_reverse"]["bits_per_second"]
        return float(bits_per_s) / 8
