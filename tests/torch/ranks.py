"""Ranks of a process group as processes, which start fast: a server that has imported torch forks
them."""

from __future__ import annotations

import atexit
import datetime
import multiprocessing
import os
import pathlib
import queue
import signal
import sys
import tempfile
import time
import traceback
import unittest
from typing import Any, Callable, Optional

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
from daemon import Daemon  # noqa: E402

PATIENCE_S = 180.0  # on a busy machine; nothing takes this long
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["preload"])


class Failed(Exception):
    """A rank raised an exception."""


def _body(
    rank: int,
    size: int,
    folder: str,
    environment: dict[str, str],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    results: Any,
) -> None:
    os.environ.update(environment)
    sys.stderr = open(f"{folder}/stderr-{rank}", "w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    try:
        results.put((rank, True, function(rank, size, *arguments)))
    except BaseException as error:
        results.put((rank, False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    results.close()
    results.join_thread()
    atexit._run_exitfuncs()  # multiprocessing's children skip them


class Run:
    """One run of `size` ranks of function(rank, size, *arguments)."""

    def __init__(
        self,
        endpoint: str,
        size: int,
        function: Callable[..., Any],
        *arguments: Any,
        environment: Optional[dict[str, str]] = None,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="phub-torch-")
        self._results: Any = CONTEXT.Queue()
        self._received: dict[int, tuple[bool, Any]] = {}
        values = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(size),
            "PHUB_ENDPOINT": endpoint,
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }

        def start(rank: int) -> Any:
            own = {**values, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            folder = self.folder.name
            body = (rank, size, folder, own, function, arguments, self._results)
            process = CONTEXT.Process(target=_body, args=body)
            process.start()
            return process

        self._start = start
        self.processes = [start(rank) for rank in range(size)]

    def restart(self, rank: int) -> int:
        """Starts the rank again after its process has ended. Returns the exit code of that one."""
        self.processes[rank].join(PATIENCE_S)
        code = self.processes[rank].exitcode
        self.processes[rank] = self._start(rank)
        return int(code)

    def result(self, rank: int, timeout: float = PATIENCE_S) -> Any:
        """Raises Failed if the rank raised."""
        end = time.monotonic() + timeout
        while rank not in self._received:
            try:
                number, fine, value = self._results.get(timeout=0.1)
                self._received[number] = (fine, value)
            except queue.Empty:
                if time.monotonic() > end:
                    raise TimeoutError(f"rank {rank} does not end:\n{self.errors()}") from None
                if self.processes[rank].exitcode is not None and self._results.empty():
                    code = self.processes[rank].exitcode
                    raise Failed(f"rank {rank} ended with {code}:\n{self.errors()}") from None
        fine, value = self._received[rank]
        if not fine:
            raise Failed(f"rank {rank} raised {value}\n{self.errors()}")
        return value

    def results(self, timeout: float = PATIENCE_S) -> list[Any]:
        try:
            return [self.result(rank, timeout) for rank in range(len(self.processes))]
        finally:
            self.end()

    def errors(self) -> str:
        """What the ranks wrote to standard error."""
        parts = []
        for path in sorted(pathlib.Path(self.folder.name).glob("stderr-*")):
            parts.append(f"---- {path.name}\n{path.read_text()[-4000:]}")
        return "\n".join(parts)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def end(self, patience: float = 10.0) -> None:
        end = time.monotonic() + patience
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        self.folder.cleanup()


def _free_port() -> int:
    """Outside the kernel's own range, so no other process is given this port or those after it."""
    import random
    import socket

    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class TorchTest(unittest.TestCase):
    daemon: Daemon

    @classmethod
    def setUpClass(cls) -> None:
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.daemon.stop()

    def start(
        self, size: int, function: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Run:
        run = Run(self.daemon.endpoint, size, function, *arguments, **options)
        self.addCleanup(run.end, 0.0)
        return run

    def run_ranks(
        self, size: int, function: Callable[..., Any], *arguments: Any, **options: Any
    ) -> list[Any]:
        return self.start(size, function, *arguments, **options).results()


_initializations = 0


def initialize(timeout: float = 30.0, **options: Any) -> Any:
    """The default group. Returns torch.distributed."""
    global _initializations
    import torch.distributed as dist

    import phub.torch  # noqa: F401

    # A rank that is ahead of rank 0 could find the store of the group before.
    if _initializations > 0 and "MASTER_PORT" in os.environ:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    _initializations += 1
    dist.init_process_group("phub", timeout=datetime.timedelta(seconds=timeout), **options)
    return dist


def leave_after(dist: Any, rank: int, other: int) -> None:
    """Rank `rank` waits until rank `other` has called this, too: the daemon ends the job when it
    leaves, if the other one has a round in flight that needs it."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == other:
        store.set("may leave", "yes")
    elif dist.get_rank() == rank:
        store.get("may leave")


def all_cases(module: str, rank: int, size: int, **options: Any) -> list[str]:
    """Runs all functions case_* of a module in one group. Returns the errors."""
    import importlib

    dist = initialize(**options)
    errors = []
    cases = importlib.import_module(module)
    for name in sorted(vars(cases)):
        if not name.startswith("case_"):
            continue
        try:
            vars(cases)[name](rank, size)
        except unittest.SkipTest:
            continue
        except BaseException:
            errors.append(f"{name}: {traceback.format_exc()}")
            break  # the ranks are out of step
    if not errors:
        dist.destroy_process_group()
    return errors
