"""PHUB_TIMELINE: the files of whole runs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Optional

from daemon import DaemonTest

DRAW = pathlib.Path(__file__).parents[2] / "bench" / "draw-timeline"
PATIENCE_S = 60.0
ROUNDS = 6

# Rank sys.argv[3] of 2: one broadcast, then rounds of two keys.
RANK = """
import sys
import numpy as np
import phub
rank = int(sys.argv[3])
job = phub.connect(sys.argv[1]).join(sys.argv[2], rank, 2)
large = job.add_key("large", 300_000, optimizer=phub.Sgd(0.1), gradient_dtype="float16")
small = job.add_key("small", 3)
large.initialize(np.zeros(300_000, np.float32))
for _ in range(%d):
    handles = [large.push_pull(), small.push_pull()]
    for handle in handles:
        handle.wait()
if sys.argv[4] == "leave":
    job.leave()
""" % ROUNDS

# One rank that ends with its job.
ENDING = """
import ctypes, sys
import phub
job = phub.connect(sys.argv[1]).join(sys.argv[2])
key = job.add_key("w", 3)
for _ in range(4):
    key.push_pull().wait()
ctypes.CDLL(None).exit(0)
"""


class Timelines(DaemonTest):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-timeline-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_ranks(self, path: str, window: Optional[str] = None, end: str = "leave") -> list[str]:
        """Returns what the ranks wrote to standard error."""
        environment = {**os.environ, "PHUB_TIMELINE": path}
        if window is not None:
            environment["PHUB_TIMELINE_ITERATIONS"] = window
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, self.daemon.endpoint, self.id(), str(rank), end],
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(2)
        ]
        errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], errors)
        return errors

    def events(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / name).read_text())
        return found

    def check(self, events: list[dict[str, Any]], rank: int, iterations: range) -> None:
        """The events are those of these rounds."""
        self.assertEqual({event["pid"] for event in events}, {rank})
        names = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        for key, up, down in (("large", 600_000, 1_200_000), ("small", 12, 12)):
            (track,) = [tid for tid, name in names.items() if name == f"{key} (job {self.id()})"]
            own = [event for event in events if event["tid"] == track]
            pushes = [event for event in own if event["name"] == "push"]
            pulls = [event for event in own if event["name"] == "pull"]
            reductions = [each for each in pushes if each["args"]["operation"] == "reduce"]
            self.assertEqual([each["args"]["iteration"] for each in reductions], list(iterations))
            self.assertEqual({each["args"]["bytes"] for each in reductions}, {up})
            self.assertEqual({each["args"]["bytes"] for each in pulls}, {down})
            others = [each for each in pushes if each not in reductions]
            # The broadcast of Initialize() comes before the first iteration.
            expected = [(0, "assign")] if key == "large" and 0 in iterations else []
            found = [(each["args"]["iteration"], each["args"]["operation"]) for each in others]
            self.assertEqual(found, expected)
            self.check_spans(own, pushes, pulls)
        waits = [event for event in events if event.get("cat") == "wait"]
        for wait in waits:  # initialize() waits in a thread of its own
            self.assertRegex(names[wait["tid"]], "^(main thread|thread [0-9]+)$")

    def check_spans(
        self,
        own: list[dict[str, Any]],
        pushes: list[dict[str, Any]],
        pulls: list[dict[str, Any]],
    ) -> None:
        """A pull follows each push, before the next push, with an arrow between them."""
        arrows = {phase: [each for each in own if each["ph"] == phase] for phase in "sf"}
        self.assertEqual(len(pulls), len(pushes))
        previous = 0.0
        for push, pull, start, finish in zip(pushes, pulls, arrows["s"], arrows["f"]):
            self.assertEqual(push["args"]["round"], pull["args"]["round"])
            self.assertGreaterEqual(push["ts"], previous)
            self.assertAlmostEqual(push["ts"] + push["dur"], pull["ts"], places=2)
            previous = pull["ts"] + pull["dur"]
            self.assertEqual(start["id"], finish["id"])
            self.assertEqual(start["ts"], push["ts"])
            self.assertLessEqual(pull["ts"] - 0.01, finish["ts"])
            self.assertLessEqual(finish["ts"], previous + 0.01)
        ids = [each["id"] for each in arrows["s"]]
        self.assertEqual(len(set(ids)), len(pushes))

    def test_each_rank_writes_all_rounds(self) -> None:
        errors = self.run_ranks(str(self.folder / "trace.json"))
        self.assertEqual(errors, ["", ""])
        traces = [self.events(f"trace.rank{rank}.json") for rank in range(2)]
        for rank, events in enumerate(traces):
            self.check(events, rank, range(ROUNDS))
        # Ranks of one host have one clock: no rank completes a round before the other pushes it.
        spans = [
            {
                (each["args"]["round"], each["args"]["bytes"], each["name"]): each
                for each in events
                if each["name"] in ("push", "pull")
            }
            for events in traces
        ]
        for own, other in (spans, spans[::-1]):
            for iteration in range(ROUNDS):
                pull = own[(iteration + 1, 12, "pull")]
                push = other[(iteration + 1, 12, "push")]
                self.assertLess(push["ts"], pull["ts"] + pull["dur"])
        ids = [{each["id"] for each in events if each["ph"] == "s"} for events in traces]
        self.assertFalse(ids[0] & ids[1])  # so the files can be joined
        drawn = subprocess.run(
            [DRAW, "trace.rank0.json", "trace.rank1.json", "--json", "all.json", "--svg", "a.svg"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))
        joined = self.events("all.json")
        count = len(traces[0]) + len(traces[1])
        self.assertEqual(joined[:count], traces[0] + traces[1])
        # One rank waited for the other in each round, and in the broadcast of Initialize().
        self.assertEqual({each["name"] for each in joined[count:]}, {"last push"})
        self.assertEqual(len(joined[count:]), 2 * (2 * ROUNDS + 1))
        self.assertIn(">large</text>", (self.folder / "a.svg").read_text())

    def test_a_window_and_a_process_that_does_not_leave(self) -> None:
        errors = self.run_ranks(str(self.folder / "%r-trace"), window="2:4", end="exit")
        self.assertEqual(errors, ["", ""])
        for rank in range(2):
            self.check(self.events(f"{rank}-trace"), rank, range(2, 4))

    def test_a_process_that_ends_with_its_job(self) -> None:
        program = subprocess.run(
            [sys.executable, "-c", ENDING, self.daemon.endpoint, self.id()],
            env={**os.environ, "PHUB_TIMELINE": str(self.folder / "trace.json")},
            timeout=PATIENCE_S,
        )
        self.assertEqual(program.returncode, 0)
        pulls = [each for each in self.events("trace.rank0.json") if each["name"] == "pull"]
        self.assertEqual([each["args"]["iteration"] for each in pulls], [0, 1, 2, 3])

    def test_what_is_wrong_is_a_warning(self) -> None:
        for error in self.run_ranks(str(self.folder / "none" / "trace.json")):
            self.assertIn("event=timeline_not_written", error)
            self.assertIn("No such file or directory", error)
        for error in self.run_ranks(str(self.folder / "trace.json"), window="4:2"):
            self.assertIn("event=timeline_off", error)
            self.assertIn("PHUB_TIMELINE_ITERATIONS is '4:2'", error)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
