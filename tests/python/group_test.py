"""Groups of the Python package, against a real daemon."""

import gc
import unittest
import weakref

import numpy as np

import phub
from daemon import PATIENCE_S, DaemonTest, on_ranks


class Groups(DaemonTest):
    def test_overlapping_groups_exchange_at_the_same_time(self) -> None:
        groups = {"low": (0, 1), "even": (0, 2), "all": (0, 1, 2)}

        def rank(number: int) -> None:
            with self.join(number, 3) as job:
                mine = [
                    job.new_group(name, reversed(ranks), "tensor" if name == "even" else None)
                    for name, ranks in groups.items()
                    if number in ranks
                ]
                if number == 1:
                    mine.reverse()  # groups are independent of each other
                keys = [group.add_key("sum", (2, 50)) for group in mine]
                pools = [
                    group.add_pool("pool", 800, 4, priority_class="pipeline") for group in mine
                ]
                flying = []
                for group, key, pool in zip(mine, keys, pools):
                    self.assertEqual(group.ranks, groups[group.name])
                    self.assertEqual(group.ranks[group.index], number)
                    self.assertEqual(key.name, f"sum of group {group.name}")
                    key.gradients[:] = number + 1
                    flying.append((key.push_pull(), pool.all_reduce(np.full(300, number))))
                for group, key, (summed, pooled) in zip(mine, keys, flying):
                    summed.wait(PATIENCE_S)
                    pooled.wait(PATIENCE_S)
                    np.testing.assert_array_equal(
                        key.parameters, sum(each + 1 for each in group.ranks)
                    )
                    np.testing.assert_array_equal(pooled.results, sum(group.ranks))
                self.assertEqual(job.iteration, 0)
                job.barrier()

        on_ranks(3, rank)

    def test_several_groups_are_declared_at_once(self) -> None:
        declared = [("pair", (0, 2)), ("pair", (1,)), ("all", (2, 1, 0))]

        def rank(number: int) -> None:
            with self.join(number, 3) as job:
                mine = job.new_groups(declared, "tensor")
                self.assertEqual([group.name for group in mine], ["pair", "all"])
                self.assertEqual(mine[0].ranks, (1,) if number == 1 else (0, 2))
                keys = [group.add_key("sum", 4) for group in mine]
                for key in keys:
                    key.gradients[:] = number + 1
                phub.wait_all([key.push_pull() for key in keys], PATIENCE_S)
                np.testing.assert_array_equal(keys[0].parameters, 2 if number == 1 else 4)
                np.testing.assert_array_equal(keys[1].parameters, 6)
                with self.assertRaisesRegex(phub.InvalidArgument, "rank 3 must be 0 to 2"):
                    job.new_groups([("other", (0, 3))])
                self.assertEqual(job.new_groups([("other", ((number + 1) % 3,))]), [])
                job.barrier()

        on_ranks(3, rank)

    def test_parts_are_those_of_members_and_roots_are_ranks_of_the_job(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 3) as job:
                if number > 0:
                    with job.new_group("pair", (1, 2)) as pair:
                        gathered, scattered, value = pair.add_keys(
                            [
                                phub.KeySpec("gather", 4, np.int32, movement="gather"),
                                phub.KeySpec("scatter", 4, movement="scatter", root=2),
                                phub.KeySpec("value", 2),
                            ]
                        )
                        gathered.gradients[:] = number
                        self.assertEqual(scattered.gradients.shape, (4 if number == 2 else 0,))
                        if number == 2:
                            scattered.gradients[:] = [5, 6, 7, 8]
                            value.mutable_parameters[:] = 9
                        handles = [key.push_pull() for key in (gathered, scattered)]
                        handles.append(value.broadcast(2))
                        phub.wait_all(handles, PATIENCE_S)
                        np.testing.assert_array_equal(gathered.parameters, [1, 1, 2, 2])
                        expected = [[5, 6], [7, 8]][pair.index]
                        np.testing.assert_array_equal(scattered.parameters, expected)
                        np.testing.assert_array_equal(value.parameters, 9)
                job.barrier()

        on_ranks(3, rank)

    def test_groups_are_removed_and_made_again(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 2) as job:
                for index in range(3):
                    with job.new_group("pair", (0, 1)) as pair:
                        key = pair.add_key("sum", 3)
                        pool = pair.add_pool("pool", 80, 1)
                        lent = np.full(3, index, np.float32)
                        kept = weakref.ref(lent)
                        handle = key.push_pull(lent)
                        handle.wait(PATIENCE_S)
                        np.testing.assert_array_equal(key.parameters, 2 * index)
                        pool.all_reduce(np.ones(3)).wait(PATIENCE_S)
                    with self.assertRaisesRegex(phub.FailedPrecondition, "was removed"):
                        key.push_pull()
                    with self.assertRaisesRegex(phub.FailedPrecondition, "was removed"):
                        pair.add_key("more", 3)
                    # The job refers to no array of the group any more.
                    del lent, handle
                    gc.collect()
                    self.assertIsNone(kept())

        on_ranks(2, rank)

    def test_an_exception_does_not_wait_for_other_members(self) -> None:
        job = self.join(0, 2)
        with self.assertRaisesRegex(ZeroDivisionError, "by zero"):
            with job.new_group("pair", (0, 1)) as pair:
                pair.add_key("sum", 3)
                _ = 1 // 0
        job.check()

    def test_wrong_use_is_refused_by_name(self) -> None:
        job = self.join(1, 3)
        for ranks, text in (
            ((0, 2), "this rank is not a member; the group has ranks 0, 2"),
            ((1, 3), "rank 3 must be 0 to 2"),
            ((1, -1), "rank -1 must be 0 to 2"),
            ((1, 1), "rank 1 is given twice"),
        ):
            with self.assertRaisesRegex(phub.InvalidArgument, text) as raised:
                job.new_group("pair", ranks)
            self.assertIn(f"group pair of job {self.id()}, rank 1", str(raised.exception))
            self.assertEqual(raised.exception.job, self.id())
            self.assertEqual(raised.exception.own_rank, 1)
        for call in (
            lambda: job.new_group("pair", [1, 2], "fast"),
            lambda: job.add_key("w", 4, priority_class="fast"),
            lambda: job.add_pool("p", priority_class="fast"),
        ):
            with self.assertRaisesRegex(phub.InvalidArgument, "'fast'; it must be 'tensor', 'pip"):
                call()
        pair = job.new_group("pair", [1, 2])
        with self.assertRaises(phub.AlreadyExists):
            job.new_group("pair", [1, 0])
        for options, text in (
            ({"movement": "scatter"}, "root of key a of group pair is 0, but its ranks"),
            ({"movement": "gather", "shape": 3}, "multiple of the number of ranks, 2"),
            ({"operation": "median"}, "operation of key a of group pair is 'median'"),
            ({"optimizer": phub.Sgd(0.1)}, "key a of group pair"),
        ):
            with self.assertRaisesRegex(phub.InvalidArgument, text):
                pair.add_keys([phub.KeySpec("a", **{"shape": 4, **options})])
        pair.add_key("a", 4)
        with self.assertRaisesRegex(phub.AlreadyExists, "already has a key a of group pair"):
            pair.add_key("a", 4)
        pool = pair.add_pool("pool", 800)
        with self.assertRaisesRegex(phub.FailedPrecondition, "remove the group"):
            pool.remove()
        fixed = self.session.join(f"{self.id()} fixed", 0, 1, sum="fixed")
        with self.assertRaisesRegex(phub.FailedPrecondition, "cannot have groups"):
            fixed.new_group("alone", [0])

    def test_members_that_differ_are_both_named(self) -> None:
        first, second = (self.join(number, 3).new_group("pair", (0, 1)) for number in range(2))
        key = first.add_key("a", 4)
        with self.assertRaises(phub.Error) as raised:  # the call's error, or the job's verdict
            second.add_key("a", 5)
        for expected in ("rank 0", "rank 1", "group pair (ranks 0, 1)"):
            self.assertIn(expected, str(raised.exception))
        with self.assertRaises(phub.Aborted) as ended:
            key.push_pull().wait(PATIENCE_S)
        self.assertEqual(ended.exception.rank, 1)
        self.assertEqual(ended.exception.key, "a of group pair")


if __name__ == "__main__":
    unittest.main()
