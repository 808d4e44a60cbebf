"""Tests of the script that merges and draws timelines."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from harness import timeline_picture
from harness.failure import BenchFailure

SCRIPT = Path(__file__).resolve().parent.parent.parent / "bench" / "draw-timeline"
SVG = "{http://www.w3.org/2000/svg}"


def span(rank: int, track: int, name: str, begin: float, length: float,
         **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": rank, "tid": track, "cat": name.split()[0],
            "ts": begin, "dur": length, "args": arguments}


def trace(rank: int, host: str = "a", offset_us: float = 0, begin: float = 1000,
          key: str = "w & <b>") -> list[dict[str, Any]]:
    """One round of one key, and the wait for it."""
    def metadata(event: str, track: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "M", "name": event, "pid": rank, "tid": track, "args": arguments}
    return [
        metadata("process_name", 0, name=f"rank {rank}"),
        metadata("phub_timeline", 0, host=host, realtime_minus_monotonic_us=offset_us),
        metadata("thread_name", 10_000_000, name=f"{key} (job digits)"),
        metadata("thread_name", 10_000_001, name="never pushed (job digits)"),
        span(rank, 10_000_000, "push", begin, 200, iteration=4),
        span(rank, 10_000_000, "queued", begin, 100),
        span(rank, 10_000_000, "pull", begin + 200, 600, iteration=4),
        {"ph": "s", "name": "round", "pid": rank, "tid": 10_000_000, "id": 1, "ts": begin},
        metadata("thread_name", 77, name="main thread"),
        span(rank, 77, f"wait {key}", begin + 250, 550),
    ]


class MergeTest(unittest.TestCase):
    def starts(self, *traces: list[dict[str, Any]]) -> list[float]:
        return [event["ts"] for event in timeline_picture.merged(traces)
                if event["name"] == "push"]

    def test_ranks_of_one_host_keep_their_times(self) -> None:
        # The wall clock was set between the ends of the two ranks.
        self.assertEqual(self.starts(trace(0, offset_us=5), trace(1, offset_us=80, begin=1100)),
                         [1000, 1100])

    def test_other_hosts_are_aligned_by_their_wall_clocks(self) -> None:
        self.assertEqual(self.starts(trace(0, "a", 5_000_000), trace(1, "b", 5_000_400.5, 700),
                                     trace(2, "a", 9, 1200), trace(3, "b", 11, 800)),
                         [1000, 1100.5, 1200, 1200.5])

    def test_a_trace_without_its_clock_is_refused(self) -> None:
        with self.assertRaisesRegex(BenchFailure, "its clock is unknown"):
            timeline_picture.merged([trace(0)[2:]])


class ArrowTest(unittest.TestCase):
    def arrows(self, *traces: list[dict[str, Any]]) -> list[tuple[int, float, int, float]]:
        """From which rank and time, to which rank and time."""
        events = timeline_picture.arrows_of(timeline_picture.merged(traces))
        starts, ends = events[::2], events[1::2]
        self.assertEqual([each["id"] for each in starts], list(range(len(starts))))
        for start, end in zip(starts, ends):
            self.assertEqual((start["ph"], end["ph"], end["bp"]), ("s", "f", "e"))
            self.assertEqual((start["id"], start["name"]), (end["id"], end["name"]))
        return [(start["pid"], start["ts"], end["pid"], end["ts"])
                for start, end in zip(starts, ends)]

    def test_the_other_ranks_waited_for_the_last_push(self) -> None:
        # Pushes end at 1200, 1500 and 1300, pulls at 1800, 2100 and 1900.
        self.assertEqual(self.arrows(trace(0), trace(1, begin=1300), trace(2, begin=1100)),
                         [(1, 1300, 0, 1550), (1, 1300, 2, 1600)])

    def test_other_rounds_keys_and_jobs_have_no_part(self) -> None:
        later = [event | {"args": event["args"] | {"iteration": 5}} if "args" in event else event
                 for event in trace(1, begin=1300)]
        self.assertEqual(self.arrows(trace(0), later), [])
        self.assertEqual(self.arrows(trace(0), trace(1, key="other", begin=1300)), [])
        self.assertEqual(self.arrows(trace(0)), [])

    def test_no_arrow_goes_backwards(self) -> None:
        self.assertEqual(self.arrows(trace(0), trace(1, begin=1800)), [])
        self.assertEqual(self.arrows(trace(0), trace(1, begin=1790)), [(1, 1790, 0, 1795)])


def daemon(host: str = "a", started: int = 7, pid: int = 1_000_000,
           begin: float = 1100) -> list[dict[str, Any]]:
    """What a daemon does in round 5 of the key."""
    def metadata(event: str, track: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "M", "name": event, "pid": pid, "tid": track, "args": arguments}
    return [
        metadata("process_name", 0, name=f"phubd on {host}"),
        metadata("phub_timeline", 0, host=host, realtime_minus_monotonic_us=0,
                 daemon_started_ns=started),
        metadata("thread_name", 10_000_000, name="w & <b> (job digits)"),
        metadata("thread_name", 1, name="core loop 0"),
        span(pid, 10_000_000, "round", begin, 500, round=5, iteration=4),
        span(pid, 10_000_000, "gradients", begin, 300, round=5, iteration=4),
        span(pid, 10_000_000, "update", begin + 300, 200, round=5, iteration=4),
        span(pid, 1, "update w & <b>", begin + 310, 50, round=5, iteration=4),
    ]


def measured(events: list[dict[str, Any]], *clocks: tuple[str, Any, float]
             ) -> list[dict[str, Any]]:
    """A rank's trace that knows the clocks of daemons, in round 5."""
    known = [{"host": host, "started_ns": 7, "clock_offset_us": offset, "clock_error_us": error}
             for host, offset, error in clocks]
    result = []
    for event in events:
        more: dict[str, Any] = {"daemons": known} if event["name"] == "phub_timeline" else {}
        if event["name"] in ("push", "pull"):
            more = {"round": 5}
        result.append(event | {"args": event["args"] | more} if more else event)
    return result


