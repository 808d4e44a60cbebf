"""Runs one worker of the bench through torch.distributed on Gloo, like DistributedDataParallel.

Gradients are in flat buckets of 25 MB, the last tensor first. The buckets are summed in place, one
after the other, and each is updated while the next ones are in flight. Command line, values and
output file are those of the C++ rank programs (bench/rank).
"""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default
CLASSES = 251
LEARNING_RATE = 0.01
MOMENTUM = 0.9
VERIFIED_FIRST = 2
TOLERANCE_ULPS = 4


def machine_cpu_seconds() -> float:
    user, nice, system, _, _, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def classes_of(first: int, count: int) -> torch.Tensor:
    index = torch.arange(first, first + count, dtype=torch.int64)
    return ((index * 2654435761 & 0xFFFFFFFF) >> 8) % CLASSES


def gradient_table(rank: int) -> torch.Tensor:
    return ((torch.arange(CLASSES) * 7 + rank * 5) % 17 - 8).float()


class Reference:
    """The serial computation by element class (bench/rank/values.h)."""

    def __init__(self, world: int, update: bool) -> None:
        self.sums = sum(gradient_table(rank) for rank in range(world))
        self.world = world
        self.update = update
        self.initial = (torch.arange(CLASSES) * 11 % 13 - 6).float()
        self.values = self.initial.clone()
        self.momentum: torch.Tensor | None = None
        self.exchanges = 0

    def advance(self) -> None:
        self.exchanges += 1
        if not self.update:
            self.values = self.sums
            return
        gradient = self.sums / self.world
        self.momentum = gradient if self.momentum is None else MOMENTUM * self.momentum + gradient
        self.values = self.values - LEARNING_RATE * self.momentum

    def check(self, first: int, results: torch.Tensor) -> None:
        expected = self.values[classes_of(first, results.numel())]
        tolerance = TOLERANCE_ULPS * self.exchanges * 2.0**-23 if self.update else 0.0
        good = (results - expected).abs() <= tolerance * expected.abs().clamp(min=1.0)
        if not bool(good.all()):
            at = int((~good).nonzero()[0])
            sys.exit(f"wrong after {self.exchanges} exchanges: element {first + at} is "
                     f"{results[at]}, expected {expected[at]}")


class Bucket:
    """Tensors that are summed together. `first` is the first element's index in the model."""

    def __init__(self, first: int, count: int, reference: Reference) -> None:
        self.first = first
        self.gradients = torch.zeros(count)
        self.parameters = reference.initial[classes_of(first, count)] if reference.update else None
        self.momentum = torch.zeros(count) if reference.update else None

    def fill(self, rank: int) -> None:
        self.gradients.copy_(gradient_table(rank)[classes_of(self.first, self.gradients.numel())])

    def clear(self) -> None:
        self.gradients.zero_()
        if self.momentum is not None:
            self.momentum.zero_()

    def update(self, world: int) -> None:
        if self.momentum is not None and self.parameters is not None:
            self.momentum.mul_(MOMENTUM).add_(self.gradients, alpha=1.0 / world)
            self.parameters.add_(self.momentum, alpha=-LEARNING_RATE)

    def results(self) -> torch.Tensor:
        return self.gradients if self.parameters is None else self.parameters


def make_buckets(sizes: list[int], reference: Reference) -> list[Bucket]:
    buckets = []
    end = sum(sizes)
    first = end
    for size in reversed(sizes):
        if end > first and (end - first + size) * 4 > BUCKET_BYTES:
            buckets.append(Bucket(first, end - first, reference))
            end = first
        first -= size
    buckets.append(Bucket(first, end - first, reference))
    return buckets


def exchange(buckets: list[Bucket], world: int) -> None:
    pending = [dist.all_reduce(bucket.gradients, async_op=True) for bucket in buckets]
    for bucket, work in zip(buckets, pending):
        work.wait()
        bucket.update(world)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--rank", "--world"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--sizes", required=True, help="elements of each tensor: 9408,64")
    parser.add_argument("--type", choices=["f32"], default="f32")
    parser.add_argument("--work", choices=["update", "allreduce"], default="update")
    parser.add_argument("--exchanges", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--store", required=True, help="file through which ranks find each other")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{options.store}", rank=options.rank,
                            world_size=options.world)
    reference = Reference(options.world, options.work == "update")
    buckets = make_buckets([int(size) for size in options.sizes.split(",")], reference)

    def verified_exchange() -> None:
        for bucket in buckets:
            bucket.fill(options.rank)
        exchange(buckets, options.world)
        reference.advance()
        verify()

    def verify() -> None:
        for bucket in buckets:
            reference.check(bucket.first, bucket.results())

    for _ in range(VERIFIED_FIRST):
        verified_exchange()
    # Timed exchanges sum zeros. Otherwise sums of sums would grow without bound, and decaying
    # momentum would become denormal, which is slow.
    for bucket in buckets:
        bucket.clear()
    for _ in range(options.warmup):
        exchange(buckets, options.world)
    cpu_s, machine_s = own_cpu_seconds(), machine_cpu_seconds()
    stamps_ns = [time.clock_gettime_ns(time.CLOCK_MONOTONIC)]
    for _ in range(options.exchanges):
        exchange(buckets, options.world)
        stamps_ns.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    cpu_s, machine_s = own_cpu_seconds() - cpu_s, machine_cpu_seconds() - machine_s
    verify() if reference.update else verified_exchange()
    out = {"rank": options.rank, "stamps_ns": stamps_ns, "cpu_s": cpu_s, "daemons_cpu_s": 0.0,
           "machine_cpu_s": machine_s, "verified": True,
           "notes": {"torch": torch.__version__, "buckets": str(len(buckets))}}
    unfinished = options.out.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(out) + "\n")
    unfinished.rename(options.out)


if __name__ == "__main__":
    main()
