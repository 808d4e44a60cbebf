"""Starts and stops a phubd for a bench, and reads its memory and CPU use."""

import json
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from . import machine
from .build import Build
from .failure import BenchFailure
from .processes import Command, clean_environment, kill, start, tail
from .workload import UNITS

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
MEMORY_BACK_SECONDS_MAX = 2.0
# The allocator keeps some freed memory.
MEMORY_KEPT_BYTES_MAX = 16 << 20


class Daemon:
    """A phubd for this run. Use it in a `with` statement."""

    def __init__(self, build: Build, folder: Path, name: str = "phubd",
                 arguments: Sequence[str] = (), address: str = "127.0.0.1",
                 prefix: Sequence[str] = (), port: int = 0) -> None:
        """`prefix`: a command that runs another (ip netns exec NAME). `port`: 0 for any free one.
        """
        self._log = folder / f"{name}.log"
        self._port_file = folder / f"{name}.port"
        memory_max = machine.memory_bytes() // (1 << 20)
        settings = ["--listen", f"{address}:{port}", "--port-file", str(self._port_file),
                    "--memory-max", f"{memory_max}MiB", *arguments]
        self._command = Command([*prefix, str(build.phubd), *settings], self._log)
        self._address = address
        self._prefix = list(prefix)
        self._staging_bytes = self._setting(build.phubd, settings, "staging_bytes_per_lane")
        self._process: subprocess.Popen[bytes] | None = None
        self._idle_bytes = 0
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
        self._idle_bytes = self.resident_bytes()
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

    @property
    def data_endpoint(self) -> str:
        """ADDRESS:PORT on which it accepts data lanes."""
        return self._logged("data_listen")

    @property
    def staging_bytes_per_lane(self) -> int:
        return self._staging_bytes

    def description(self) -> str:
        """The settings that it chose: "1 core loop, pinned=no, wait=block, AVX3"."""
        loops = self.core_loops
        return (f"{loops} core loop{'s' if loops > 1 else ''}, pinned={self._logged('pinned')}, "
                f"wait={self._logged('wait')}, {self._logged('simd')}")

    def _logged(self, name: str) -> str:
        """A field of event=serving. phubd may write the port file before this line of the log."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (line := re.search(r"event=serving (.*)\n", self._log.read_text())):
            if time.monotonic() > deadline:
                raise BenchFailure(f"phubd's log has no event=serving: {self._log}")
            time.sleep(0.02)
        found = re.search(rf"\b{name}=(\S+)", line[1])
        if not found:
            raise BenchFailure(f"phubd's log has no {name}= in event=serving: {self._log}")
        return found[1]

    @staticmethod
    def _setting(phubd: Path, arguments: Sequence[str], name: str) -> int:
        """The value of a size setting, as phubd --dump-config prints it."""
        dump = subprocess.run([phubd, *arguments, "--dump-config"], capture_output=True, text=True,
                              check=False, env=clean_environment())
        found = re.search(rf'^{name} *= *"?([0-9]+)(KiB|MiB|GiB|)"?', dump.stdout, re.MULTILINE)
        if not found:
            raise BenchFailure(f"phubd --dump-config does not print {name}: {dump.stderr}")
        return int(found[1]) * UNITS[found[2]]

    def cpu_seconds(self) -> float:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) * 1e-9

    def ask(self, phubctl: Path, arguments: Sequence[str]) -> str:
        """The output of `phubctl ARGUMENTS` for this daemon."""
        command = [*self._prefix, phubctl, "--endpoint", self.endpoint, *arguments]
        answer = subprocess.run(command,
                                capture_output=True, text=True, check=False,
                                env=clean_environment())
        if answer.returncode != 0:
            raise BenchFailure(f"phubctl {' '.join(arguments)} failed: {answer.stderr}")
        return answer.stdout

    def counters(self, phubctl: Path) -> Counter[str]:
        """The counters of phubctl stats, summed over all core loops: phub_rounds_total, ..."""
        counters: Counter[str] = Counter()
        for counter in json.loads(self.ask(phubctl, ["stats", "-o", "json"]))["counters"]:
            if int(counter.get("core", -1)) >= 0:
                counters[counter["name"]] += int(counter["value"])
        return counters

    def begin_peak(self) -> int:
        """Resets the daemon's peak memory, which rank 0 reads later. First waits until the memory
        of the last job is freed, which takes a moment. Returns the number of resident bytes."""
        deadline = time.monotonic() + MEMORY_BACK_SECONDS_MAX
        while self.resident_bytes() > self._idle_bytes + MEMORY_KEPT_BYTES_MAX:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.resident_bytes()

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+([0-9]+) kB", status, re.MULTILINE)
        if not found:
            raise BenchFailure(f"/proc/{self.pid}/status has no {name}")
        return int(found[1]) << 10
