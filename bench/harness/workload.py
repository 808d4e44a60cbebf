"""Workloads: the exchanged tensors, the number of workers, and the number of exchanges."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from .failure import UsageError

ROOT = Path(__file__).resolve().parent.parent.parent
# Tensor sizes of real networks. The tests use the same files.
MODELS = ROOT / "tests" / "data" / "models"
TYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size_text(count: int) -> str:
    """A number of bytes as text: 4 KiB, 97.5 MiB."""
    unit = max((name for name, scale in UNITS.items() if count >= scale),
               key=lambda name: UNITS[name], default="")
    return f"{count / UNITS[unit]:.3g} {unit or 'bytes'}"


@dataclass(frozen=True)
class Model:
    """A list of tensors: those of a network, or a single f32 tensor of a given size."""

    name: str
    sizes: tuple[int, ...]  # elements

    @property
    def element_count(self) -> int:
        return sum(self.sizes)


def model_names() -> list[str]:
    return sorted(path.stem for path in MODELS.glob("*.csv"))


def model(name: str) -> Model:
    """The model for resnet50, a CSV file, or the size of a single f32 tensor (4096, 4KiB, 1MiB)."""
    size = re.fullmatch(r"([0-9]+)(|KiB|MiB|GiB)", name)
    if size:
        length = int(size[1]) * UNITS[size[2]]
        if length == 0 or length % 4 != 0:
            raise UsageError(f"--model {name}: the size of an f32 tensor must be a positive "
                             "multiple of 4 bytes")
        return Model(str(length), (length // 4,))
    path = Path(name) if name.endswith(".csv") else MODELS / f"{name}.csv"
    try:
        lines = path.read_text().split()
        sizes = tuple(int(line.split(",")[1]) for line in lines[1:])
    except (OSError, ValueError, IndexError) as error:
        raise UsageError(
            f"--model {name}: pass a size (1MiB), one of {', '.join(model_names())}, or a CSV "
            "file with lines of tensor_index,elements") from error
    if not sizes:
        raise UsageError(f"--model {name}: {path} has no tensors")
    return Model(path.stem, sizes)


@dataclass(frozen=True)
class Workload:
    model: Model
    workers: int
    work: str = "update"  # or "allreduce"
    type: str = "f32"
    exchanges: int = 10  # timed exchanges in a block
    warmup: int = 2
    snapshots: bool = False  # counters are read around the timed exchanges (snapshots.py)
    drain: str = ""  # ADDRESS:PORT of bench-drain-echo to use before each timed exchange

    @property
    def bytes(self) -> int:
        """The bytes of one worker's gradients."""
        return self.model.element_count * TYPE_BYTES[self.type]

    def case(self, bench: str, transport: str) -> str:
        return f"{bench}/{transport}/{self.model.name}/w{self.workers}/{self.type}/{self.work}"

    def with_exchanges(self, exchanges: int) -> "Workload":
        return replace(self, exchanges=exchanges)

    def rank_arguments(self) -> list[str]:
        """The arguments common to every rank program, without its rank and output file."""
        return ["--world", str(self.workers), "--sizes", ",".join(map(str, self.model.sizes)),
                "--type", self.type, "--work", self.work, "--exchanges", str(self.exchanges),
                "--warmup", str(self.warmup), *(["--snapshots"] if self.snapshots else []),
                *(["--drain", self.drain] if self.drain else [])]
