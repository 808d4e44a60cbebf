"""send and recv of the backend "phub": many pairs of ranks, and ranks that do not answer."""

import os
import unittest

import messages_cases
from ranks import CONTEXT, PATIENCE_S, TorchTest

LONG = os.environ.get("PHUB_TEST_LONG") is not None


class Messages(TorchTest):
    def test_crossed_pairs_use_the_job_of_their_group(self) -> None:
        self.assertEqual(self.run_ranks(3, messages_cases.crossed, False)[0], 1)

    @unittest.skipUnless(LONG, "PHUB_TEST_LONG is not set")
    def test_a_daemon_without_groups_serves_jobs_of_two_ranks(self) -> None:
        # Two tags share a job. There are both directions of 3 pairs, and of one in the group.
        jobs = self.run_ranks(3, messages_cases.crossed, True)[0]
        self.assertEqual(jobs, 1 + 2 * 2 * 4)

    def test_wrong_priority_classes(self) -> None:
        ((unknown, of_default),) = self.run_ranks(1, messages_cases.wrong_priority_classes)
        self.assertIn("priority_class is 'fast'; it must be 'tensor'", unknown)
        self.assertIn("for groups of new_group()", of_default)

    def test_a_message_that_nobody_receives_ends_at_the_timeout(self) -> None:
        results = self.run_ranks(3, messages_cases.unanswered)
        name, text = results[2]
        self.assertEqual(name, "CollectiveTimeout", text)
        for words in (
            "rank 2 of job torch-",
            "send from rank 2 to rank 1, tag 4 of 3 float32: timed out after 2 s",
            "rank 1 has not called it",
        ):
            self.assertIn(words, text)
        self.assertEqual(results[:2], [("", "")] * 2)

    def test_a_rank_that_dies_while_another_receives_is_named(self) -> None:
        waits = CONTEXT.Semaphore(0)
        run = self.start(2, messages_cases.dies, waits)
        text = run.result(1, PATIENCE_S / 2)
        for words in ("rank 0", "died", "send from rank 0 to rank 1, tag 2 of 3 float32"):
            self.assertIn(words, text)

    def test_sizes_that_differ_end_the_messages_of_their_tag_only(self) -> None:
        for errors in self.run_ranks(2, messages_cases.of_different_sizes):
            self.assertEqual(len(errors), 2 * len(messages_cases.DIFFERENT_SIZES), errors)
            for index, (tag, counts) in enumerate(messages_cases.DIFFERENT_SIZES.items()):
                for error in errors[2 * index : 2 * index + 2]:
                    self.assertTrue(error.startswith(f"tag {tag}: CollectiveMismatch"), error)
                    for rank, count in enumerate(counts):
                        text = f"from rank 0 to rank 1, tag {tag} of {count} float32"
                        self.assertIn(f"rank {rank} called send {text}", error)

    def test_groups_that_ranks_leave_in_disorder_leave_the_others(self) -> None:
        errors, none = self.run_ranks(2, messages_cases.left_in_disorder)
        self.assertEqual(none, [])
        self.assertEqual(
            [each.partition(":")[0] for each in errors],
            ["collective", "timeout", "message", "more"],
        )
        for error in errors:
            self.assertIn("rank 1", error)


if __name__ == "__main__":
    unittest.main()
