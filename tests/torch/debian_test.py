"""A smoke test with Debian's PyTorch 1.13.1, which has no entry points and an older interface."""

import sys
import unittest

try:
    import torch
except ImportError:
    print("debian_test: skipped, this interpreter has no torch (package python3-torch)")
    sys.exit(77)
if not torch.__version__.startswith("1.13"):
    print(f"debian_test: skipped, torch is {torch.__version__}")
    sys.exit(77)

from collectives_test import cases
from ranks import TorchTest, initialize


def optimizer(rank: int, size: int) -> str:
    """The error of a DistributedOptimizer, which needs a newer torch."""
    import phub.torch

    initialize()
    try:
        phub.torch.DistributedOptimizer(torch.optim.SGD([torch.ones(1)], lr=0.1))
    except phub.torch.NotServed as error:
        return str(error)
    return ""


class Smoke(TorchTest):
    def test_optimizer(self) -> None:
        self.assertIn("needs torch 2.1", self.run_ranks(1, optimizer)[0])

    def test_collectives_and_training(self) -> None:
        for module in ("collective_cases", "training_cases"):
            for rank, errors in enumerate(self.run_ranks(2, cases, module)):
                self.assertEqual(errors, [], f"rank {rank}")


if __name__ == "__main__":
    unittest.main()
