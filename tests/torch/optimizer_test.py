"""phub.torch.DistributedOptimizer, against a real daemon."""

import unittest

from ranks import TorchTest, all_cases


def cases(rank: int, size: int, module: str) -> list[str]:
    return all_cases(module, rank, size)


class Optimizer(TorchTest):
    def check(self, size: int, module: str) -> None:
        for rank, errors in enumerate(self.run_ranks(size, cases, module)):
            self.assertEqual(errors, [], f"rank {rank}")

    def test_one_rank(self) -> None:
        self.check(1, "optimizer_cases")

    def test_two_ranks(self) -> None:
        self.check(2, "optimizer_cases")

    def test_steps_that_are_clipped_or_skipped(self) -> None:
        self.check(2, "optimizer_iteration_cases")

    def test_wrong_uses(self) -> None:
        self.check(2, "optimizer_failure_cases")


if __name__ == "__main__":
    unittest.main()
