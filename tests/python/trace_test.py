"""phubctl job trace: the file of a running job, and the errors if no such job runs."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import unittest.mock
from typing import Any, Callable

from daemon import PATIENCE_S, DaemonTest, start_program

DRAW = pathlib.Path(__file__).parents[2] / "bench" / "draw-timeline"

# Rank sys.argv[3] of 2 trains until the file sys.argv[4] exists. The ranks agree about the end by a
# sum.
RANK = """
import os, sys
import numpy as np
import phub
rank = int(sys.argv[3])
job = phub.connect(sys.argv[1]).join(sys.argv[2], rank, 2)
large = job.add_key("large", 300_000, optimizer=phub.Sgd(0.1))
ends = job.add_key("ends", 1)
large.initialize(np.zeros(300_000, np.float32))
number = 0
while ends.parameters[0] == 0:
    ends.gradients[0] = os.path.exists(sys.argv[4])
    handles = [large.push_pull(), ends.push_pull()]
    for handle in handles:
        handle.wait()
    number += 1
    if number == 3:
        print("trains", flush=True)
job.leave()
"""


# The same with a pool and a group. Operations of the pool differ in length, so that their rounds
# have one, two or three chunks.
POOLS = """
import os, sys
import numpy as np
import phub
rank = int(sys.argv[3])
job = phub.connect(sys.argv[1]).join(sys.argv[2], rank, 2, chunk_bytes=1 << 16)
pool = job.add_pool("metrics", capacity=1 << 18, depth=2)
pair = job.new_group("pair", [0, 1])
key = pair.add_key("sum", 50_000)
group_pool = pair.add_pool("pool", capacity=1 << 12, depth=1)
number, end = 0, False
while not end:
    wants_end, count = os.path.exists(sys.argv[4]), 16384 * (number % 3 + 1)
    stop = pool.all_reduce(np.full(count, wants_end, np.float32))
    handles = [key.push_pull(), stop, group_pool.broadcast(np.zeros(10, np.int32), root=1)]
    for handle in handles:
        handle.wait()
    end = stop.results[0] != 0
    number += 1
    if number == 3:
        print("trains", flush=True)
