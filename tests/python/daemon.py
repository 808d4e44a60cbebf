"""A phubd on its own port, and workers as threads or processes, for the tests of the package."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable

import phub

PATIENCE_S = 60.0  # much longer than any step takes


class Daemon:
    def __init__(self, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phub-python-")
        port = pathlib.Path(self._folder.name) / "port"
        self._process = subprocess.Popen(
            [os.environ["PHUB_TEST_PHUBD"], "--listen", "127.0.0.1:0", "--port-file", str(port)]
            + list(arguments),
            # Variables that start with PHUB_ are settings of phubd.
            env={k: v for k, v in os.environ.items() if not k.startswith("PHUB_")},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + PATIENCE_S
        while not (port.exists() and port.read_text().strip()):
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError("phubd did not start")
            time.sleep(0.01)
        self.endpoint = f"127.0.0.1:{port.read_text().strip()}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()


def on_ranks(count: int, body: Callable[[int], Any]) -> list[Any]:
    """Runs body(rank) on a thread for each rank. Returns the results; raises the first error."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        if thread.is_alive():
            raise TimeoutError("a rank did not end in time")
    if errors:
        raise errors[0]
    return results


def start_program(text: str, *arguments: str) -> "subprocess.Popen[str]":
    """A Python process that runs `text`."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", text, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class DaemonTest(unittest.TestCase):
    daemon: Daemon
    session: phub.Session

    @classmethod
    def setUpClass(cls) -> None:
        cls.daemon = Daemon()
        cls.session = phub.connect(cls.daemon.endpoint)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.session.close()
        cls.daemon.stop()

    def join(self, rank: int = 0, world_size: int = 1, **options: Any) -> phub.Job:
        return self.session.join(
            self.id(), rank, world_size, **{"leave_timeout": 0.2, **options}
        )
