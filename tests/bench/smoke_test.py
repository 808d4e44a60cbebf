"""bench/run as people call it: the smallest run of each bench, and what it says to nonsense."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

RUN = Path(__file__).resolve().parent.parent.parent / "bench" / "run"
BUILD = os.environ["PHUB_BENCH_BUILD_DIR"]
OPTIMIZED = os.environ["PHUB_BENCH_OPTIMIZED"] == "yes"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RUN, *arguments, "--no-build", "--build-dir", BUILD],
                          capture_output=True, text=True, check=False, timeout=100)


class SmokeTest(unittest.TestCase):
    def check(self, name: str, systems: set[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            answer = bench(name, "--smoke", "--json", str(path))
            if not OPTIMIZED:
                self.assertEqual(answer.returncode, 1, answer.stdout)
                self.assertIn("refuses to measure an unoptimised build", answer.stderr)
                return
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
            rows = json.loads(path.read_text())
        cases = {row["case"] for row in rows}
        self.assertTrue(cases)
        for case in cases:
            self.assertRegex(case, rf"^{name}/(shm|tcp)/[a-z0-9]+/w[0-9]+/f32/(update|allreduce)$")
            measured = {row["system"] for row in rows if row["case"] == case}
            self.assertLessEqual(systems, measured, case)
        for row in rows:
            for field in ("median_s", "min_s", "runs"):
                self.assertGreater(row[field], 0, row)
            for field in ("mad_s", "cpu_s", "process_cpu_s"):
                self.assertGreaterEqual(row[field], 0, row)
            self.assertLessEqual(row["min_s"], row["median_s"])
            self.assertLessEqual(row["median_s"], row["p99_s"])
            self.assertIn("ceiling_s", row)
            if row["system"].startswith("phub"):
                self.assertIn(row["notes"]["transports"], row["case"])
                self.assertGreater(row["server_formula_bytes"], 0)

    def test_exchange(self) -> None:
        self.check("exchange", {"phub", "phub-usermem"})

    def test_latency(self) -> None:
        self.check("latency", {"phub", "phub-usermem"})


class UsageTest(unittest.TestCase):
    def test_nonsense_is_refused(self) -> None:
        for arguments in (["exchanges"], ["exchange", "--fast"], ["exchange", "--work", "sum"],
                          ["exchange", "--workers", "0"], ["exchange", "--rounds", "-1"],
                          ["latency", "--json", "/none/x.json"], []):
            answer = bench(*arguments)
            self.assertEqual(answer.returncode, 2, arguments)
            self.assertIn("bench/run", answer.stderr)
        if OPTIMIZED:
            answer = bench("exchange", "--model", "resnet51")
            self.assertEqual(answer.returncode, 2)
            self.assertIn("resnet50", answer.stderr)

    def test_help_teaches(self) -> None:
        answer = bench("exchange", "--help")
        self.assertEqual(answer.returncode, 0)
        for option in ("--model", "--workers", "--systems", "--json", "--smoke"):
            self.assertIn(option, answer.stdout)


if __name__ == "__main__":
    unittest.main(argv=["smoke_test"])
