"""Times every pair of chunk size and staging window over each transport.

The window is a worker's staging memory at one core loop. Gradients in shared memory do not use it,
so the sweep over shm also measures ordinary memory.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from .block import Block, run_block
from .context import Context, listed
from .daemon import Daemon
from .failure import UsageError
from .results import Result, aligned, seconds_text, summarized
from .systems import Phub, System
from .workload import UNITS, Workload

CHUNKS = ("16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "1MiB")
WINDOWS = ("256KiB", "1MiB", "4MiB")
SMOKE_CHUNKS = ("16KiB", "64KiB")
SMOKE_WINDOWS = ("64KiB", "256KiB")
# Gradients in shared memory use no window, so a single value is enough.
ANY_WINDOW = "1MiB"


def bytes_of(text: str) -> int:
    number = text.rstrip("BGKMi")
    unit = text[len(number):]
    if not number.isdecimal() or unit not in UNITS:
        raise UsageError(f"'{text}' is not a size; give bytes such as 64KiB")
    return int(number) * UNITS[unit]


@dataclass
class Setting:
    chunk: str
    window: str
    system: System
    blocks: list[Block] = field(default_factory=list)
    gradients: int = 0
    folded: int = 0  # the gradients added to an accumulator because slots ran short

    def run(self, context: Context, daemon: Daemon, workload: Workload) -> None:
        before = daemon.counters(context.build.phubctl)
        self.blocks.append(run_block(self.system, workload, context.scratch))
        after = daemon.counters(context.build.phubctl)
        self.gradients += after["phub_gradients_total"] - before["phub_gradients_total"]
        self.folded += after["phub_gradients_folded_total"] - before["phub_gradients_folded_total"]

    @property
    def name(self) -> str:
        return f"{self.system.name}-chunk-{self.chunk}-window-{self.window}"

    @property
    def median_s(self) -> float:
        return statistics.median(time_s for block in self.blocks for time_s in block.times_s)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=listed(), metavar="SIZES",
                        help="chunk sizes that --sweep chunks times "
                             f"(default {','.join(CHUNKS)})")
    parser.add_argument("--windows", type=listed(), metavar="SIZES",
                        help="staging windows that --sweep chunks times "
                             f"(default {','.join(WINDOWS)})")


def settings_of(context: Context, daemon: Daemon, transport: str, memory: str) -> list[Setting]:
    chunks, windows = (SMOKE_CHUNKS, SMOKE_WINDOWS) if context.smoke else (
        context.options.chunks or CHUNKS, context.options.windows or WINDOWS)
    if transport == "shm" and memory == "library":
        windows = (ANY_WINDOW,)
    return [Setting(chunk, window, Phub(
                context.build, [daemon], transport, memory,
                ["--chunk-bytes", str(bytes_of(chunk)), "--staging-bytes", str(bytes_of(window))]))
            for chunk in chunks for window in windows if bytes_of(chunk) <= bytes_of(window)]


def sweep(context: Context, daemon: Daemon, transport: str, memory: str, workload: Workload,
          rounds: int) -> list[Result]:
    settings = settings_of(context, daemon, transport, memory)
    for number in range(rounds):
        for setting in settings:
            context.progress(f"round {number + 1} of {rounds}: {transport} {setting.name}")
            setting.run(context, daemon, workload)
    context.progress_done()
    show(context, transport, memory, workload, settings)
    rows = []
    for setting in settings:
        row = summarized(workload.case("scale", transport), setting.name, setting.blocks, None)
        row.more |= {"notes": setting.blocks[0].notes, "chunk_bytes": bytes_of(setting.chunk),
                     "staging_bytes": bytes_of(setting.window),
                     "folded": setting.folded / setting.gradients}
        rows.append(row)
    return rows


def show(context: Context, transport: str, memory: str, workload: Workload,
         settings: Sequence[Setting]) -> None:
    context.say(f"\n{workload.case('scale', transport)}, {memory} memory: time of an exchange / "
                "its CPU time / share of gradients that were folded (* marks the fastest)")
    chunks = list(dict.fromkeys(setting.chunk for setting in settings))
    windows = list(dict.fromkeys(setting.window for setting in settings))
    cells = [["chunk \\ window", *windows]]
    best = min(settings, key=lambda setting: setting.median_s)
    for chunk in chunks:
        row = [chunk]
        for window in windows:
            found = [setting for setting in settings
                     if (setting.chunk, setting.window) == (chunk, window)]
            row.append(cell_of(found[0], best) if found else "-")
        cells.append(row)
    context.say(aligned(cells))


def cell_of(setting: Setting, best: Setting) -> str:
    cpu_s = statistics.median(block.process_cpu_s for block in setting.blocks)
    mark = "*" if setting is best else ""
    return (f"{mark}{seconds_text(setting.median_s)} / {seconds_text(cpu_s)} / "
            f"{100 * setting.folded / setting.gradients:.0f} %")
