"""Tests of the bench's harness: the statistics of raw times, and the inputs that it refuses."""

import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from harness.block import Block, read_block
from harness.build import Build
from harness.daemon import Daemon
from harness.failure import BenchFailure, UsageError
from harness.processes import Command, run_together
from harness.results import (Result, add_ratios, median_absolute_deviation, percentile,
                             seconds_text, summarized, table, write_json)
from harness.workload import Workload, model, size_text


def write_rank(folder: Path, rank: int, **changed: object) -> None:
    written = {"rank": rank, "stamps_ns": [0, 10, 30], "cpu_s": 2.0, "daemons_cpu_s": 0.0,
               "machine_cpu_s": 8.0, "verified": True, "notes": {}, "daemon_memory": []}
    (folder / f"rank-{rank}.json").write_text(json.dumps(written | changed))


class ScratchTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)


# A phubd whose log is half a second behind.
LATE_LOG = """#!/bin/bash
if [[ "$*" == *--dump-config* ]]; then echo 'staging_bytes_per_lane = "2KiB"'; exit; fi
echo 7 > "$4"
sleep 0.4
printf 'event=serving version=1 core_loops=3' >&2
sleep 0.1
printf '2 data_listen=here\\n' >&2
exec sleep 600
"""


class DaemonTest(ScratchTest):
    def test_it_waits_for_the_line_of_the_log(self) -> None:
        program = self.folder / "phubd"
        program.write_text(LATE_LOG)
        program.chmod(0o755)
        with Daemon(mock.Mock(phubd=program), self.folder) as daemon:
            self.assertEqual(daemon.endpoint, "127.0.0.1:7")
            self.assertEqual(daemon.core_loops, 32)
            self.assertEqual(daemon.data_endpoint, "here")
            self.assertEqual(daemon.staging_bytes_per_lane, 2048)
            with self.assertRaisesRegex(BenchFailure, "has no pinned= in event=serving"):
                daemon.description()


class BlockTest(ScratchTest):
    def test_an_exchange_lasts_until_its_last_rank(self) -> None:
        write_rank(self.folder, 0, stamps_ns=[100, 200, 350], daemons_cpu_s=1.0)
        write_rank(self.folder, 1, stamps_ns=[90, 250, 300])
        block = read_block(self.folder, 2)
        # Ends are 100, 250, 350.
        self.assertEqual([round(time_s * 1e9) for time_s in block.times_s], [150, 100])
        self.assertEqual(block.machine_cpu_s, 4.0)
        self.assertEqual(block.process_cpu_s, 2.5)

    def test_what_comes_between_exchanges_is_not_timed(self) -> None:
        write_rank(self.folder, 0, stamps_ns=[0, 200, 400], begins_ns=[120, 310])
        write_rank(self.folder, 1, stamps_ns=[0, 190, 420], begins_ns=[110, 330])
        # Ends are 200 and 420; the first ranks began at 110 and 310.
        block = read_block(self.folder, 2)
        self.assertEqual([round(time_s * 1e9) for time_s in block.times_s], [90, 110])
        self.assertEqual(block.machine_cpu_s, 4.0)

    def test_what_is_lent_to_workers_is_not_the_daemons(self) -> None:
        write_rank(self.folder, 0, daemon_memory=[{"peak_bytes": 100, "worker_bytes": 60},
                                                  {"peak_bytes": 50, "worker_bytes": 10}])
        self.assertEqual(read_block(self.folder, 1).daemon_bytes, 80)

    def test_a_rank_without_results_fails_the_block(self) -> None:
        write_rank(self.folder, 0)
        with self.assertRaisesRegex(BenchFailure, "rank 1 wrote no results"):
            read_block(self.folder, 2)

    def test_results_that_were_not_verified_fail_the_block(self) -> None:
        write_rank(self.folder, 0, verified=False)
        with self.assertRaisesRegex(BenchFailure, "did not verify"):
            read_block(self.folder, 1)


class ProcessTest(ScratchTest):
    def test_a_process_that_fails_ends_the_others(self) -> None:
        commands = [Command(["sleep", "600"], self.folder / "a.log"),
                    Command(["sh", "-c", "echo why; exit 3"], self.folder / "b.log")]
        with self.assertRaisesRegex(BenchFailure, "sh ended with status 3:\n +why"):
            run_together(commands, timeout_s=60)

    def test_processes_that_hang_are_ended(self) -> None:
        with self.assertRaisesRegex(BenchFailure, "sleep still ran after 0 s"):
            run_together([Command(["sleep", "600"], self.folder / "a.log")], timeout_s=0.2)

    def test_a_program_that_is_not_there_is_named(self) -> None:
        with self.assertRaisesRegex(BenchFailure, "cannot start /none: No such file"):
            run_together([Command(["/none"], self.folder / "a.log")], timeout_s=1)


