"""The systems that a bench compares. Each one can start its ranks for a workload."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .build import Build
from .daemon import Daemon
from .namespaces import INTERFACE, Network
from .processes import Command
from .workload import Workload


@dataclass(frozen=True)
class Place:
    """Where the ranks run. The default is this host. A bench with network namespaces gives every
    rank a command prefix, an address and an interface."""

    prefixes: Sequence[Sequence[str]] = ()
    addresses: Sequence[str] = ()
    interfaces: Sequence[str] = ()

    @staticmethod
    def on(network: Network, nodes: Sequence[str]) -> "Place":
        """Rank i runs on nodes[i]."""
        return Place([network.prefix(node) for node in nodes],
                     [network.address(node) for node in nodes], [INTERFACE] * len(nodes))

    def prefix(self, rank: int) -> list[str]:
        return list(self.prefixes[rank]) if self.prefixes else []

    def address(self, rank: int) -> str:
        return self.addresses[rank] if self.addresses else "127.0.0.1"

    def interface(self, rank: int) -> str:
        return self.interfaces[rank] if self.interfaces else "lo"


HERE = Place()


class System:
    """One system over one transport. Results use `name`."""

    name = ""
    transport = ""
    is_floor = False  # true: not a compared system, but part of a ceiling
    variant = ""  # the variant's name, if the system has several and the fastest is measured

    @property
    def label(self) -> str:
        """Unique in a run, since phub is measured over each transport."""
        return f"{self.name}/{self.transport}"

    @property
    def is_phub(self) -> bool:
        return self.name.startswith("phub")

    def missing(self) -> str:
        """Empty, or why the system cannot be measured on this host."""
        return ""

    def unfit(self, workload: Workload) -> str:
        """Empty, or why the system cannot run this workload."""
        del workload
        return ""

    def rank_count(self, workload: Workload) -> int:
        return workload.workers

    def prepare(self) -> int:
        """Called before each block. Returns the number of resident bytes in its daemons."""
        return 0

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        """The processes, which write folder/rank-R.json and exit."""
        raise NotImplementedError


def rank_files(rank: int, folder: Path) -> tuple[list[str], Path]:
    """The arguments for a rank and its output file, and the path of its log."""
    return (["--rank", str(rank), "--out", str(folder / f"rank-{rank}.json")],
            folder / f"rank-{rank}.log")


class Phub(System):
    """libphub's workers and a phubd that runs during all blocks. An idle phubd blocks."""

    _job_numbers = itertools.count()

    def __init__(self, build: Build, daemons: Sequence[Daemon], transport: str, memory: str,
                 options: Sequence[str] = (), place: Place = HERE,
                 racks: Sequence[int] = ()) -> None:
        """`memory`: "library" for phub's buffers, "user" for the worker's own. `options`:
        additional options of bench-phub-rank. `racks`: each rank's index into `daemons`."""
        self.name = "phub" if memory == "library" else "phub-usermem"
        self.transport = transport
        self._build = build
        self._daemons = daemons
        self._memory = memory
        self._options = options
        self._place = place
        self._racks = racks
        self.other_pids: list[int] = []  # processes that work for it, besides its daemons

    def prepare(self) -> int:
        return sum(daemon.begin_peak() for daemon in self._daemons)

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        program = str(self._build.program("bench-phub-rank"))
        job = f"bench-{next(self._job_numbers)}"
        pids = ",".join(map(str, [*(daemon.pid for daemon in self._daemons), *self.other_pids]))
        commands = []
        for rank in range(workload.workers):
            own, log = rank_files(rank, folder)
            daemon = self._daemons[self._racks[rank] if self._racks else 0]
            commands.append(Command(
                [*self._place.prefix(rank), program, *own, *workload.rank_arguments(),
                 "--memory", self._memory, "--endpoint", daemon.endpoint, "--job", job,
                 "--transport", self.transport, "--daemon-pids", pids, *self._options], log))
        return commands
