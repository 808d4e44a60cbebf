"""Groups that frameworks make themselves, as torchft does: without torch.distributed, several ranks
in one process, new groups of other ranks after a failure."""

from __future__ import annotations

import concurrent.futures
import datetime
import os
import time
import unittest
import unittest.mock
from typing import Any, Callable

import torch
import torch.distributed as dist

import phub.torch
from phub.torch import _membership
from ranks import PATIENCE_S, Daemon, TorchTest

Groups = list[Any]


class Frameworks(TorchTest):
    def setUp(self) -> None:
        os.environ["PHUB_ENDPOINT"] = self.daemon.endpoint
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.quorums = 0

    def on_ranks(self, size: int, body: Callable[[int], Any]) -> list[Any]:
        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            return list(pool.map(body, range(size)))

    def quorum(self, size: int, timeout: float = 20.0, **options: Any) -> Groups:
        """A group of `size` ranks, all in this process."""
        self.quorums += 1
        prefix = f"quorum/{self.quorums}"

        def make(rank: int) -> Any:
            # A client of its own: a rank that waits for a value blocks its client.
            client = dist.TCPStore("127.0.0.1", self.store.port, is_master=False)
            store = dist.PrefixStore(prefix, client)
            span = datetime.timedelta(seconds=timeout)
            given = phub.torch.Options(**options)
            return phub.torch.create_group(
                store, rank, size, name="quorum", timeout=span, options=given
            )

        groups = self.on_ranks(size, make)
        self.addCleanup(self.on_ranks, size, lambda rank: groups[rank].shutdown())
        return groups

    def expect_sum(self, groups: Groups) -> None:
        size = len(groups)

        def body(rank: int) -> list[float]:
            tensor = torch.full((5,), rank + 1.0)
            groups[rank].allreduce([tensor]).wait()
            return list(tensor.tolist())

        expected = [size * (size + 1) / 2] * 5
        self.assertEqual(self.on_ranks(size, body), [expected] * size)

    def test_ranks_of_one_process_and_smaller_groups(self) -> None:
        for size in (3, 2, 1, 4):
            groups = self.quorum(size)
            self.expect_sum(groups)
            self.on_ranks(size, lambda rank: groups[rank].shutdown())

    def test_abort_ends_collectives_in_flight_at_once(self) -> None:
        groups = self.quorum(3, timeout=2 * PATIENCE_S)
        self.expect_sum(groups)
        work = groups[0].allreduce([torch.ones(5)])  # which the others never call
        begun = time.monotonic()
        with unittest.mock.patch.object(_membership, "LEAVE_S", PATIENCE_S):
            groups[0].abort()
        self.assertLess(time.monotonic() - begun, PATIENCE_S / 2)
        with self.assertRaises(phub.torch.CollectiveError):
            work.wait()
        with self.assertRaises(phub.torch.CollectiveError):
            groups[1].allreduce([torch.ones(5)]).wait()
        self.expect_sum(self.quorum(2))

    def test_results_outlive_later_collectives_and_the_group(self) -> None:
        """DistributedDataParallel holds results, which may lie in memory of phub's keys."""
        groups = self.quorum(2)

        def body(rank: int) -> Groups:
            held = []
            for index in range(7):
                tensor = torch.full((100_000,), float(rank + index))
                operation = groups[rank]._collectives().all_reduce(
                    "all_reduce", [tensor], "SUM", None, takes_result=True
                )
                operation.wait()
                self.assertEqual(float(tensor.max()), 2 * index + 1)  # copied back
                if index != 4:
                    held.append((index, operation.result[0]))
            return held

        both = self.on_ranks(2, body)
        self.on_ranks(2, lambda rank: groups[rank].shutdown())
        for held in both:
            for index, result in held:
                self.assertEqual(result.tolist(), [2.0 * index + 1] * 100_000)

    def test_many_collectives_of_one_size(self) -> None:
        groups = self.quorum(2)

        def body(rank: int) -> None:
            for step in range(3):
                tensors = [torch.full((70_000 + 64 * step,), rank + n + 0.5) for n in range(5)]
                works = [groups[rank].allreduce([each]) for each in tensors]
                for n, (work, tensor) in enumerate(zip(works, tensors)):
                    work.wait()
                    self.assertEqual(tensor.unique().tolist(), [2.0 * n + 2])

        self.on_ranks(2, body)

    def test_a_daemon_with_little_memory(self) -> None:
        """Keys of repeated sizes have memory that is shared, or their own, or do not exist."""
        count = 8 << 20

        def body(group: Any) -> str:
            for _ in range(3):
                tensor = torch.ones(count)
                try:
                    group.allreduce([tensor]).wait()
                except phub.torch.CollectiveError as error:
                    return str(error)
                self.assertEqual([float(tensor.min()), float(tensor.max())], [2.0, 2.0])
            return ""

        for memory, options, problem in (
            ("340MiB", {}, ""),  # for one rank's shared memory, but not for both
            ("150MiB", {}, "bucket_bytes"),
            ("150MiB", {"bucket_bytes": 0}, ""),
        ):
            with self.subTest(f"{memory} {options}"):
                daemon = Daemon("--memory-max", memory)
                self.addCleanup(daemon.stop)
                groups = self.quorum(2, endpoint=daemon.endpoint, **options)
                errors = self.on_ranks(2, lambda rank: body(groups[rank]))
                self.assertTrue(all(problem in each for each in errors), errors)
                self.assertEqual(any(errors), problem != "", errors)
                self.on_ranks(2, lambda rank: groups[rank].shutdown())

    def test_a_rank_that_is_missing_is_named(self) -> None:
        groups = self.quorum(3, timeout=1.5)

        def body(rank: int) -> Any:
            try:
                groups[rank].allreduce([torch.ones(5)]).wait()
            except phub.torch.CollectiveError as error:
                return str(error)

        errors = self.on_ranks(2, body)
        self.assertTrue(any("rank 2 has not called it" in error for error in errors), errors)
        self.assertTrue(all("rank" in error for error in errors), errors)


if __name__ == "__main__":
    unittest.main()
