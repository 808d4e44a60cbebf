"""One rank of `bench/run priorities`: small all-reduces in one group, while another group has large
ones all the time. Writes the small ones' durations in seconds as JSON. The groups have pools, or
with --keys two keys each, since groups of several racks have no pools."""

import argparse
import json
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

import phub

Values = npt.NDArray[np.float32]

POOL_CAPACITY = 4 << 20


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--priority-class", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--bulk-bytes", type=int, required=True, help="0: no large all-reduces")
    parser.add_argument("--operations", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True, help="seconds between small ones")
    parser.add_argument("--plan", default="", help="how racks exchange")
    parser.add_argument("--keys", action="store_true", help="no pools")
    parser.add_argument("--output", required=True)
    return parser.parse_args()


class Reduction(Protocol):
    """Sums arrays of one size; at most two at a time."""

    def start(self, number: int, value: float) -> Callable[[], Values]:
        """Begins a sum of arrays that begin with `value`. The result waits for it."""


class PoolReduction:
    def __init__(self, group: phub.Group, size: int) -> None:
        self._pool = group.add_pool("pool", min(size, POOL_CAPACITY), 4)
        self._values = [np.ones(size // 4, dtype=np.float32) for _ in range(2)]
        self._results = [np.empty_like(values) for values in self._values]

    def start(self, number: int, value: float) -> Callable[[], Values]:
        values = self._values[number % 2]
        values[0] = value
        handle = self._pool.all_reduce(values, self._results[number % 2])

        def end() -> Values:
            handle.wait()
            return handle.results
        return end


class KeyReduction:
    def __init__(self, group: phub.Group, size: int) -> None:
        self._keys = [group.add_key(f"key{number}", size // 4) for number in range(2)]
        for key in self._keys:
            key.gradients[:] = 1

    def start(self, number: int, value: float) -> Callable[[], Values]:
        key = self._keys[number % 2]
        key.gradients[0] = value
        handle = key.push_pull()

        def end() -> Values:
            handle.wait()
            return key.parameters
        return end


class Bulk:
    """Large all-reduces, two at a time, until some rank calls stop()."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._stop = False
        self.count = 0
        self.begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        ends = [self._reduction.start(0, 0)]
        while True:
            ends.append(self._reduction.start(self.count + 1, float(self._stop)))
            sums = ends.pop(0)()
            self.count += 1
            self.begun.set()
            # All ranks see the same sum, and have started the next one.
            if sums[0] > 0:
                ends.pop()()
                return


def main() -> None:
    given = options()
    session = phub.connect(given.endpoint)
    job = session.join(given.job, given.rank, given.ranks, transport="tcp", plan=given.plan)
    ranks = range(given.ranks)

    def reduction(name: str, priority_class: str, size: int) -> Reduction:
        group = job.new_group(name, ranks, priority_class)
        if given.keys:
            return KeyReduction(group, size)
        return PoolReduction(group, size)

    small = reduction("small", given.priority_class, given.bytes)
    large = reduction("bulk", "data", given.bulk_bytes) if given.bulk_bytes > 0 else None
    job.barrier()
    bulk = Bulk(large) if large is not None else None
    if bulk is not None:
        bulk.begun.wait()
    times = []
    for number in range(given.operations):
        time.sleep(given.pause)
        begin = time.monotonic()
        sums = small.start(number, 1)()
        times.append(time.monotonic() - begin)
        if not (sums == given.ranks).all():
            raise SystemExit("the sum is wrong")
    if bulk is not None:
        bulk.stop()
    with open(given.output, "w", encoding="utf-8") as file:
        json.dump({"times": times, "bulk": bulk.count if bulk is not None else 0}, file)
    job.leave()


main()
