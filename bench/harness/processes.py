"""Starts and watches the processes of a bench, and always stops them at the end."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .failure import BenchFailure

LOG_TAIL_LINES = 12
TERMINATE_SECONDS_MAX = 2.0


@dataclass
class Command:
    """A process to start. Its output is written to `log`."""

    arguments: Sequence[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)

    def name(self) -> str:
        return Path(self.arguments[0]).name


def tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join("    " + line for line in lines[-LOG_TAIL_LINES:])


def clean_environment() -> dict[str, str]:
    """The environment without PHUB_* variables: a bench uses only defaults and its own options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PHUB_")}


def start(command: Command) -> subprocess.Popen[bytes]:
    # A process group of its own, so that its children are stopped with it. Not its own session:
    # many kernels divide cores among sessions and not among threads (bench/NOTES.md).
    environment = clean_environment() | command.environment
    with command.log.open("ab") as log:
        try:
            return subprocess.Popen(command.arguments, stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=subprocess.STDOUT, env=environment,
                                    process_group=0)
        except OSError as error:
            raise BenchFailure(f"cannot start {command.arguments[0]}: {error.strerror}") from error


def kill(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM first: mpirun then stops its ranks, which have process groups of their own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_SECONDS_MAX)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def started(commands: Sequence[Command]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs all commands inside the `with` block, and kills those that still run at its end."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(start(command))
        yield processes
    finally:
        for process in processes:
            kill(process)


@contextlib.contextmanager
def started_and_ready(command: Command, said: str,
                      seconds_max: float) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command inside the `with` block, which begins when `said` is in the log."""
    command.log.unlink(missing_ok=True)  # an earlier run's log
    with started([command]) as (process,):
        deadline = time.monotonic() + seconds_max
        while said not in tail(command.log):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchFailure(f"{' '.join(command.arguments)} did not become ready within "
                                   f"{seconds_max:.0f} s:\n{tail(command.log)}")
            time.sleep(0.02)
        yield process


def run_together(commands: Sequence[Command], timeout_s: float) -> None:
    """Runs all commands until the last one succeeds. If one fails, raises its status and log."""
    deadline = time.monotonic() + timeout_s
    with started(commands) as processes:
        waiting = list(zip(commands, processes))
        while waiting:
            for command, process in waiting:
                status = process.poll()
                if status not in (None, 0):
                    how = f"signal {-status}" if status < 0 else f"status {status}"
                    raise BenchFailure(f"{command.name()} ended with {how}:\n{tail(command.log)}")
            waiting = [(command, process) for command, process in waiting
                       if process.poll() is None]
            if waiting and time.monotonic() > deadline:
                command = waiting[0][0]
                raise BenchFailure(f"{command.name()} still ran after {timeout_s:.0f} s:\n"
                                   f"{tail(command.log)}")
            # Polling this rarely takes no CPU time from the measured processes.
            time.sleep(0.02)