class ResultTest(ScratchTest):
    def test_statistics(self) -> None:
        self.assertEqual(median_absolute_deviation([1, 2, 3, 4, 100]), 1)
        self.assertEqual(percentile(list(range(1, 101)), 99), 100)
        self.assertEqual(percentile([5.0], 99), 5.0)
        row = summarized("c", "phub", [Block([1.0, 3.0], 4.0, 2.0), Block([2.0], 6.0, 4.0)], 0.5)
        self.assertEqual((row.median_s, row.min_s, row.mad_s, row.cpu_s, row.runs),
                         (2.0, 1.0, 1.0, 5.0, 3))

    def test_too_few_ticks_are_not_read(self) -> None:
        row = summarized("c", "phub", [Block([0.001] * 10, 0.019, 0.001)], None)
        self.assertEqual((row.cpu_s, row.more["cpu_of_whom"]), (0.001, "processes"))
        row = summarized("c", "phub", [Block([0.001] * 11, 0.019, 0.001)], None)
        self.assertEqual((row.cpu_s, row.more["cpu_of_whom"]), (0.019, "machine"))

    def test_times_in_words(self) -> None:
        for seconds, text in ((2.5, "2.5 s"), (0.0213, "21.3 ms"), (4e-5, "40 us"),
                              (0.9999, "1 s"), (0.144, "144 ms"), (1e-8, "0.01 us")):
            self.assertEqual(seconds_text(seconds), text)

    def test_ratios_are_to_every_peer(self) -> None:
        rows = [Result("c", "phub", 2.0, 2.0, 0, 1.0, 1.0, 3),
                Result("c", "gloo-ring", 8.0, 8.0, 0, 4.0, 1.0, 3)]
        add_ratios(rows)
        self.assertEqual(rows[0].more["times_faster_than"], {"gloo-ring": 4.0})
        self.assertEqual(rows[0].more["cpu_of"], {"gloo-ring": 0.25})
        self.assertNotIn("cpu_of", rows[1].more)
        self.assertRegex(table(rows), r"gloo-ring +8 s +8 s +0 us +4 s +12 % +4.00x")

    def test_the_file_is_a_list_of_objects(self) -> None:
        path = self.folder / "results.json"
        write_json(path, [Result("c", "phub", 2.0, 1.0, 0.5, 1.0, None, 3)], {"host": "h"})
        self.assertEqual(json.loads(path.read_text()), [
            {"case": "c", "system": "phub", "median_s": 2.0, "min_s": 1.0, "mad_s": 0.5,
             "cpu_s": 1.0, "ceiling_s": None, "runs": 3, "machine": {"host": "h"}}])


class WorkloadTest(ScratchTest):
    def test_models(self) -> None:
        resnet = model("resnet50")
        self.assertEqual((len(resnet.sizes), resnet.element_count), (161, 25557032))
        self.assertEqual(model("4KiB").sizes, (1024,))
        self.assertEqual(model("4KiB").name, "4096")
        own = self.folder / "mine.csv"
        own.write_text("tensor_index,elements\n0,5\n1,7\n")
        self.assertEqual((model(str(own)).name, model(str(own)).sizes), ("mine", (5, 7)))
        for wrong in ("5", "0", "resnet51", "4 KiB", str(self.folder / "none.csv")):
            with self.assertRaises(UsageError):
                model(wrong)

    def test_a_case_names_all_that_matters(self) -> None:
        load = Workload(model("1MiB"), 4, "allreduce", "bf16")
        self.assertEqual(load.case("exchange", "shm"), "exchange/shm/1048576/w4/bf16/allreduce")
        self.assertEqual(load.bytes, 1 << 19)
        self.assertEqual([size_text(count) for count in (12, 4096, 102228128)],
                         ["12 bytes", "4 KiB", "97.5 MiB"])


class BuildTest(ScratchTest):
    def configure(self, build_type: str, sanitizers: str = "") -> None:
        (self.folder / "CMakeCache.txt").write_text(
            f"CMAKE_BUILD_TYPE:STRING={build_type}\nPHUB_SANITIZE:STRING={sanitizers}\n")

    def program(self, answer: str) -> None:
        path = self.folder / "bench" / "program"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{answer}'\n")
        path.chmod(0o755)

    def test_only_optimised_builds_are_used(self) -> None:
        for build_type in ("Debug", "RelWithDebInfo", ""):
            self.configure(build_type)
            with self.assertRaisesRegex(BenchFailure, "refuses to measure an unoptimised build"):
                Build(self.folder)
        self.configure("Release", "thread")
        with self.assertRaisesRegex(BenchFailure, "sanitizers"):
            Build(self.folder)
        self.configure("Release")
        Build(self.folder)

    def test_programs_are_asked(self) -> None:
        self.configure("Release")
        good = {"build_type": "Release", "optimized": True, "sanitizer": "", "compiler": "c"}
        self.program(json.dumps(good))
        Build(self.folder).program("program")
        for wrong in (good | {"build_type": "Debug"}, good | {"optimized": False},
                      good | {"sanitizer": "address"}):
            self.program(json.dumps(wrong))
            with self.assertRaisesRegex(BenchFailure, "refuses to measure an unoptimised build"):
                Build(self.folder).program("program")
        self.program("hello")
        with self.assertRaisesRegex(BenchFailure, "does not report how it was built"):
            Build(self.folder).program("program")
        with self.assertRaisesRegex(BenchFailure, "does not exist"):
            Build(self.folder).program("other")


if __name__ == "__main__":
    unittest.main(argv=["harness_test"], exit=True)