pair.remove()
job.leave()
"""


class Traces(DaemonTest):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-trace-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.ranks: list[subprocess.Popen[str]] = []

    def start_ranks(self, source: str = RANK) -> None:
        for rank in range(2):
            program = start_program(
                source, self.daemon.endpoint, self.id(), str(rank), str(self.folder / "end")
            )
            self.addCleanup(program.kill)
            self.ranks.append(program)
        for program in self.ranks:
            assert program.stdout is not None
            self.assertEqual(program.stdout.readline(), "trains\n")

    def end_ranks(self) -> None:
        (self.folder / "end").touch()
        for rank in self.ranks:
            self.assertEqual((rank.communicate(timeout=PATIENCE_S), rank.returncode), (("", ""), 0))

    def trace(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [os.environ["PHUB_TEST_PHUBCTL"], "--endpoint", self.daemon.endpoint, "--timeout",
             "60s", "job", "trace", *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=2 * PATIENCE_S,
        )

    def test_a_running_job_is_traced_without_its_help(self) -> None:
        with unittest.mock.patch.dict(os.environ, PHUB_TIMELINE=str(self.folder / "ranks.json")):
            self.start_ranks()
        done = self.trace(self.id(), "trace.json", "--iterations", "5")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertRegex(done.stderr, r"^phubctl: [0-9]+ iterations, [0-9]+ spans of core loops ")
        self.end_ranks()
        events = json.loads((self.folder / "trace.json").read_text())
        names = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        self.check_keys(events, names)
        self.check_core_loops(events, names)
        self.check_arrows(events)
        self.check_joined(len(events))

    def test_pools_and_groups_are_traced_like_other_keys(self) -> None:
        with unittest.mock.patch.dict(os.environ, PHUB_TIMELINE=str(self.folder / "ranks.json")):
            self.start_ranks(POOLS)
        done = self.trace(self.id(), "trace.json", "--iterations", "20")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.end_ranks()
        events = json.loads((self.folder / "trace.json").read_text())
        names = self.check_names(events)
        pools = {"metrics/0": (2, 3), "metrics/1": (2, 3), "pool/0 of group pair": (1, 1)}
        for key, (depth, lengths) in pools.items():
            operations = self.check_pool(events, names, key, depth, lengths)
            self.assertGreaterEqual(len(operations), 4, key)
        self.check_rounds(events, names, "sum of group pair", 20)
        self.check_arrows(events)
        self.check_joined(len(events))
        for rank in range(2):
            own = json.loads((self.folder / f"ranks.rank{rank}.json").read_text())
            pushes = [
                each["args"]
                for each in own
                if each["name"] == "push" and each["tid"] in self.tracks(own, "metrics/1")
            ]
            self.assertEqual(
                [(each["pool_operation"], each["iteration"]) for each in pushes],
                [(2 * number + 1, number) for number in range(len(pushes))],
            )

    def tracks(self, events: list[dict[str, Any]], key: str) -> list[int]:
        names = self.check_names(events)
        return [tid for tid, name in names.items() if name.startswith(f"{key} (job {self.id()}")]

    def check_names(self, events: list[dict[str, Any]]) -> dict[int, str]:
        return {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }

    def check_pool(
        self,
        events: list[dict[str, Any]],
        names: dict[int, str],
        key: str,
        depth: int,
        lengths: int,
    ) -> list[int]:
        """The rounds of a pool's key have all chunks of their operations, which it returns."""
        [track] = self.tracks(events, key)
        rounds = [
            each["args"] for each in events if each["tid"] == track and each["name"] == "round"
        ]
        rounds.sort(key=lambda each: int(each["round"]))
        for each in rounds:
            operation, index = each["pool_operation"], each["round"] - 1
            self.assertEqual(operation, depth * index + int(key[key.index("/") + 1]))
            self.assertEqual(each["chunks"], operation % lengths + 1, (key, each))
            self.assertEqual(each["rounds_left"], 0)
            if lengths > 1:
                self.assertEqual((each["elements"], each["type"]), (16384 * each["chunks"], "f32"))
                self.assertEqual(each["operation"], "pooled")
            else:
                self.assertEqual((each["elements"], each["type"]), (10, "i32"))
                self.assertEqual(each["operation"], "pooled broadcast")
        self.check_rounds(events, names, key, 4)
        return [each["pool_operation"] for each in rounds]

    def check_joined(self, count: int) -> None:
        """The files of ranks and daemon belong together, on one clock."""
        files = ["ranks.rank0.json", "ranks.rank1.json", "trace.json"]
        for name in files[:2]:
            events = json.loads((self.folder / name).read_text())
            [about] = [each["args"] for each in events if each["name"] == "phub_timeline"]
            [clock] = about["daemons"]
            # Processes of one host have one clock, so the measured offset is an error.
            self.assertLessEqual(abs(clock["clock_offset_us"]), clock["clock_error_us"])
            self.assertLess(clock["clock_error_us"], PATIENCE_S * 1e6)
        drawn = subprocess.run(
            [DRAW, *files, "--json", "all.json"],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=2 * PATIENCE_S,
        )
        self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))
        events = json.loads((self.folder / "all.json").read_text())
        self.assertGreater(len(events), count)
        ends = {(each["cat"], each["id"]): each for each in events if each["ph"] == "f"}
        flows = [
            (each, ends[each["cat"], each["id"]])
            for each in events
            if each["ph"] == "s" and each["cat"] in ("sum", "new parameters")
        ]
        pairs = {(start["cat"], start["pid"], end["pid"]) for start, end in flows}
        daemon = 1_000_000
        self.assertEqual(
            pairs,
            {("sum", rank, daemon) for rank in range(2)}
            | {("new parameters", daemon, rank) for rank in range(2)},
        )
        for start, end in flows:
            self.assertLess(start["ts"], end["ts"])

    def check_keys(self, events: list[dict[str, Any]], names: dict[int, str]) -> None:
        """The rounds of each key have their parts, one after the other, and do not overlap."""
        for key in ("large", "ends"):
            self.check_rounds(events, names, key, 4)

    def check_rounds(
        self, events: list[dict[str, Any]], names: dict[int, str], key: str, least: int
    ) -> None:
        [track] = [tid for tid, name in names.items() if name == f"{key} (job {self.id()})"]
        spans = {
            (each["args"]["round"], each["name"]): each
            for each in events
            if each["ph"] == "X" and each["tid"] == track
        }
        rounds = sorted(number for number, name in spans if name == "round")
        self.assertEqual(rounds, list(range(rounds[0], rounds[-1] + 1)))
        self.assertGreaterEqual(len(rounds), least)
        previous = 0.0
        for number in rounds:
            whole, gradients, update = (
                spans[number, name] for name in ("round", "gradients", "update")
            )
            end = whole["ts"] + whole["dur"]
            self.assertGreaterEqual(whole["ts"], previous)
            self.assertEqual(whole["ts"], gradients["ts"])
            self.assertAlmostEqual(gradients["ts"] + gradients["dur"], update["ts"], places=2)
            self.assertAlmostEqual(update["ts"] + update["dur"], end, places=2)
            self.assertIn(gradients["args"]["last_rank"], (0, 1))
            previous = end - 0.01

    def check_core_loops(self, events: list[dict[str, Any]], names: dict[int, str]) -> None:
        """A core loop does one thing at a time."""
        loops = [tid for tid, name in names.items() if name.startswith("core loop ")]
        self.assertTrue(loops)
        for loop in loops:
            spans = [each for each in events if each["ph"] == "X" and each["tid"] == loop]
            self.assertTrue(spans)
            self.assertLessEqual(
                {each["name"] for each in spans},
                {f"{work} {key}" for work in ("update", "reply") for key in ("large", "ends")},
            )
            spans.sort(key=lambda each: (each["ts"], each["ts"] + each["dur"]))
            for first, second in zip(spans, spans[1:]):
                self.assertLessEqual(first["ts"] + first["dur"], second["ts"] + 0.01)

    def check_arrows(self, events: list[dict[str, Any]]) -> None:
        starts = {each["id"]: each for each in events if each["ph"] == "s"}
        ends = {each["id"]: each for each in events if each["ph"] == "f"}
        self.assertTrue(starts)
        self.assertEqual(starts.keys(), ends.keys())
        for number, start in starts.items():
            self.assertLessEqual(start["ts"], ends[number]["ts"])

    def iteration(self) -> int:
        told = subprocess.run(
            [os.environ["PHUB_TEST_PHUBCTL"], "--endpoint", self.daemon.endpoint, "-o", "json",
             "job", "get", self.id()],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        return int(json.loads(told.stdout)["iteration"])

    def wait_for(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_ctrl_c_ends_a_trace_with_what_it_has(self) -> None:
        self.start_ranks()
        trace = subprocess.Popen(
            [os.environ["PHUB_TEST_PHUBCTL"], "--endpoint", self.daemon.endpoint, "job", "trace",
             self.id(), "trace.json", "--seconds", "3600"],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            # Programs that scripts start in the background ignore the signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.addCleanup(trace.kill)
        self.wait_for((self.folder / "trace.json").exists)
        seen = self.iteration()
        self.wait_for(lambda: self.iteration() >= seen + 3)
        trace.send_signal(signal.SIGINT)
        _, told = trace.communicate(timeout=PATIENCE_S)
        self.assertEqual(trace.returncode, 0, told)
        self.assertRegex(told, r"^phubctl: [0-9]+ iterations, [0-9]+ spans of core loops ")
        self.end_ranks()
        events = json.loads((self.folder / "trace.json").read_text())
        self.assertTrue([each for each in events if each["name"] == "round"])

    def test_errors_name_the_job_and_the_file(self) -> None:
        none = self.trace("none", "trace.json")
        self.assertEqual(none.returncode, 3, none.stderr)
        self.assertIn("none", none.stderr)
        self.start_ranks()
        unwritable = self.trace(self.id(), "folder/trace.json")
        self.assertEqual(unwritable.returncode, 1)
        self.assertEqual(
            unwritable.stderr,
            "phubctl: cannot write folder/trace.json: No such file or directory\n",
        )
        # The trace was ended, so that another one can begin.
        self.assertEqual(self.trace(self.id(), "trace.json", "--iterations", "1").returncode, 0)
        self.end_ranks()
        ended = self.trace(self.id(), "trace.json")
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn(self.id(), ended.stderr)


if __name__ == "__main__":
    unittest.main()
