"""Ceilings: the time that the machine itself needs for an exchange, measured in the same run."""

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

from .build import Build
from .failure import BenchFailure
from .processes import Command, started
from .systems import System, rank_files
from .workload import Workload

IPERF_SECONDS = 1
START_SECONDS_MAX = 10.0


class KernelFloor(System):
    """The daemon's kernels alone on the same bytes, in as many threads as it has core loops.
    `keeps_sums`: in an all-reduce they store one more copy, as a daemon does."""

    transport = "none"
    is_floor = True

    def __init__(self, build: Build, threads: int, keeps_sums: bool = False) -> None:
        self.name = "kernel-keeping" if keeps_sums else "kernel"
        self._build = build
        self._threads = threads
        self._keeps_sums = keeps_sums

    @property
    def description(self) -> str:
        return (f"the kernel alone{' plus the daemon copy' if self._keeps_sums else ''}, "
                f"{self._threads} thread{'s' if self._threads > 1 else ''}")

    def rank_count(self, workload: Workload) -> int:
        return 1

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        own, log = rank_files(0, folder)
        return [Command([str(self._build.program("bench-kernel-floor")), *own,
                         *workload.rank_arguments(), "--threads", str(self._threads),
                         *(["--keep-sums"] if self._keeps_sums else [])], log)]


class WakeFloor(System):
    """A server and workers that only wait for each other."""

    is_floor = True
    # The description of each way to wait.
    WAYS = {"eventfd": "blocking", "yield": "yielding",
            "tcp": "with the bytes sent through plain sockets"}

    def __init__(self, build: Build, via: str) -> None:
        self.name = "wake"
        self.transport = via
        self._build = build

    @property
    def description(self) -> str:
        return f"a server and workers that only wait for each other, {self.WAYS[self.transport]}"

    def rank_count(self, workload: Workload) -> int:
        return 1

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        return [Command([str(self._build.program("bench-wake-floor")), "--out",
                         str(folder / "rank-0.json"), "--world", str(workload.workers), "--via",
                         self.transport, "--bytes", str(workload.bytes), "--exchanges",
                         str(workload.exchanges)], folder / "rank-0.log")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Loopback:
    """iperf3's throughput over the loopback, with one stream per worker."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._bytes_per_s: dict[int, float] = {}

    @staticmethod
    def missing() -> str:
        return "" if shutil.which("iperf3") else "iperf3 is not installed"

    def sample(self, streams: int) -> None:
        """Measures once more, one way and both ways. The highest rate so far is kept."""
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
            deadline = time.monotonic() + START_SECONDS_MAX
            while True:
                time.sleep(0.05)
                answer = subprocess.run(
                    ["iperf3", "--client", "127.0.0.1", "--port", port, "--parallel", str(streams),
                     "--time", str(IPERF_SECONDS), "--json", *options],
                    capture_output=True, text=True, check=False, timeout=60)
                try:
                    return _bytes_per_s(answer.stdout)
                except (ValueError, KeyError) as error:  # the server may not be listening yet
                    if time.monotonic() > deadline:
                        raise BenchFailure(f"iperf3 failed: {answer.stdout} {answer.stderr}"
                                           ) from error


def _bytes_per_s(report: str) -> float:
    """The rate of all streams, both ways, from iperf3's report."""
    end = json.loads(report)["end"]
    bits_per_s = end["sum_received"]["bits_per_second"]
    if "sum_received_bidir_reverse" in end:
        bits_per_s += end["sum_received_bidir_reverse"]["bits_per_second"]
    return float(bits_per_s) / 8
