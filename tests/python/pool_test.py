"""Pools of the Python package, against a real daemon."""

import gc
import signal
import threading
import time
import unittest
import weakref

import numpy as np

import phub
from daemon import PATIENCE_S, DaemonTest, on_ranks

TYPES = ["float32", "float16", "float64", "int32", "int64", "uint8"]
OPERATIONS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


class Pools(DaemonTest):
    def test_operations_of_every_type_and_length(self) -> None:
        lengths = [1, 999, 1000, 1001, 5432]  # with 8000 bytes: one round, and several

        def rank(number: int) -> None:
            with self.join(number, 2) as job:
                pool = job.add_pool("pool", 8000, 3)
                flying = []
                for index, dtype in enumerate(TYPES * 2):
                    for operation, combine in OPERATIONS.items():
                        base = np.arange(lengths[index % len(lengths)]) % 9 + 1
                        both = [(base + each).astype(dtype) for each in range(2)]
                        handle = pool.all_reduce(both[number], operation=operation)
                        flying.append((handle, combine(*both)))
                for handle, expected in flying:
                    handle.wait(PATIENCE_S)
                    np.testing.assert_array_equal(handle.results, expected)
                    self.assertEqual(handle.results.dtype, expected.dtype)
                mean = pool.all_reduce([1.0 + number, 5.0], operation="mean")
                mean.wait(PATIENCE_S)
                np.testing.assert_array_equal(mean.results, [1.5, 5.0])
                bits = np.array([0x3F80, 0x4000], np.uint16)  # 1.0, 2.0
                given = np.zeros(2, np.uint16)
                pool.all_reduce(bits, given, dtype=phub.bfloat16).wait(PATIENCE_S)
                np.testing.assert_array_equal(given, bits + 0x80)
                table = np.full((2, 3), number, np.int32)
                summed = pool.all_reduce(table)
                (done,) = phub.as_completed([summed], PATIENCE_S)
                self.assertIs(done, summed)
                np.testing.assert_array_equal(summed.results, np.full((2, 3), 1))
                self.assertEqual(job.iteration, 0)

        on_ranks(2, rank)

    def test_ranks_that_wait_in_crossed_order_are_named_at_the_timeout(self) -> None:
        both_began, both_waited = threading.Barrier(2), threading.Barrier(2)

        def rank(number: int) -> str:
            with self.join(number, 2) as job:
                pools = [
                    job.new_group(name, [0, 1]).add_pool("pool", depth=1, timeout=0.3)
                    for name in ("x", "y")
                ]
                own, other = pools[number], pools[1 - number]
                handles = [own.all_reduce([1.0])]
                both_began.wait(PATIENCE_S)
                with self.assertRaises(phub.DeadlineExceeded) as caught:
                    own.all_reduce([2.0])
                both_waited.wait(PATIENCE_S)
                handles.append(other.all_reduce([1.0]))
                for handle in handles:
                    handle.wait(PATIENCE_S)
                again = own.all_reduce([2.0]) if number == 0 else other.all_reduce([2.0])
                again.wait(PATIENCE_S)
                self.assertEqual(again.results.tolist(), [4.0])
                return str(caught.exception)

        for number, text in enumerate(on_ranks(2, rank)):
            own, other = ("x", "y") if number == 0 else ("y", "x")
            for words in (
                f"pool pool of group {own} of job {self.id()}, rank {number}: operation 1 has "
                "waited 300",
                f"it waits for rank {1 - number}; ranks wait for each other: rank {number} has "
                f"pushed key pool/0 of group {own} (operation 0), which waits for rank "
                f"{1 - number}; rank {1 - number} has pushed key pool/0 of group {other}",
            ):
                self.assertIn(words, text)

    def test_waits_in_crossed_order_name_the_cycle_at_the_timeout(self) -> None:
        both_began, both_waited = threading.Barrier(2), threading.Barrier(2)

        def rank(number: int) -> list[str]:
            with self.join(number, 2) as job:
                pools = [job.new_group(name, [0, 1]).add_pool("pool") for name in ("x", "y")]
                own, other = pools[number], pools[1 - number]
                handle = own.all_reduce([1.0])
                both_began.wait(PATIENCE_S)
                texts = []
                for wait in (handle.wait, lambda seconds: phub.wait_all([handle], seconds)):
                    with self.assertRaises(phub.DeadlineExceeded) as caught:
                        wait(1)
                    texts.append(str(caught.exception))
                with self.assertRaises(phub.DeadlineExceeded) as caught:
                    handle.wait(0.1)
                self.assertNotIn("waits for", str(caught.exception))
                both_waited.wait(PATIENCE_S)
                phub.wait_all([handle, other.all_reduce([1.0])], PATIENCE_S)
                return texts

        for number, texts in enumerate(on_ranks(2, rank)):
            own, other = ("x", "y") if number == 0 else ("y", "x")
            for text in texts:
                self.assertIn(
                    f"it waits for rank {1 - number}; ranks wait for each other: rank {number} "
                    f"has pushed key pool/0 of group {own} (operation 0), which waits for rank "
                    f"{1 - number}; rank {1 - number} has pushed key pool/0 of group {other}",
                    text,
                )

    def test_arrays_of_operations_in_flight_are_kept(self) -> None:
        first, second = (self.join(number, 2) for number in range(2))
        pools = [job.add_pool("pool", 8000, 4) for job in (first, second)]
        values = np.ones(4000)
        kept = weakref.ref(values)
        pools[0].all_reduce(values)
        del values
        del pools[0]
        gc.collect()
        self.assertIsNotNone(kept())
        result = pools[0].all_reduce(np.ones(4000))
        result.wait(PATIENCE_S)
        np.testing.assert_array_equal(result.results, 2)
        # A job is left when nothing refers to it, though it had a pool.
        dropped = weakref.ref(first)
        del first
        gc.collect()
        self.assertIsNone(dropped())

    def test_broadcasts_copy_the_roots_array(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 3) as job:
                pool = job.add_pool("pool", 8000, 3)
                for root in range(3):
                    sent = np.arange(5000, dtype=np.int64) * (root + 1)
                    given = sent.copy() if number == root else np.zeros_like(sent)
                    given.flags.writeable = number != root
                    handle = pool.broadcast(given, root)
                    handle.wait(PATIENCE_S)
                    self.assertIs(handle.results, given)
                    np.testing.assert_array_equal(given, sent)
                with self.assertRaisesRegex(phub.InvalidArgument, "root is 3.* 0 to 2"):
                    pool.broadcast(np.zeros(3), 3)
                fixed = np.zeros(3)
                fixed.flags.writeable = False
                with self.assertRaisesRegex(phub.InvalidArgument, "read-only"):
                    pool.broadcast(fixed, (number + 1) % 3)
                bits = np.array([number], np.uint16)
                pool.broadcast(bits, 2, dtype=phub.bfloat16).wait(PATIENCE_S)
                np.testing.assert_array_equal(bits, [2])

        on_ranks(3, rank)

    def test_pools_are_removed_and_added_again(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 2) as job:
                for _ in range(3):
                    pool = job.add_pool("pool", 1000, 2)
                    pool.all_reduce(np.ones(3)).wait(PATIENCE_S)
                    pool.remove()
                    with self.assertRaisesRegex(phub.FailedPrecondition, "was removed"):
                        pool.all_reduce(np.ones(3))

        on_ranks(2, rank)

    def test_ranks_that_differ_are_both_named(self) -> None:
        jobs = [self.join(number, 2) for number in range(2)]
        pools = [job.add_pool("pool", 1 << 16, 2) for job in jobs]
        handles = [
            pool.all_reduce(np.ones(3 + index, np.float32)) for index, pool in enumerate(pools)
        ]
        for handle in handles:
            with self.assertRaises(phub.Aborted) as raised:
                handle.wait(PATIENCE_S)
            text = str(raised.exception)
            for expected in (
                "rank 0",
                "rank 1",
                "operation 0 of the pool: sum of 3 elements of type f32",
                "operation 0 of the pool: sum of 4 elements of type f32",
            ):
                self.assertIn(expected, text)
            self.assertEqual(raised.exception.job, self.id())

    def test_wrong_use_is_refused_by_name(self) -> None:
        job = self.join()
        pool = job.add_pool("pool", 8000, 2)
        memory = np.ones(11, np.float32)
        values = memory[:10]
        for arguments, text in (
            ((values, memory[1:]), "overlap"),
            ((values, np.ones(9, np.float32)), "results of pool pool have the shape"),
            ((values, np.ones(10)), "results of pool pool have the type float64"),
            ((values[::2],), "values of pool pool are not contiguous"),
            ((np.ones(3, np.uint16),), "no element type uint16"),
            ((values, None, "median"), "operation is 'median'"),
            ((np.ones(3, np.int32), None, "mean"), "kMean is not defined for type i32"),
            ((np.ones(0, np.int32),), "0 elements"),
        ):
            with self.assertRaisesRegex(phub.InvalidArgument, text):
                pool.all_reduce(*arguments)
        with self.assertRaisesRegex(phub.InvalidArgument, "depth is 0"):
            job.add_pool("other", 8000, 0)
        with self.assertRaisesRegex(phub.AlreadyExists, "pool/0"):
            job.add_pool("pool")
        handle = pool.all_reduce(values)
        handle.wait(PATIENCE_S)
        with self.assertRaisesRegex(phub.FailedPrecondition, "cannot be cancelled"):
            handle.cancel()

    def test_ctrl_c_ends_a_wait_for_a_round(self) -> None:
        job = self.join(0, 2)
        pool = job.add_pool("pool", 80, 1)
        pool.all_reduce(np.ones(10))
        self.assertTrue(pool.would_wait())
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            pool.all_reduce(np.full(10, 5.0))
        # It starts nevertheless.
        other = self.join(1, 2).add_pool("pool", 80, 1)
        other.all_reduce(np.ones(10)).wait(PATIENCE_S)
        second = other.all_reduce(np.ones(10))
        second.wait(PATIENCE_S)
        np.testing.assert_array_equal(second.results, 6)
        end = time.monotonic() + PATIENCE_S
        while pool.would_wait() and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(pool.would_wait())


if __name__ == "__main__":
    unittest.main()
