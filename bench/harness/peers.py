"""The peers: alternatives to phub, from Debian's packages."""

import functools
import subprocess
import sys
from pathlib import Path

from .build import Build
from .processes import Command
from .systems import HERE, Place, System, rank_files
from .workload import ROOT, Workload

INSTALL = "run bench/run without --smoke and --no-build to install it"
OPENBLAS = Path("/usr/lib/x86_64-linux-gnu/openblas-pthread")


class OpenMpi(System):
    """MPI_Allreduce, followed by the update in each worker."""

    def __init__(self, build: Build, transport: str, fused: bool) -> None:
        self.name = f"openmpi-{transport}"
        self.transport = transport
        self.variant = "one fused buffer" if fused else "per tensor"
        self._build = build
        self._fused = fused

    def missing(self) -> str:
        return "" if self._build.has("bench-openmpi-rank") else f"no Open MPI: {INSTALL}"

    def unfit(self, workload: Workload) -> str:
        if workload.type != "f32":
            return "it does not sum f16 or bf16"
        if self._fused and len(workload.model.sizes) == 1:
            return "the model has only one tensor"
        return ""

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        # pml ob1 with one btl in addition to self restricts Open MPI to this transport.
        btl = "vader" if self.transport == "shm" else "tcp"
        fused = ["--fused"] if self._fused else []
        return [Command(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
             "-n", str(workload.workers), "--mca", "pml", "ob1", "--mca", "btl", f"self,{btl}",
             "--mca", "btl_tcp_if_include", "lo",
             str(self._build.program("bench-openmpi-rank")), "--rank", "%rank%",
             "--out", str(folder / "rank-%rank%.json"), *workload.rank_arguments(), *fused],
            folder / "mpirun.log")]


class Gloo(System):
    """Gloo's all-reduce of one fused buffer over tcp, followed by the update in each worker."""

    transport = "tcp"

    def __init__(self, build: Build, algorithm: str, place: Place = HERE) -> None:
        self.name = "gloo-hd" if algorithm == "halving-doubling" else "gloo-ring"
        self.variant = algorithm
        self._build = build
        self._place = place

    def missing(self) -> str:
        return "" if self._build.has("bench-gloo-rank") else f"no Gloo: {INSTALL}"

    def unfit(self, workload: Workload) -> str:
        return "" if workload.type == "f32" else "measured with f32 only"

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        store = folder / "store"
        store.mkdir()
        commands = []
        for rank in range(workload.workers):
            own, log = rank_files(rank, folder)
            commands.append(Command(
                [*self._place.prefix(rank), str(self._build.program("bench-gloo-rank")), *own,
                 *workload.rank_arguments(), "--algorithm", self.variant, "--store", str(store),
                 "--interface", self._place.interface(rank)], log))
        return commands


@functools.cache
def torch_python() -> str:
    """A Python interpreter that has torch.distributed, or an empty string."""
    for python in ("/usr/bin/python3", sys.executable):
        answer = subprocess.run([python, "-c", "import torch.distributed as d; d.is_available()"],
                                capture_output=True, check=False)
        if answer.returncode == 0:
            return python
    return ""


class TorchGloo(System):
    """torch.distributed on Gloo with the buckets of DistributedDataParallel."""

    name = "torch-gloo"
    transport = "tcp"

    def __init__(self, place: Place = HERE) -> None:
        self._place = place

    def missing(self) -> str:
        return "" if torch_python() else f"no PyTorch: {INSTALL}"

    def unfit(self, workload: Workload) -> str:
        return "" if workload.type == "f32" else "measured with f32 only"

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        # One thread, since the ranks share the cores. OpenBLAS, if installed, for this process
        # only.
        environment = {"OMP_NUM_THREADS": "1"}
        if OPENBLAS.is_dir():
            environment["LD_LIBRARY_PATH"] = str(OPENBLAS)
        commands = []
        for rank in range(workload.workers):
            own, log = rank_files(rank, folder)
            commands.append(Command(
                [*self._place.prefix(rank), torch_python(),
                 str(ROOT / "bench" / "peers" / "torch_rank.py"), *own,
                 *workload.rank_arguments(), "--store", str(folder / "store")], log,
                environment | {"GLOO_SOCKET_IFNAME": self._place.interface(rank)}))
        return commands


def every_peer(build: Build) -> list[list[System]]:
    """The variants of each peer. A comparison measures the fastest variant."""
    return [
        [OpenMpi(build, "shm", fused=False), OpenMpi(build, "shm", fused=True)],
        [OpenMpi(build, "tcp", fused=False), OpenMpi(build, "tcp", fused=True)],
        [Gloo(build, "ring"), Gloo(build, "ring-chunked")],
        [Gloo(build, "halving-doubling")],
        [TorchGloo()],
    ]
