"""Ranks that are Python programs with torch, for the benches that train with PyTorch."""

import argparse
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence

from .context import Context
from .failure import NotPossibleHere
from .processes import Command, run_together
from .workload import ROOT


def add_python_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", default=os.environ.get("PHUB_TORCH_PYTHON", "/usr/bin/python3"),
                        help="interpreter with torch (default: PHUB_TORCH_PYTHON, "
                        "or /usr/bin/python3)")


def require_torch(python: str, imports: str = "torch, numpy, torch.distributed",
                  missing: str = "torch") -> None:
    """Raises NotPossibleHere if the interpreter lacks the modules."""
    found = subprocess.run([python, "-c", f"import {imports}"], capture_output=True, check=False)
    if found.returncode != 0:
        raise NotPossibleHere(f"{python} has no {missing}; see --python")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(context: Context, program: str, arguments: Sequence[Sequence[str]], name: str,
              seconds_max: float, environment: Mapping[str, str] | None = None) -> None:
    """Runs bench/peers/`program` once for each rank, with that rank's arguments. Logs are
    `name`-RANK.log."""
    values = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(len(arguments)), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "client" / "python"),
        "PHUB_LIBRARY": str(context.build.folder / "client" / "libphub.so.0")}
    values |= environment or {}
    path = str(ROOT / "bench" / "peers" / program)
    run_together([Command([context.options.python, path, *own],
                          context.scratch / f"{name}-{rank}.log", values | {"RANK": str(rank)})
                  for rank, own in enumerate(arguments)], seconds_max)