class DaemonTest(unittest.TestCase):
    def arrows(self, *traces: list[dict[str, Any]]) -> list[tuple[str, int, float, int, float]]:
        events = timeline_picture.arrows_of(timeline_picture.merged(traces))
        return [(start["name"], start["pid"], start["ts"], end["pid"], end["ts"])
                for start, end in zip(events[::2], events[1::2])]

    def test_arrows_go_from_pushes_through_the_daemon_to_pulls(self) -> None:
        ranks = [measured(trace(0), ("a", 0, 50)), measured(trace(1, begin=1200), ("a", 0, 50))]
        self.assertEqual(self.arrows(*ranks, daemon()), [
            ("sum", 0, 1000, 1_000_000, 1250), ("sum", 1, 1200, 1_000_000, 1300),
            ("new parameters", 1_000_000, 1400, 0, 1600),
            ("new parameters", 1_000_000, 1400, 1, 1700)])

    def test_daemons_that_a_rank_does_not_use_have_no_arrows(self) -> None:
        rank = measured(trace(0), ("a", 0, 50))
        self.assertEqual(self.arrows(rank, daemon(started=8)), [])
        self.assertEqual(self.arrows(rank, daemon("b")), [])
        self.assertEqual(self.arrows(trace(0), daemon()), [])

    def test_clocks_of_other_hosts_are_those_that_ranks_measured(self) -> None:
        # By their wall clocks all hosts are equal. b is 10 ms ahead of a, and c is 3 ms behind b.
        first = measured(trace(0, "a"), ("b", 10_000, 100))
        second = measured(trace(1, "c", begin=8_000), ("b", 3_000, 20))
        merged = timeline_picture.merged([first, second, daemon("b", begin=11_100)])
        starts = {(event["pid"], event["name"]): event["ts"] for event in merged
                  if event["ph"] == "X"}
        self.assertEqual(starts[0, "push"], 1000)
        self.assertEqual(starts[1, "push"], 1000)
        self.assertEqual(starts[1_000_000, "gradients"], 1100)

    def test_the_measurement_with_the_least_error_counts(self) -> None:
        for clocks in ([("b", 500, 10), ("b", 900, 400)], [("b", 900, 400), ("b", 500, 10)]):
            traces = [measured(trace(0), *clocks), daemon("b", begin=2000)]
            self.assertEqual([event["ts"] for event in timeline_picture.merged(traces)
                              if event["name"] == "gradients"], [1500])

    def test_the_picture_has_the_daemons_rows_and_legend(self) -> None:
        rank = measured(trace(0), ("a", 0, 50))
        picture = timeline_picture.svg(timeline_picture.merged([rank, daemon()]), "title")
        ElementTree.fromstring(picture)
        for text in ("phubd on a", "core loop 0", "daemon: gradients arrive",
                     "gradients, iteration 4: 300 us", "update w &amp; &lt;b&gt;, iteration 4"):
            self.assertIn(text, picture)
        alone = timeline_picture.svg(timeline_picture.merged([rank]), "title")
        self.assertNotIn("daemon:", alone)


