"""Collectives of the backend "phub" of torch.distributed, against a real daemon."""

import os
import tempfile
import threading
import unittest

import growth_cases
import table_cases
from ranks import PATIENCE_S, TorchTest, all_cases, initialize

LONG = os.environ.get("PHUB_TEST_LONG") is not None


def cases(rank: int, size: int, module: str, transport: str = "auto") -> list[str]:
    import phub.torch

    return all_cases(module, rank, size, pg_options=phub.torch.Options(transport=transport))


def delayed_cases(
    rank: int, size: int, module: str, transport: str, ranks: tuple[int, ...]
) -> list[str]:
    if rank in ranks:
        import delayed_copies

        delayed_copies.install()
    return cases(rank, size, module, transport)


def refused_copies(rank: int, size: int) -> list[int]:
    """How many homes of keys stay claimed: while collectives run, after them, after refusals."""
    import delayed_copies
    import torch

    delayed_copies.install()
    dist = initialize()
    homes = dist.group.WORLD._membership.exchange._pool.homes

    def claimed() -> int:
        found = [slot.home for slots in homes._slots.values() for slot in slots]
        return sum(home is not None and home.claimed for home in found)

    tensor = torch.ones(200_000)
    for _ in range(2):  # the second time the size gets keys of its own
        dist.all_reduce(tensor)
    counts = []
    work = dist.all_reduce(tensor, async_op=True)
    counts.append(claimed())
    work.wait()
    counts.append(claimed())
    delayed_copies.DelayedCopies.refuses = True
    for _ in range(3):
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            assert "refused" in str(error), error
    delayed_copies.DelayedCopies.refuses = False
    counts.append(claimed())
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return counts


def collectives_with_teams(rank: int, size: int, transport: str) -> list[str]:
    """The collectives of large tensors that started a team of threads for torch's operators."""
    import phub.torch
    import torch

    torch.set_num_threads(1)
    dist = initialize(pg_options=phub.torch.Options(transport=transport))
    count = 1 << 18
    tensor, others = torch.ones(count), [torch.zeros(count) for _ in range(size)]
    whole = torch.ones(count * size)
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "reduce": lambda: dist.reduce(tensor, 0),
        "broadcast": lambda: dist.broadcast(tensor, 1),
        "all_gather": lambda: dist.all_gather(others, tensor),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, tensor),
        "reduce_scatter": lambda: dist.reduce_scatter(tensor, others),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(count * size), whole),
        "gather": lambda: dist.gather(tensor, others if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(tensor, others if rank == 0 else None, 0),
        "send": lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0),
    }

    team, found = 8, []
    for name, call in calls.items():
        for _ in range(3):  # a size that occurs again is exchanged in another way
            call()
        before = len(os.listdir("/proc/self/task"))
        torch.set_num_threads(team)
        for _ in range(3):
            call()
        torch.set_num_threads(1)
        # gRPC may have started a thread, too.
        if len(os.listdir("/proc/self/task")) - before >= team - 1:
            found.append(name)
    dist.destroy_process_group()
    return found


class Collectives(TorchTest):
    def test_copies_use_one_thread(self) -> None:
        """A team of torch spins after each copy, and keeps the daemon and other ranks waiting."""
        for transport in ("shm", "tcp"):
            for rank, found in enumerate(self.run_ranks(2, collectives_with_teams, transport)):
                with self.subTest(rank=rank, transport=transport):
                    self.assertEqual(found, [])

    def check(self, size: int, module: str, transport: str = "auto") -> None:
        for rank, errors in enumerate(self.run_ranks(size, cases, module, transport)):
            self.assertEqual(errors, [], f"rank {rank}")

    @unittest.skipUnless(LONG, "PHUB_TEST_LONG is not set")
    def test_two_ranks(self) -> None:
        self.check(2, "collective_cases")

    def test_unusual_and_wrong_tensors(self) -> None:
        self.check(2, "unusual_cases")
        if LONG:
            self.check(3, "unusual_cases", "tcp")

    def test_reductions_of_every_type(self) -> None:
        self.check(2, "table_cases")

    def test_fingerprints_differ_if_ranks_do(self) -> None:
        self.assertEqual(table_cases.fingerprints(), [])

    def test_sparse_tensors(self) -> None:
        self.check(3, "sparse_cases", "tcp")

    def test_training(self) -> None:
        self.check(2, "training_cases")

    def test_tensors_that_are_still_being_copied(self) -> None:
        for module, transport, ranks in (
            ("collective_cases", "tcp", (0, 1)),
            ("movement_cases", "shm", (1,)),
            *([("movement_cases", "shm", (0, 1))] if LONG else []),
        ):
            results = self.run_ranks(2, delayed_cases, module, transport, ranks)
            for rank, errors in enumerate(results):
                self.assertEqual(errors, [], f"rank {rank}")

    def test_memory_for_copies_is_free_after_errors(self) -> None:
        for counts in self.run_ranks(2, refused_copies):
            self.assertEqual(counts[1:], [0, 0])
            self.assertLessEqual(counts[0], 1)

    def test_groups_in_a_loop_hold_nothing(self) -> None:
        first, last = self.run_ranks(2, growth_cases.groups_in_a_loop, 10)[0]
        self.assertEqual(first[0], last[0])
        self.assertLessEqual(last[1], first[1] + 8)  # threads may be at work

    def test_groups_of_other_ranks_after_a_new_default_group(self) -> None:
        self.assertEqual(self.run_ranks(3, growth_cases.groups_of_other_ranks), [4.0, 2.0, 2.0])

    def test_a_group_that_the_garbage_collector_finds_leaves(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_ranks(1, growth_cases.collected_group, folder), [True])

    def test_tags_in_a_loop_hold_nothing(self) -> None:
        first, last = self.run_ranks(2, growth_cases.tags_in_a_loop, 30)[0]
        self.assertEqual(first, last)

    def test_reductions_of_all_kinds_share_two_pools(self) -> None:
        for transport in ("shm", "tcp"):
            args = growth_cases.reductions_of_many_kinds, True, transport
            self.assertEqual(self.run_ranks(2, *args)[0], 8 + 4)
        # With a daemon that does not know them, every kind and size class has keys.
        args = growth_cases.reductions_of_many_kinds, False, "shm"
        self.assertGreater(self.run_ranks(2, *args)[0], 200)

    def test_memory_for_results_follows_the_sizes_in_use(self) -> None:
        found = growth_cases.sizes_in_a_loop()
        self.assertTrue(found["used again"])
        self.assertFalse(found["old size"])
        self.assertTrue(found["new size"])
        self.assertLessEqual(found["sizes"], 513)
        self.assertLessEqual(found["most"], 1 << 20)

    def test_results_may_end_in_the_thread_that_takes_memory(self) -> None:
        done: list[int] = []
        thread = threading.Thread(
            target=lambda: done.append(growth_cases.results_that_end_in_their_thread()),
            daemon=True,
        )
        thread.start()
        thread.join(PATIENCE_S)
        self.assertEqual(done, [(1 << 20) + (1 << 19)])

    def test_two_ranks_over_tcp(self) -> None:
        self.check(2, "collective_cases", "tcp")

    def test_movements_of_the_same_size(self) -> None:
        if LONG:
            self.check(2, "movement_cases")
        self.check(3, "movement_cases", "tcp")

    def test_three_ranks(self) -> None:
        self.check(3, "collective_cases")


if __name__ == "__main__":
    unittest.main()
