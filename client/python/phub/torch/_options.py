"""Where the daemon is and how to reach it: options of the group, of a URL, or the environment."""

from __future__ import annotations

import dataclasses
import os
import urllib.parse
from typing import Optional

from .._errors import InvalidArgument
from .._key_spec import priority_number

DEFAULT_PORT = 7700
_FLAGS = {"plaintext_token"}


@dataclasses.dataclass(frozen=True)
class Options:
    """``init_process_group("phub", pg_options=phub.torch.Options(...))``; also the parameters of a
    ``phub://`` URL.

    endpoint: "host:port" of the daemon; default: PHUB_ENDPOINT, or port 7700 of MASTER_ADDR.
    job: start of the names of the groups' jobs; default: "torch".
    transport: "auto", "tcp", "shm" or "verbs".
    bucket_bytes: reductions of a repeated size get keys of their own, up to this sum of sizes in a
    group; 0: none do. Rank 0's value counts.
    priority_class: only of groups that new_group() makes: "tensor", "pipeline" or "data" (the
    default), the same on all members. What groups of a higher class exchange is sent first. If it
    is the only option that is set, the others are those of the default group.
    The others are those of :func:`phub.connect`.
    """

    endpoint: Optional[str] = None
    job: Optional[str] = None
    transport: str = "auto"
    tenant: Optional[str] = None
    token_file: Optional[str] = None
    ca_file: Optional[str] = None
    certificate: Optional[str] = None
    key: Optional[str] = None
    server_name: Optional[str] = None
    plaintext_token: bool = False
    bucket_bytes: int = 1 << 27
    priority_class: Optional[str] = None

    def __post_init__(self) -> None:
        try:
            priority_number(self.priority_class, "pg_options")
        except InvalidArgument as error:
            raise ValueError(str(error)) from None

    def shared(self) -> "Options":
        """What the groups of one job have in common."""
        return dataclasses.replace(self, priority_class=None)

    def for_group(self, of_default: "Options") -> "Options":
        """The options of a group whose default group has `of_default`."""
        if self.shared() == Options():
            return dataclasses.replace(of_default, priority_class=self.priority_class)
        return self

    @staticmethod
    def of_url(url: str) -> "Options":
        """"phub://host:port/job?token_file=...", in which every part may be missing."""
        parsed = urllib.parse.urlsplit(url)
        if parsed.scheme != "phub":
            raise ValueError(f"{url!r} is not a phub:// URL")
        values: dict[str, object] = {}
        names = {field.name for field in dataclasses.fields(Options)}
        names -= {"endpoint", "job", "priority_class"}
        for name, value in urllib.parse.parse_qsl(parsed.query, keep_blank_values=True):
            if name in ("rank", "world_size"):  # torch adds these to the URL
                continue
            if name not in names:
                raise ValueError(
                    f"{url!r}: {name!r} is not a parameter; known are {', '.join(sorted(names))}"
                )
            if name in _FLAGS:
                values[name] = value not in ("", "0", "false")
            else:
                values[name] = int(value) if name == "bucket_bytes" else value
        if parsed.netloc:
            has_port = parsed.netloc.rpartition("]")[2].rpartition(":")[1] == ":"
            values["endpoint"] = parsed.netloc + ("" if has_port else f":{DEFAULT_PORT}")
        job = urllib.parse.unquote(parsed.path.strip("/"))
        if job:
            values["job"] = job
        return Options(**values)  # type: ignore[arg-type]

    def daemon(self) -> str:
        """host:port."""
        if self.endpoint:
            return self.endpoint
        given = os.environ.get("PHUB_ENDPOINT")
        if given:
            return given
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        return f"{host}:{DEFAULT_PORT}"


@dataclasses.dataclass(frozen=True)
class Place:
    """This process in a run, as its launcher says."""

    rank: int
    size: int
    run: Optional[str]  # the same for all processes of a run, and only for them


# (rank, size, run), in this order.
_LAUNCHERS = (
    ("PHUB_RANK", "PHUB_WORLD_SIZE", ("PHUB_RUN",)),
    ("RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("SLURM_PROCID", "SLURM_NTASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)


def place(rank: int = -1, size: int = -1, what: str = "phub://", how: str = "") -> Place:
    """The given rank and size, completed from variables of torchrun, Open MPI, SLURM or PHUB_*.

    what: needs them, for the error. how: another way to give them."""
    environ = os.environ
    for rank_name, size_name, run_names in _LAUNCHERS:
        if rank_name in environ and size_name in environ:
            rank = int(environ[rank_name]) if rank < 0 else rank
            size = int(environ[size_name]) if size < 0 else size
            parts = [environ[name] for name in run_names if environ.get(name)]
            run = ".".join(part for part in parts if part != "none") or None
            return Place(rank, size, run)
    if rank < 0 or size < 0:
        raise ValueError(
            f"{what} needs this process's rank and the world size: {how}set PHUB_RANK and "
            "PHUB_WORLD_SIZE, or start the processes with torchrun, mpirun or srun"
        )
    return Place(rank, size, None)