class PictureTest(unittest.TestCase):
    def draw(self, *traces: list[dict[str, Any]]) -> ElementTree.Element:
        return ElementTree.fromstring(
            timeline_picture.svg(timeline_picture.merged(traces), "T & <t>"))

    def test_each_span_is_a_bar_in_the_row_of_its_key(self) -> None:
        picture = self.draw(trace(1, begin=1200), trace(0))
        texts = [each.text for each in picture.iter(f"{SVG}text")]
        rows = ["rank 0", "w & <b>", "main thread"]
        self.assertEqual([text for text in texts if text in (*rows, "rank 1", "never pushed")],
                         [*rows, "rank 1", *rows[1:]])
        self.assertEqual(texts[0], "T & <t>")
        bars = {(bar.get("y"), title.text): (float(bar.get("x", 0)), float(bar.get("width", 0)))
                for bar in picture.iter(f"{SVG}rect")
                if (title := bar.find(f"{SVG}title")) is not None}
        # 1000 us are 800 wide, from 202 on.
        first, second = sorted({float(y or 0) for y, _ in bars})[:2]
        self.assertEqual(second - first, timeline_picture.ROW_HEIGHT)
        of_rank_0 = {title: place for (y, title), place in bars.items()
                     if float(y or 0) in (first, second)}
        self.assertEqual(of_rank_0, {
            "push, iteration 4: 200 us": (202, 160), "queued: 100 us": (202, 80),
            "pull, iteration 4: 600 us": (362, 480), "wait w & <b>: 550 us": (402, 440)})
        self.assertEqual(len(bars), 8)

    def test_computation_is_in_the_row_of_its_thread(self) -> None:
        computed = {**span(0, 77, "backward to 3.weight", 1000, 250), "cat": "compute"}
        picture = self.draw([*trace(0), computed])
        bars = {title.text: bar for bar in picture.iter(f"{SVG}rect")
                if (title := bar.find(f"{SVG}title")) is not None}
        bar, wait = bars["backward to 3.weight: 250 us"], bars["wait w & <b>: 550 us"]
        self.assertEqual(bar.get("y"), wait.get("y"))
        self.assertEqual(bar.get("fill"), timeline_picture.COLOURS["compute"])

    def test_the_axis_has_round_numbers(self) -> None:
        for length, ticks in ((1000.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
                              (45_000.0, ["0", "10", "20", "30", "40"])):
            picture = self.draw([*trace(0)[:4], span(0, 10_000_000, "pull", 500, length)])
            texts = [each.text for each in picture.iter(f"{SVG}text")]
            last = timeline_picture.RANKS_KINDS[-1]
            after_legend = texts.index(timeline_picture.MEANINGS[last]) + 1
            self.assertEqual(texts[after_legend:texts.index("rank 0")], [*ticks, "ms"])

    def test_what_cannot_be_drawn_is_refused(self) -> None:
        with self.assertRaisesRegex(BenchFailure, "have no rounds"):
            self.draw(trace(0)[:4])
        many = [span(0, 10_000_000, "pull", at, 1)
                for at in range(timeline_picture.SPANS_MAX + 1)]
        with self.assertRaisesRegex(BenchFailure, "20001 spans, and a picture shows at most"):
            self.draw([*trace(0)[:4], *many])


class ScriptTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def run_script(self, *arguments: str) -> tuple[int, str]:
        answer = subprocess.run([SCRIPT, *arguments], cwd=self.folder, capture_output=True,
                                text=True, timeout=60, check=False)
        self.assertEqual(answer.stdout, "")
        return answer.returncode, answer.stderr

    def test_it_writes_both_files(self) -> None:
        for rank in range(2):
            (self.folder / f"rank{rank}.json").write_text(json.dumps(trace(rank)))
        self.assertEqual(self.run_script("rank0.json", "rank1.json", "--svg", "a.svg",
                                         "--json", "a.json"), (0, ""))
        events = trace(0) + trace(1)
        arrows = timeline_picture.arrows_of(events)
        self.assertEqual(len(arrows), 2)
        self.assertEqual(json.loads((self.folder / "a.json").read_text()), events + arrows)
        ElementTree.fromstring((self.folder / "a.svg").read_text())

    def test_errors_name_the_file(self) -> None:
        (self.folder / "text").write_text("no JSON")
        for name, changed in (("list", [1]), ("late", [trace(0)[4] | {"ts": "noon"}]),
                              ("bare", [{"ph": "X", "pid": 0, "tid": 1, "name": "push"}]),
                              ("unnamed", [trace(0)[0] | {"args": {}}]),
                              ("clock", measured(trace(0), ("a", "soon", 1)))):
            (self.folder / name).write_text(json.dumps(changed))
        (self.folder / "good").write_text(json.dumps(trace(0)))
        for arguments, expected in (
                (["none", "--svg", "a"], "cannot read none: No such file or directory"),
                (["text", "--svg", "a"], "text is not a timeline: "),
                *(([name, "--svg", "a"], f"{name} is not a timeline: it is not an array of phub's")
                  for name in ("list", "late", "bare", "unnamed", "clock")),
                (["good", "--svg", "no/a"], "cannot write no/a: No such file or directory")):
            code, error = self.run_script(*arguments)
            self.assertEqual(code, 1)
            self.assertIn(f"bench/draw-timeline: {expected}", error)
            self.assertEqual(error.count("\n"), 1)
        self.assertEqual(self.run_script("good")[0], 2)


if __name__ == "__main__":
    unittest.main()
