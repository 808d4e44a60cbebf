"""Results: statistics, the JSON file, and the printed table."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import machine
from .block import Block


# Below this size, fixed costs per job and lane dominate a daemon's memory.
MEMORY_WORTH_TELLING_BYTES = 64 << 20
# If other processes and interrupts take more than this share of the CPU, a note is printed.
OTHERS_SHARE_MAX = 0.15
# The tick of /proc/stat, and the number of ticks below which a block's figure is too coarse.
CPU_TICK_S = 0.01
CPU_TICKS_MIN = 20


@dataclass
class Result:
    """One row of the results: one system in one case. Times are seconds per exchange."""

    case: str
    system: str
    median_s: float
    min_s: float
    mad_s: float
    cpu_s: float  # per exchange: the machine's CPU time from /proc/stat, or, if that is too coarse,
                  # the sum over the system's processes
    ceiling_s: float | None  # the time that the machine itself needs for this work
    runs: int
    more: dict[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        own = {name: value for name, value in vars(self).items() if name != "more"}
        return own | self.more


def median_absolute_deviation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` % of all values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def summarized(case: str, system: str, blocks: Sequence[Block],
               ceiling_s: float | None) -> Result:
    times_s = [time_s for block in blocks for time_s in block.times_s]
    machine_s = statistics.median(block.machine_cpu_s for block in blocks)
    process_s = statistics.median(block.process_cpu_s for block in blocks)
    # With too few ticks the machine's figure is too coarse.
    by_machine = machine_s * len(blocks[0].times_s) >= CPU_TICKS_MIN * CPU_TICK_S
    result = Result(case, system, statistics.median(times_s), min(times_s),
                    median_absolute_deviation(times_s), machine_s if by_machine else process_s,
                    ceiling_s, len(times_s))
    result.more |= {"p99_s": percentile(times_s, 99), "process_cpu_s": process_s,
                    "cpu_of_whom": "machine" if by_machine else "processes"}
    return result


def add_ratios(results: Sequence[Result]) -> None:
    """Adds to each of phub's results in a case: each peer's time over phub's time, and phub's CPU
    time over each peer's."""
    peers = [result for result in results if not result.system.startswith("phub")]
    for result in results:
        if result.system.startswith("phub"):
            result.more["times_faster_than"] = {
                peer.system: round(peer.median_s / result.median_s, 3) for peer in peers}
            result.more["cpu_of"] = {
                peer.system: round(result.cpu_s / peer.cpu_s, 3)
                for peer in peers if peer.cpu_s > 0}


def verdicts(results: Sequence[Result]) -> list[str]:
    """One case in words: phub against the best peer, the ceiling and the memory formula."""
    peers = [result for result in results if not result.system.startswith("phub")]
    lines = []
    for phub in (result for result in results if result.system.startswith("phub")):
        parts = []
        if peers:
            best = min(peers, key=lambda peer: peer.median_s)
            parts.append(f"{best.median_s / phub.median_s:.2f}x as fast as {best.system}")
            if best.cpu_s > 0:
                parts[0] += f", with {phub.cpu_s / best.cpu_s:.2f}x its CPU time"
        if phub.ceiling_s:
            parts.append(f"{phub.median_s / phub.ceiling_s:.2f}x the ceiling "
                         f"({seconds_text(phub.ceiling_s)}: {phub.more['ceiling']})")
        if kept_s := float(str(phub.more.get("kept_copy_ceiling_s", 0))):
            parts.append(f"{phub.median_s / kept_s:.2f}x {phub.more['kept_copy_ceiling']} "
                         f"({seconds_text(kept_s)})")
        used, formula = (int(str(phub.more.get(name, 0)))
                         for name in ("server_bytes", "server_formula_bytes"))
        if formula >= MEMORY_WORTH_TELLING_BYTES:
            parts.append(f"the server uses {used / (1 << 20):.1f} MiB, "
                         f"{used / formula:.2f}x the formula")
        lines.append(f"{phub.system}: " + "; ".join(parts))
    cores = machine.core_count()
    for result in results:
        others_s = result.cpu_s - float(str(result.more["process_cpu_s"]))
        if others_s > OTHERS_SHARE_MAX * cores * result.median_s:
            lines.append(f"{result.system}: {100 * others_s / (cores * result.median_s):.0f} % of "
                         "the CPU time went to interrupts and other processes; the machine was "
                         "probably not idle")
    return lines


def seconds_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        # A number that would round up to the next unit is printed in that unit.
        if seconds >= 0.9995 * scale or unit == "us":
            number = seconds / scale
            return f"{number:.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"
    raise AssertionError


def table(results: Sequence[Result], more: Sequence[tuple[str, str]] = ()) -> str:
    """The table of one case. `more`: (heading, name in Result.more) of additional columns, with
    times in seconds."""
    headings = ["system", "median", "min", "MAD", "CPU", "ceiling/median", "to phub"]
    phub_s = next((result.median_s for result in results if result.system == "phub"), None)
    headings += [heading for heading, _ in more]
    rows = [headings]
    for result in results:
        row = [result.system, seconds_text(result.median_s), seconds_text(result.min_s),
               seconds_text(result.mad_s), seconds_text(result.cpu_s),
               f"{100 * result.ceiling_s / result.median_s:.0f} %" if result.ceiling_s else "-",
               f"{result.median_s / phub_s:.2f}x" if phub_s else "-"]
        row += [seconds_text(float(str(result.more[name]))) if name in result.more else "-"
                for _, name in more]
        rows.append(row)
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Formats a table with headings. The first column is left-aligned, the others right-aligned.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                         for column, (cell, width) in enumerate(zip(row, widths)))
        for row in rows)


def write_json(path: Path, results: Sequence[Result], described: dict[str, str]) -> None:
    objects = [result.to_json() | {"machine": described} for result in results]
    path.write_text(json.dumps(objects, indent=1) + "\n")
