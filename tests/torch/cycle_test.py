"""The exception at the timeout names ranks that wait for each other in a cycle."""

import os
import unittest

import cycle_cases
from ranks import TorchTest

LONG = os.environ.get("PHUB_TEST_LONG") is not None
CYCLE = "the ranks wait for each other in a cycle: "
ALL_REDUCE = r"operation 1, all_reduce\(SUM\) of 3 float32"


class Cycles(TorchTest):
    def expect_cycle(self, texts: list[str], steps: list[str]) -> None:
        """steps: where each rank waits for the next one."""
        size = len(steps)
        for rank, text in enumerate(texts):
            self.assertIn("CollectiveTimeout", text)
            places = [
                rf"rank {each} waits in group \d+\.[0-9a-f]+, {steps[each]}, "
                f"for rank {(each + 1) % size}"
                for each in ((rank + i) % size for i in range(size))
            ]
            self.assertRegex(text, CYCLE + "; ".join(places) + r"\. Call these in one order")

    def test_three_ranks_and_a_late_one(self) -> None:
        circle, late = zip(*self.run_ranks(3, cycle_cases.errors, ["crossed", "late"]))
        self.expect_cycle(circle, [ALL_REDUCE] * 3)
        for rank, text in enumerate(late[:2]):
            self.assertIn("CollectiveTimeout", text)
            self.assertIn(f"rank {1 - rank} has not called it", text)
            self.assertNotIn("cycle", text)

    @unittest.skipUnless(LONG, "PHUB_TEST_LONG is not set")
    def test_two_ranks_in_groups_and_messages(self) -> None:
        names = ["crossed", "both_send", "both_receive"]
        pair, send, receive = zip(*self.run_ranks(2, cycle_cases.errors, names))
        self.expect_cycle(pair, [ALL_REDUCE] * 2)
        steps = [
            f"operation 1, send from rank {each} to rank {1 - each}, tag {each} of 3 float32"
            for each in range(2)
        ]
        self.expect_cycle(send, steps)
        steps = [f"operation 1, message from rank {1 - each} to rank {each}" for each in range(2)]
        self.expect_cycle(receive, steps)


if __name__ == "__main__":
    unittest.main()
