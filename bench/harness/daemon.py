"""phubd for a bench: started, asked how much memory and CPU it takes, stopped."""

import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from . import machine
from .build import Build
from .failure import BenchFailure
from .processes import Command, kill, start, tail

START_SECONDS_MAX = 15.0
STOP_SECONDS_MAX = 30.0


class Daemon:
    """A phubd of this run. Use it in a `with`."""

    def __init__(self, build: Build, folder: Path, name: str = "phubd",
                 arguments: Sequence[str] = (), address: str = "127.0.0.1",
                 prefix: Sequence[str] = ()) -> None:
        """`prefix`: a command that runs another (ip netns exec NAME)."""
        self._log = folder / f"{name}.log"
        self._port_file = folder / f"{name}.port"
        memory_max = machine.memory_bytes() // (1 << 20)
        self._command = Command(
            [*prefix, str(build.phubd), "--listen", f"{address}:0", "--port-file",
             str(self._port_file), "--memory-max", f"{memory_max}MiB", *arguments], self._log)
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    def __enter__(self) -> "Daemon":
        self._process = start(self._command)
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not (self._port_file.is_file() and self._port_file.read_text().strip()):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise BenchFailure(f"phubd did not start:\n{tail(self._log)}")
                time.sleep(0.02)
        except BaseException:
            kill(self._process)
            raise
        self.endpoint = f"{self._address}:{self._port_file.read_text().strip()}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill(self._process)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def core_loops(self) -> int:
        return int(self._logged("core_loops"))

    def description(self) -> str:
        """Which settings it chose: "1 core loop, not pinned, wait=block, AVX3"."""
        loops = self.core_loops
        return (f"{loops} core loop{'s' if loops > 1 else ''}, pinned={self._logged('pinned')}, "
                f"wait={self._logged('wait')}, {self._logged('simd')}")

    def _logged(self, name: str) -> str:
        found = re.search(rf"event=serving .*\b{name}=(\S+)", self._log.read_text())
        if not found:
            raise BenchFailure(f"phubd's log does not tell {name}: {self._log}")
        return found[1]

    def cpu_seconds(self) -> float:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) * 1e-9

    # Memory, in bytes. See bench/README.md on what counts as the server's.

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        return self._status_bytes("VmHWM")

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+([0-9]+) kB", status, re.MULTILINE)
        if not found:
            raise BenchFailure(f"/proc/{self.pid}/status has no {name}")
        return int(found[1]) << 10

    def worker_memory_bytes(self) -> int:
        """Resident in it now, of the memory that it lends to workers for their gradients."""
        total = 0
        counts = False
        for line in Path(f"/proc/{self.pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                counts = "/memfd:phub-worker" in line
            elif counts and line.startswith("Rss:"):
                total += int(line.split()[1]) << 10
        return total
