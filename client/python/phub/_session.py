"""Sessions: connections to a daemon, and what happens to them when the process exits."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import types
import weakref
from typing import Optional

from . import _library, _logs
from ._blocking import run_interruptibly
from ._errors import InvalidArgument, check
from ._job import Job
from ._library import lib

_ON_LOSS = {"fail": 0, "wait": 1}
_SCREENING = {"off": 0, "report": 1, "reject": 2}
_APPLY = {"chunk": 0, "iteration": 1}
_TRANSPORTS = {"auto": 0, "tcp": 1, "shm": 2, "verbs": 3}
_SUMS = {"float": 0, "fixed": 1}

_jobs: "weakref.WeakSet[Job]" = weakref.WeakSet()


def _at_exit() -> None:
    # Before the interpreter ends: libphub's threads must not call Python after that.
    _logs.stop()
    crashed = getattr(sys, "last_value", None) is not None  # an exception ends the process
    for job in list(_jobs):
        if crashed and job._restart:
            job._abandon()
        else:
            job._leave_quietly()


atexit.register(_at_exit)


def _choice(name: str, value: str, choices: dict[str, int]) -> int:
    if value not in choices:
        raise InvalidArgument(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
    return choices[value]


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else os.fsencode(value)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


class Session:
    """A connection to a daemon. Made by :func:`phub.connect`. Its jobs may outlive it."""

    def __init__(self, pointer: int) -> None:
        self._pointer: Optional[int] = pointer

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[types.TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Jobs that were joined continue."""
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            lib.phub_session_free(pointer)

    def join(
        self,
        job: str,
        rank: int = 0,
        world_size: int = 1,
        *,
        chunk_bytes: int = 0,
        staging_bytes: int = 0,
        on_loss: str = "fail",
        wait_timeout: float = 60.0,
        restart: bool = False,
        screening: str = "report",
        apply: str = "chunk",
        clip_norm: float = 0.0,
        skip_nonfinite: bool = False,
        transport: str = "auto",
        plan: str = "",
        join_timeout: float = 0.0,
        sum: str = "float",
        sum_block: int = 0,
        leave_timeout: float = 5.0,
    ) -> Job:
        """Joins a job; the first rank creates it. Does not wait for other ranks.

        If ranks are missing after join_timeout seconds (0: no limit), the job ends with an error
        that names them.

        on_loss: "fail" or "wait"; screening: "off", "report" or "reject"; apply: "chunk" or
        "iteration"; transport: "auto", "tcp", "shm" or "verbs"; sum: "float" or "fixed". Timeouts
        are in seconds. The header phub/job_options.h explains each option. With restart=True, an
        exception that ends the process counts as a death: a new process may take over the rank.
        """
        if rank < 0 or world_size < 1:
            raise InvalidArgument(f"rank is {rank} and world_size is {world_size} (job {job})")
        options = _library.JobOptions()
        lib.phub_job_options_init(ctypes.byref(options), ctypes.sizeof(options))
        options.job = job.encode()
        options.rank = rank
        options.world_size = world_size
        options.chunk_bytes = chunk_bytes
        options.staging_bytes = staging_bytes
        options.on_loss = _choice("on_loss", on_loss, _ON_LOSS)
        options.wait_timeout_ms = _milliseconds(wait_timeout)
        options.restart = int(restart)
        options.screening = _choice("screening", screening, _SCREENING)
        options.apply = _choice("apply", apply, _APPLY)
        options.clip_norm = clip_norm
        options.skip_nonfinite = int(skip_nonfinite)
        options.transport = _choice("transport", transport, _TRANSPORTS)
        options.plan = _text(plan)
        options.join_timeout_ms = _milliseconds(join_timeout)
        options.sum = _choice("sum", sum, _SUMS)
        options.sum_block = sum_block
        options.leave_timeout_ms = _milliseconds(leave_timeout)

        def call() -> int:
            pointer = ctypes.c_void_p()
            check(lib.phub_session_join, self._pointer, options, ctypes.byref(pointer))
            assert pointer.value is not None
            return pointer.value

        pointer = run_interruptibly(call, lib.phub_job_free)
        joined = Job(pointer, job, rank, world_size, restart)
        _jobs.add(joined)
        return joined


def connect(
    endpoint: str,
    *,
    tenant: Optional[str] = None,
    token_file: Optional[str] = None,
    ca_file: Optional[str] = None,
    certificate: Optional[str] = None,
    key: Optional[str] = None,
    server_name: Optional[str] = None,
    plaintext_token: bool = False,
    connect_timeout: float = 10.0,
    call_timeout: float = 30.0,
) -> Session:
    """Connects to a daemon: "phub://host:port", "phub://host" (port 7700) or "host:port".

    The credentials are paths of files; by default those that the environment variables
    PHUB_TOKEN_FILE, PHUB_CA_FILE, PHUB_CERTIFICATE and PHUB_KEY name. Timeouts are in seconds.
    """
    options = _library.ConnectOptions()
    lib.phub_connect_options_init(ctypes.byref(options), ctypes.sizeof(options))
    options.tenant = _text(tenant)
    options.token_file = _text(token_file)
    options.ca_file = _text(ca_file)
    options.certificate = _text(certificate)
    options.key = _text(key)
    options.server_name = _text(server_name)
    options.plaintext_token = int(plaintext_token)
    options.connect_timeout_ms = _milliseconds(connect_timeout)
    options.call_timeout_ms = _milliseconds(call_timeout)

    def call() -> int:
        pointer = ctypes.c_void_p()
        check(lib.phub_connect, endpoint.encode(), options, ctypes.byref(pointer))
        assert pointer.value is not None
        return pointer.value

    return Session(run_interruptibly(call, lib.phub_session_free))
