"""Runs bench/run as users do: the smallest run of each bench, and invalid command lines."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

RUN = Path(__file__).resolve().parent.parent.parent / "bench" / "run"
BUILD = os.environ["PHUB_BENCH_BUILD_DIR"]
OPTIMIZED = os.environ["PHUB_BENCH_OPTIMIZED"] == "yes"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RUN, *arguments, "--no-build", "--build-dir", BUILD],
                          capture_output=True, text=True, check=False, timeout=100)


class SmokeTest(unittest.TestCase):
    def rows_of(self, name: str, *arguments: str) -> list[dict[str, Any]]:
        """The measured rows, or nothing if the build must be refused."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            answer = bench(name, "--smoke", "--json", str(path), *arguments)
            if not OPTIMIZED:
                self.assertEqual(answer.returncode, 1, answer.stdout)
                self.assertIn("refuses to measure an unoptimised build", answer.stderr)
                return []
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
            rows: list[dict[str, Any]] = json.loads(path.read_text())
        self.assertTrue(rows)
        for row in rows:
            self.assertTrue(row["case"].startswith(f"{name}/"), row)
            self.assertGreater(row["runs"], 0)
            self.assertLessEqual(row["min_s"], row["median_s"])
        return rows

    def check(self, name: str, systems: set[str]) -> None:
        rows = self.rows_of(name)
        cases = {row["case"] for row in rows}
        for case in cases:
            self.assertRegex(case, rf"^{name}/(shm|tcp)/[a-z0-9]+/w[0-9]+/f32/(update|allreduce)$")
            measured = {row["system"] for row in rows if row["case"] == case}
            self.assertLessEqual(systems, measured, case)
        for row in rows:
            self.assertGreater(row["min_s"], 0, row)
            for field in ("mad_s", "cpu_s", "process_cpu_s"):
                self.assertGreaterEqual(row[field], 0, row)
            self.assertLessEqual(row["median_s"], row["p99_s"])
            self.assertIn("ceiling_s", row)
            if row["system"].startswith("phub"):
                self.assertIn(row["notes"]["transports"], row["case"])
                self.assertGreater(row["server_formula_bytes"], 0)

    def test_exchange(self) -> None:
        self.check("exchange", {"phub", "phub-usermem"})

    def test_latency(self) -> None:
        self.check("latency", {"phub", "phub-usermem"})

    def test_overlap(self) -> None:
        rows = self.rows_of("overlap")
        for row in rows:
            self.assertRegex(row["case"],
                             r"^overlap/(shm|tcp)/262144/w2/f32/update/(memory|device)$")
            self.assertGreater(row["ceiling_s"], 0)
            self.assertGreaterEqual(row["sum_s"], row["max_s"])
            self.assertEqual(row["sum_s"], row["compute_alone_s"] + row["exchange_alone_s"])
        touched = {row["case"].split("/")[1]: row["memory_bytes_per_gradient_byte"]
                   for row in rows if row["system"] == "phub"}
        if not touched:
            return
        # Over shared memory, gradients are read in place, and parameters are written once for two
        # workers. Over tcp the kernel copies both, and a network card or the other end moves them.
        # A heartbeat may fall into the steps that are counted.
        self.assertAlmostEqual(touched["shm"]["sockets"], 0, delta=0.001)
        self.assertAlmostEqual(touched["shm"]["link"], 1.5, delta=0.1)
        self.assertAlmostEqual(touched["tcp"]["sockets"], 4, delta=0.2)
        self.assertAlmostEqual(touched["tcp"]["link"], 2, delta=0.1)

    def test_scale(self) -> None:
        rows = self.rows_of("scale")
        systems = {row["system"] for row in rows}
        if rows:
            self.assertLessEqual({"phub", "phub-cores-1", "phub-chunk-256"}, systems)
        for row in rows:
            if "chunks_per_s" in row:
                self.assertGreater(row["chunks_per_s"], 0)
                self.assertGreater(row["loop_ns_per_chunk"], 0)
            if "instructions_per_chunk" in row:
                for stage in ("polling", "ingest", "aggregate", "sum", "reply", "core loop"):
                    self.assertGreater(row["instructions_per_chunk"][stage], 0, stage)

    def test_cache(self) -> None:
        rows = self.rows_of("cache")  # of a simulation, so figures are the same on every machine
        self.assertIn(len(rows), (0, 2))
        for row in rows:
            self.assertEqual(row["memory_bytes"], row["formula_memory_bytes"])
            if row["simulated_fill_bytes"] == 0:
                continue  # valgrind is not installed
            if row["goal"].startswith("<="):
                self.assertLessEqual(row["fills_per_touched_byte"], 1.1)
            else:
                self.assertGreaterEqual(row["fills_per_touched_byte"], 3.0)

    def test_tenants(self) -> None:
        rows = self.rows_of("tenants")
        if not rows:
            return
        kinds = {row["case"].rsplit("/", 1)[1] for row in rows}
        self.assertEqual(kinds, {"alone", "jobs2", "neighbours", "capped", "strangers"})
        shares = [row["share"] for row in rows if "share" in row]
        self.assertAlmostEqual(sum(shares), 1.0, places=6)
        for row in rows:
            self.assertGreater(row["ceiling_s"], 0)
        self.assertGreater(rows[0]["together_of_alone"], 0)
        self.assertGreater(rows[0]["kernel_of_alone"], 0)
        self.assertGreater(rows[-2]["p99_of_fair_share"], 0)
        self.assertGreater(rows[-1]["of_alone"], 0)

    def test_sweep(self) -> None:
        rows = self.rows_of("scale", "--sweep", "chunks")
        tried = {(row["chunk_bytes"], row["staging_bytes"]) for row in rows}
        if rows:
            self.assertIn((1 << 16, 1 << 16), tried)
            self.assertTrue(all(chunk <= staging for chunk, staging in tried))


class UsageTest(unittest.TestCase):
    def test_nonsense_is_refused(self) -> None:
        for arguments in (["exchanges"], ["exchange", "--fast"], ["exchange", "--work", "sum"],
                          ["exchange", "--workers", "0"], ["exchange", "--rounds", "-1"],
                          ["latency", "--json", "/none/x.json"], ["overlap", "--compute", "gpu"],
                          ["scale", "--sweep", "workers"], ["scale", "--measure", "core"], []):
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
