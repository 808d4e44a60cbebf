"""Groups of the backend "phub" remove keys of sizes that are not used any more."""

import os
import unittest

import removal_cases
from ranks import TorchTest

LONG = os.environ.get("PHUB_TEST_LONG") is not None
TURNS = 96 if LONG else 48


class Removal(TorchTest):
    def test_sizes_in_a_loop(self) -> None:
        for size, transport in ((2, "shm"), (3, "tcp")) if LONG else ((2, "shm"),):
            results = self.run_ranks(size, removal_cases.sizes_in_a_loop, transport, TURNS)
            for found in results:
                self.assertGreater(found["own"], TURNS // 3)  # there is room for 7 at a time
                self.assertLess(found["keys"], 120)
            first, second = results[0]["most"]
            self.assertLessEqual(second, first * 1.2)

    def test_buckets_stay_valid(self) -> None:
        for places in self.run_ranks(2, removal_cases.buckets_stay_valid):
            self.assertEqual(places, ["True", "True", "True", "False"])

    def test_memory_that_the_next_collective_uses(self) -> None:
        for delayed in (False, True):
            args = removal_cases.used_by_the_next_collective, delayed
            for found in self.run_ranks(2, *args):
                self.assertEqual(found, [not delayed, True, True, True])

    def test_a_rank_that_cannot_remove(self) -> None:
        first, second = self.run_ranks(2, removal_cases.a_rank_that_cannot_remove)
        self.assertEqual(first, second)
        self.assertIn("sum.float32.280000w.0", first)

    def test_crossed_groups(self) -> None:
        for removed in self.run_ranks(2, removal_cases.crossed_groups):
            self.assertEqual(removed, [True, True])

    def test_different_collectives(self) -> None:
        for text in self.run_ranks(2, removal_cases.different_collectives):
            self.assertIn("CollectiveMismatch", text)
            self.assertIn("all_reduce(SUM) of 70000 float32", text)
            self.assertIn("broadcast(root 0) of 5 float32", text)


if __name__ == "__main__":
    unittest.main()
