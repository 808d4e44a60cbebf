"""What bench/run torch prints and writes of each system."""

import unittest
from unittest import mock

from harness import torch
from harness.block import Block
from harness.memory import Peaks

MIB = 1 << 20


def peaks(*ranks: int, daemon: int = 0) -> Peaks:
    """Of ranks that wrote these MiB, with parameters of 10 MiB."""
    return Peaks.of([{"parameters": 10 * MIB / 4, "rank_bytes": rank * MIB,
                      "daemon_bytes": daemon * MIB, "step_s": 1.0} for rank in ranks])


class RowsTest(unittest.TestCase):
    def rows(self, memory: dict[str, Peaks]) -> tuple[list[str], dict[str, dict[str, object]]]:
        systems = ("alone", "gloo", "daemon")
        blocks = {name: [Block([1.0 + index / 10], 0.5, 0.5)] * 3
                  for index, name in enumerate(systems)}
        lines: list[str] = []
        context = mock.Mock(say=lines.append)
        trained = torch.Trained(blocks, {name: (2.0, 1.0) for name in systems}, memory)
        results = torch.report(context, "mlp", trained)
        return lines, {each.system: each.to_json() for each in results}

    def test_memory_is_next_to_time_cpu_and_loss(self) -> None:
        lines, rows = self.rows({"alone": peaks(40, 40), "gloo": peaks(45, 50),
                                 "daemon": peaks(28, 27, daemon=34)})
        self.assertEqual(lines[0], "mlp: a step without exchange 1 s, memory of a worker "
                                   "40 MiB (4.00 D)")
        for line, words in ((lines[1], ["gloo", "1.1 s a step", "CPU 500 ms", "loss 2.00000",
                                        "1.00000 in the last", "50 MiB (5.00 D)"]),
                            (lines[2], ["daemon", "28 MiB (2.80 D), of phubd    34 MiB (3.40 D)"])):
            for word in words:
                self.assertIn(word, line)
        self.assertNotIn("phubd", lines[1])
        self.assertEqual((rows["gloo"]["rank_bytes"], rows["gloo"]["all_bytes"]),
                         (50 * MIB, 95 * MIB))
        self.assertEqual((rows["daemon"]["daemon_bytes"], rows["daemon"]["all_bytes"]),
                         (34 * MIB, 89 * MIB))

    def test_memory_that_was_not_measured_is_left_out(self) -> None:
        lines, rows = self.rows({})
        self.assertNotIn("memory", "".join(lines))
        self.assertNotIn("rank_bytes", rows["gloo"])


if __name__ == "__main__":
    unittest.main()
