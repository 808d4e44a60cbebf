"""One rank of `bench/run priorities`: small all-reduces in one group, while another group has large
ones all the time. Writes the small ones' durations in seconds as JSON."""

import argparse
import json
import threading
import time

import numpy as np

import phub

BULK_CAPACITY = 4 << 20


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
    parser.add_argument("--output", required=True)
    return parser.parse_args()


class Bulk:
    """Large all-reduces, two at a time, until some rank calls stop()."""

    def __init__(self, pool: phub.Pool, size: int) -> None:
        self._pool = pool
        self._values = [np.zeros(size // 4, dtype=np.float32) for _ in range(2)]
        self._stop = False
        self.count = 0
        self.begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        handles = [self._start(0)]
        while True:
            handles.append(self._start(self.count + 1))
            ended = handles.pop(0)
            ended.wait()
            self.count += 1
            self.begun.set()
            # All ranks see the same sum, and have started the next one.
            if ended.results[0] > 0:
                handles.pop().wait()
                return

    def _start(self, number: int) -> phub.PoolHandle:
        values = self._values[number % 2]
        values[0] = self._stop
        return self._pool.all_reduce(values, values)


def main() -> None:
    given = options()
    session = phub.connect(given.endpoint)
    job = session.join(given.job, given.rank, given.ranks, transport="tcp")
    ranks = range(given.ranks)
    small = job.new_group("small", ranks, given.priority_class).add_pool(
        "pool", min(given.bytes, BULK_CAPACITY), 4)
    bulk_pool = job.new_group("bulk", ranks, "data").add_pool("pool", BULK_CAPACITY, 4)
    values = np.ones(given.bytes // 4, dtype=np.float32)
    job.barrier()
    bulk = Bulk(bulk_pool, given.bulk_bytes) if given.bulk_bytes > 0 else None
    if bulk is not None:
        bulk.begun.wait()
    times = []
    for _ in range(given.operations):
        time.sleep(given.pause)
        begin = time.monotonic()
        handle = small.all_reduce(values)
        handle.wait()
        times.append(time.monotonic() - begin)
        if not (handle.results == given.ranks).all():
            raise SystemExit("the sum is wrong")
    if bulk is not None:
        bulk.stop()
    with open(given.output, "w", encoding="utf-8") as file:
        json.dump({"times": times, "bulk": bulk.count if bulk is not None else 0}, file)
    job.leave()


main()
