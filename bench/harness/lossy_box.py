"""A bad network: bench-lossy-box between the nodes of a network and its bridges."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .build import Build
from .failure import BenchFailure
from .namespaces import Network
from .processes import clean_environment, tail

PROGRAM = "bench-lossy-box"
START_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 5.0


def missing(build: Build) -> str:
    """Empty, or why this build or this host has no box and no aggregator in the kernel."""
    if not build.has(PROGRAM):
        return "this build has no programs for the kernel (PHUB_XDP)"
    answer = subprocess.run([build.program(PROGRAM), "--check"], capture_output=True, text=True,
                            check=False)
    return answer.stderr.strip() if answer.returncode != 0 else ""


class Box:
    """The box of a network. Use it in a `with` statement: without it, nothing is forwarded."""

    def __init__(self, build: Build, network: Network, nodes: Sequence[str], lost_percent: float,
                 port: int, log: Path) -> None:
        """Each link loses `lost_percent` of its packets in each direction. `port`: the
        aggregator's."""
        self._nodes = list(nodes)
        self._log = log
        self._command = [*network.prefix("box"), str(build.program(PROGRAM)), "--port", str(port),
                         "--up-lost", str(lost_percent), "--down-lost", str(lost_percent)]
        for node in nodes:
            self._command += ["--link", network.box_link(node)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Box":
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=clean_environment(), process_group=0)
        deadline = time.monotonic() + START_SECONDS_MAX
        while "event=box_ready" not in tail(self._log):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise BenchFailure(f"{PROGRAM} did not start:\n{tail(self._log)}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def counters(self) -> dict[str, dict[str, Any]]:
        """By node: what its link has carried so far, "up" from the node and "down" to it."""
        assert self._process is not None and self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailure(f"{PROGRAM} has ended:\n{tail(self._log)}")
        return dict(zip(self._nodes, json.loads(line)["links"]))
