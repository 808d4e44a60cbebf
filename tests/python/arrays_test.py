"""Keys, arrays, optimizers and errors of the Python package, against a real daemon."""

import ctypes
import dataclasses
import gc
import logging
import typing
import unittest

import numpy as np

import phub
from phub import _library, _optimizers
from daemon import PATIENCE_S, DaemonTest, on_ranks


class Training(DaemonTest):
    def test_two_ranks_train_with_an_optimizer(self) -> None:
        def rank(number: int) -> np.ndarray:
            with self.join(number, 2) as job:
                key = job.add_key("w", (30, 1000), optimizer=phub.Sgd(0.5))
                key.initialize(np.full((30, 1000), 8, np.float32) if number == 0 else None)
                key.gradients[:] = 2 + 2 * number
                key.push_pull().wait(PATIENCE_S)
                key.set_hyper_parameters(phub.Sgd(1.0))
                key.push_pull().wait(PATIENCE_S)
                self.assertEqual(job.iteration, 2)
                self.assertEqual(key.iteration, 3)
                return key.parameters.copy()

        for parameters in on_ranks(2, rank):
            self.assertEqual(parameters.shape, (30, 1000))
            np.testing.assert_array_equal(parameters, 8 - 0.5 * 3 - 3)

    def test_sums_of_every_type(self) -> None:
        types = ["float32", "float16", "float64", "int32", "int64", "uint8"]

        def rank(number: int) -> None:
            with self.join(number, 2) as job:
                for dtype in types:
                    key = job.add_key(dtype, 1000, dtype)
                    key.gradients[:] = np.arange(1000) % 100 + number
                    key.push_pull().wait(PATIENCE_S)
                    self.assertEqual(key.parameters.dtype, np.dtype(dtype))
                    np.testing.assert_array_equal(key.parameters, np.arange(1000) % 100 * 2 + 1)
                key = job.add_key("bf16", 8, phub.bfloat16)
                bits = np.array([0x3F80, 0x4000] * 4, np.uint16)  # 1.0, 2.0
                key.gradients.view(np.uint16)[:] = bits
                key.push_pull().wait(PATIENCE_S)
                np.testing.assert_array_equal(key.parameters.view(np.uint16), bits + 0x80)

        on_ranks(2, rank)

    def test_minimum_bundles_broadcasts_and_the_callers_arrays(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 2) as job:
                low = job.add_key("low", 3, operation="min")
                sent = np.array([1, 5, 9], np.float32) + number
                received = np.zeros(3, np.float32)
                low.push_pull(sent, received).wait(PATIENCE_S)
                np.testing.assert_array_equal(received, [1, 5, 9])
                bundle = job.add_bundle("bundle", [(2, 3), 4])
                self.assertEqual([g.shape for g, _ in bundle.tensors()], [(2, 3), (4,)])
                bundle.tensors()[1][0][:] = 7
                bundle.push_pull().wait(PATIENCE_S)
                np.testing.assert_array_equal(bundle.tensors()[1][1], 14)
                values = np.arange(10, dtype=np.float32) * number  # those of rank 1 are sent
                bundle.broadcast(1, values).wait(PATIENCE_S)
                np.testing.assert_array_equal(bundle.parameters, np.arange(10))
                job.barrier()

        on_ranks(2, rank)

    def test_sums_in_fixed_point(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 2, sum="fixed", sum_block=16) as job:
                key = job.add_key("k", 32)
                key.gradients[:] = 2.0**-40  # too small next to 1 in the first block
                key.gradients[0] = 1
                key.push_pull().wait(PATIENCE_S)
                expected = np.array([2] + 15 * [0] + 16 * [2.0**-39], np.float32)
                np.testing.assert_array_equal(key.parameters, expected)
                with self.assertRaises(phub.InvalidArgument) as raised:
                    job.add_key("wide", 3, "float64")
                self.assertIn("sum=fixed", str(raised.exception))

        on_ranks(2, rank)

    def test_ranks_gather_parts_and_receive_parts_of_sums(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 2) as job:
                gathered = job.add_key("gathered", (4, 3), "int64", movement="gather")
                self.assertEqual(gathered.gradients.shape, (2, 3))
                gathered.gradients[:] = number + 1
                gathered.push_pull().wait(PATIENCE_S)
                np.testing.assert_array_equal(gathered.parameters, [[1] * 3] * 2 + [[2] * 3] * 2)
                whole = np.zeros((4, 3), np.int64)  # its part is sent from inside the result
                whole[2 * number : 2 * number + 2] = number + 5
                part = whole[2 * number : 2 * number + 2]
                gathered.push_pull(part, whole).wait(PATIENCE_S)
                np.testing.assert_array_equal(whole, [[5] * 3] * 2 + [[6] * 3] * 2)
                scattered = job.add_key("scattered", 6, movement="reduce_scatter")
                scattered.gradients[:] = np.arange(6)
                scattered.push_pull().wait(PATIENCE_S)
                np.testing.assert_array_equal(
                    scattered.parameters, 2 * np.arange(6)[3 * number : 3 * number + 3]
                )
                spread = job.add_key("spread", (4, 2), "uint8", movement="all_to_all")
                spread.gradients[:] = [[10 * number + row] * 2 for row in range(4)]
                spread.push_pull().wait(PATIENCE_S)
                expected = [10 * (row // 2) + 2 * number + row % 2 for row in range(4)]
                np.testing.assert_array_equal(spread.parameters[:, 0], expected)
                dealt = job.add_key("dealt", (4, 3), movement="scatter", root=1)
                self.assertEqual(dealt.gradients.shape, (4 if number == 1 else 0, 3))
                if number == 1:
                    dealt.gradients[:] = np.arange(12).reshape(4, 3)
                dealt.push_pull().wait(PATIENCE_S)
                np.testing.assert_array_equal(
                    dealt.parameters, np.arange(12).reshape(4, 3)[2 * number : 2 * number + 2]
                )
                taken = job.add_key("taken", 6, "int32", movement="gather_to_one", root=1)
                taken.gradients[:] = number + 1
                result = np.zeros(6 if number == 1 else 0, np.int32)
                taken.push_pull(taken.gradients, result).wait(PATIENCE_S)
                np.testing.assert_array_equal(result, [1, 1, 1, 2, 2, 2] if number == 1 else [])
                taken.push_pull().wait(PATIENCE_S)
                np.testing.assert_array_equal(taken.mutable_parameters, result)
                with self.assertRaisesRegex(phub.InvalidArgument, "the job has 2 ranks"):
                    job.add_key("far", 8, movement="scatter", root=2)
                with self.assertRaisesRegex(phub.FailedPrecondition, "movement reduce_scatter"):
                    scattered.broadcast(0)
                with self.assertRaisesRegex(phub.InvalidArgument, "multiple of the number of"):
                    job.add_key("odd", 7, movement="gather")
                with self.assertRaisesRegex(phub.InvalidArgument, "it must be one of all_reduce"):
                    job.add_key("wrong", 8, movement="broadcast")
                job.barrier()

        on_ranks(2, rank)

    def test_as_completed_and_queue_report_each_round_once(self) -> None:
        with self.join() as job:
            keys = job.add_keys(phub.KeySpec(f"k{i}", 100) for i in range(5))
            done = list(phub.as_completed([key.push_pull() for key in keys], PATIENCE_S))
            self.assertEqual({handle.key.name for handle in done}, {key.name for key in keys})
            queue = phub.CompletionQueue()
            with self.assertRaises(phub.DeadlineExceeded):
                queue.get(0.01)
            queue.add(keys[0].push_pull())
            self.assertEqual(len(queue), 1)
            self.assertIs(queue.get(PATIENCE_S).key, keys[0])
            phub.wait_all([key.push_pull() for key in keys], PATIENCE_S)

    def test_iterations_are_skipped_on_request(self) -> None:
        with self.join(apply="iteration") as job:
            key = job.add_key("w", 10)
            key.push_pull_to_skip().wait(PATIENCE_S)
            self.assertTrue(job.last_iteration().last_skipped)
            self.assertEqual(job.last_iteration().skipped, 1)

    def test_collective_keys_are_removed_and_added_again(self) -> None:
        def rank(number: int) -> None:
            with self.join(number, 2) as job:
                weight = job.add_key("weight", 4)
                for i in range(3):
                    keys = job.add_keys(
                        phub.KeySpec(name, 1000 + i, collective=True) for name in ("a", "b")
                    )
                    for key in keys:
                        key.gradients[:] = i + number
                        key.push_pull().wait(PATIENCE_S)
                        np.testing.assert_array_equal(key.parameters, 2 * i + 1)
                    if i == 0:
                        with self.assertRaisesRegex(phub.FailedPrecondition, "without key b"):
                            job.remove_keys(keys[:1])
                    kept = keys[0].parameters
                    job.remove_keys(keys)
                    with self.assertRaisesRegex(phub.FailedPrecondition, "was removed"):
                        keys[0].push_pull()
                    np.testing.assert_array_equal(kept, 2 * i + 1)
                with self.assertRaisesRegex(phub.FailedPrecondition, "is not collective"):
                    job.remove_keys([weight])
                job.barrier()

        on_ranks(2, rank)

    def test_collective_keys_are_outside_iterations(self) -> None:
        with self.join(apply="iteration") as job:
            weight = job.add_key("weight", 4, optimizer=phub.Sgd(1.0))
            loss = job.add_key("loss", 4, collective=True)
            waiting = weight.push_pull()
            late = job.add_key("late", 4, movement="gather", collective=True)
            waiting.wait(PATIENCE_S)
            for key in (loss, loss, late):
                key.gradients[:] = 7
                key.push_pull().wait(PATIENCE_S)
                np.testing.assert_array_equal(key.parameters, [7] * 4)
            self.assertEqual((job.iteration, loss.iteration, late.iteration), (1, 2, 1))
            with self.assertRaisesRegex(phub.InvalidArgument, "do not allow an optimizer"):
                job.add_key("learned", 4, optimizer=phub.Sgd(1.0), collective=True)

    def test_arrays_outlive_key_and_job(self) -> None:
        job = self.join()
        key = job.add_key("w", 50_000)
        key.gradients[:] = 3
        key.push_pull().wait(PATIENCE_S)
        parameters = key.parameters
        job.leave()
        del key, job
        gc.collect()
        np.testing.assert_array_equal(parameters, 3)

    def test_defaults_of_optimizers_are_those_of_the_library(self) -> None:
        kinds = [
            kind for kind in typing.get_args(phub.Optimizer)
            if all(field.default is not dataclasses.MISSING for field in dataclasses.fields(kind))
        ]
        self.assertGreaterEqual(len(kinds), 6)
        for kind in kinds:
            expected = _library.Optimizer()
            _library.lib.phub_optimizer_init(
                ctypes.byref(expected), ctypes.sizeof(expected), kind._kind
            )
            given = _optimizers.to_c(kind())
            for name, _ in _library.Optimizer._fields_:
                self.assertEqual(getattr(given, name), getattr(expected, name), name)
            self.assertTrue(dataclasses.is_dataclass(kind))

    def test_log_lines_go_to_a_logger(self) -> None:
        logger = logging.getLogger("phub.test")
        with self.assertLogs(logger, logging.INFO) as seen:
            phub.log_to(logger)
            phub.set_log_level("info")
            self.join().leave()
            phub.set_log_level(phub.LogLevel.WARNING)
            phub.log_to(None)
        with self.assertRaisesRegex(ValueError, "'loud' is not one of debug, info"):
            phub.set_log_level("loud")
        self.assertTrue(any("event=lane_opened" in line for line in seen.output), seen.output)


class Errors(DaemonTest):
    def expect(self, error: phub.Error, *words: str) -> None:
        self.assertEqual((error.job, error.key, error.rank), (self.id(), "w", 0))
        for word in words:
            self.assertIn(word, str(error))

    def test_results_may_arrive_where_gradients_are(self) -> None:
        with self.join(0, 2) as job, self.join(1, 2) as other:
            arrays = [np.full(30_000, rank + 1.0, np.float32) for rank in range(2)]
            keys = [each.add_key("w", 30_000) for each in (job, other)]
            for handle in [key.push_pull(array, array) for key, array in zip(keys, arrays)]:
                handle.wait(PATIENCE_S)
            for array in arrays:
                np.testing.assert_array_equal(array, 3.0)

    def test_wrong_arrays_are_refused_by_name(self) -> None:
        with self.join() as job:
            key = job.add_key("w", (4, 6), optimizer=phub.Sgd(0.1))
            right = np.zeros((4, 6), np.float32)
            for wrong, word in (
                (np.zeros((4, 5), np.float32), "shape"),
                (np.zeros((4, 6), np.float64), "float64"),
                (np.zeros((6, 4), np.float32).T, "contiguous"),
                ([1.0], "numpy array"),
            ):
                with self.assertRaises(phub.InvalidArgument) as raised:
                    key.push_pull(wrong)
                self.expect(raised.exception, word, "gradients")
            fixed = right.copy()
            fixed.flags.writeable = False
            with self.assertRaises(phub.InvalidArgument) as raised:
                key.push_pull(right, fixed)
            self.expect(raised.exception, "read-only")
            both = np.zeros(25, np.float32)
            with self.assertRaises(phub.InvalidArgument) as raised:
                key.push_pull(both[:24].reshape(4, 6), both[1:].reshape(4, 6))
            self.expect(raised.exception, "overlap")
            with self.assertRaises(ValueError):
                key.parameters[:] = 1  # read-only
            with self.assertRaises(phub.InvalidArgument):
                key.broadcast(3, right)
            key.push_pull(right).wait(PATIENCE_S)

    def test_wrong_keys_and_options_are_refused(self) -> None:
        with self.join() as job:
            for call, word in (
                (lambda: job.add_key("w", 3, "complex64"), "complex64"),
                (lambda: job.add_key("w", 3, operation="median"), "median"),
                (lambda: job.add_key("w", 0), "element"),
                (lambda: job.add_key("w", (3, -1)), "negative"),
                (lambda: job.add_key("", 3), "name"),
                (lambda: self.join(rank=2), "rank"),
                (lambda: self.join(transport="pigeon"), "pigeon"),
                (lambda: self.join(sum="exact"), "exact"),
                (lambda: self.join(sum_block=64), "sum_block is 64"),
                (lambda: phub.connect("nowhere"), "nowhere"),
            ):
                with self.assertRaises(phub.InvalidArgument) as raised:
                    call()
                self.assertIn(word, str(raised.exception))
            with self.assertRaises(TypeError):
                job.add_key("w", 3, optimizer=0.1)  # type: ignore[arg-type]
            with self.assertRaises(phub.AlreadyExists):
                self.join()

    def test_a_round_in_flight_times_out_and_refuses_a_second_push(self) -> None:
        with self.join(0, 2) as job, self.join(1, 2) as other:
            key = job.add_key("w", 100)
            peer = other.add_key("w", 100)
            handle = key.push_pull()
            with self.assertRaises(TimeoutError) as raised:
                handle.wait(0.05)
            self.expect(raised.exception, "in flight")
            self.assertFalse(handle.done())
            with self.assertRaises(phub.FailedPrecondition) as refused:
                key.push_pull()
            self.expect(refused.exception, "in flight")
            with self.assertRaises(ValueError):
                handle.wait(-1)
            peer.push_pull().wait(PATIENCE_S)
            handle.wait(PATIENCE_S)
            self.assertTrue(handle.done())

    def test_nothing_works_after_leaving(self) -> None:
        job = self.join()
        key = job.add_key("w", 100)
        job.leave()
        job.leave()
        with self.assertRaises(phub.Cancelled) as raised:
            key.push_pull()
        self.expect(raised.exception, "left")
        with self.assertRaises(phub.Cancelled):
            job.check()


if __name__ == "__main__":
    unittest.main()
