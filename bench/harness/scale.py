"""How phub scales: with core loops, with workers, and down to tiny chunks.

  cores    1 core loop up to one per core: memory traffic of summing and updating per second,
           compared with the kernels alone in as many threads
  workers  2 to 64 workers, each a process with its own engine: the same measurement, and the
           server's memory compared with the design's formula
  chunks   tiny chunks, which show the cost of a chunk apart from its arithmetic: rounds of a chunk
           per second and core loop, and the core loop's CPU time per chunk
  cost     instructions of the core loop per chunk, by stage, counted by valgrind

With --sweep chunks, the bench times every pair of chunk size and staging window instead.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from . import chunk_sweep, instructions, machine
from .block import Block, run_block
from .ceilings import KernelFloor, Loopback
from .comparison import TRANSPORTS, server_formula_bytes
from .context import Context, listed, positive
from .daemon import Daemon
from .results import Result, aligned, seconds_text, summarized
from .systems import Phub
from .workload import Workload, model

SUMMARY = "measure scaling: core loops, workers, tiny chunks, cost of a chunk, chunk sizes"
MEASURES = ("cores", "workers", "chunks", "cost")
WORKERS = (2, 4, 8, 16, 32, 64)
TINY_CHUNKS = (256, 1024, 4096, 16384, 65536)
COST_CHUNKS = (256, 65536)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measure", type=listed(MEASURES), default=list(MEASURES),
                        metavar="NAMES",
                        help=f"measurements to run (default {','.join(MEASURES)})")
    parser.add_argument("--sweep", choices=("chunks",),
                        help="only time pairs of chunk size and staging window")
    chunk_sweep.add_options(parser)
    parser.add_argument("--model", default="resnet50", metavar="NAME",
                        help="model for the cores measurement and the sweep (default resnet50)")
    parser.add_argument("--workers", type=positive, default=4, metavar="COUNT",
                        help="number of workers, except in the workers measurement (default 4)")
    parser.add_argument("--transport", type=listed(TRANSPORTS), default=list(TRANSPORTS),
                        metavar="NAMES", help="transports to measure (default shm,tcp)")
    parser.add_argument("--memory", type=listed(("library", "user")), metavar="KINDS",
                        help="gradient memory in the sweep: library (phub's buffers) or user "
                             "(default library,user over shm, library over tcp)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="blocks of each setting (default 3)")
    parser.add_argument("--exchanges", type=positive,
                        help="timed exchanges in a block (default: depends on the measurement)")


def powers_to(count: int) -> list[int]:
    """1, 2, 4, ..., and count."""
    powers = [1 << bit for bit in range(count.bit_length()) if 1 << bit <= count]
    return powers if powers[-1] == count else [*powers, count]


def memory_traffic_bytes(workload: Workload) -> int:
    """The memory traffic of an update in f32: every gradient is read, and parameters and momentum
    are read and written."""
    return (workload.workers + 4) * workload.bytes


def gigabytes_text(workload: Workload, seconds: float) -> str:
    return f"{memory_traffic_bytes(workload) / seconds * 1e-9:.1f} GB/s"


def sized(context: Context, workload: Workload, exchanges: int) -> Workload:
    return workload.with_exchanges(context.options.exchanges or (3 if context.smoke else exchanges))


def rounds(context: Context) -> int:
    return 1 if context.smoke else int(context.options.rounds)


def median_s(blocks: Sequence[Block]) -> float:
    return statistics.median(time_s for block in blocks for time_s in block.times_s)


def over_loopback(loopback: Loopback, workload: Workload, kernel_s: float) -> float | None:
    """iperf3's time for the bytes of an exchange, plus the kernels' time."""
    if loopback.missing():
        return None
    loopback.sample(workload.workers)
    moved = 2 * workload.workers * workload.bytes
    return moved / loopback.bytes_per_s(workload.workers) + kernel_s


def measure_cores(context: Context) -> Iterator[Result]:
    options = context.options
    workload = sized(context, Workload(model("1MiB" if context.smoke else options.model),
                                       2 if context.smoke else options.workers), 12)
    counts = powers_to(machine.core_count())
    phub_blocks: dict[int, list[Block]] = {count: [] for count in counts}
    floor_blocks: dict[int, list[Block]] = {count: [] for count in counts}
    with ExitStack() as stack:
        daemons = {count: stack.enter_context(
            Daemon(context.build, context.scratch, f"phubd-{count}", ["--cores", str(count)]))
            for count in counts}
        for _ in range(rounds(context)):
            for count in counts:
                context.progress(f"{count} core loops")
                phub_blocks[count].append(run_block(
                    Phub(context.build, [daemons[count]], "shm", "library"), workload,
                    context.scratch))
                floor_blocks[count].append(run_block(
                    KernelFloor(context.build, count), workload, context.scratch))
        context.progress_done()
        formulas = {count: server_formula_bytes(workload, daemons[count]) for count in counts}
    case = workload.case("scale", "shm")
    cells = [["core loops", "exchange", "traffic", "kernels alone", "of kernels", "to 1 loop",
              "CPU", "server memory", "to formula"]]
    for count in counts:
        blocks = phub_blocks[count]
        floor_s = median_s(floor_blocks[count])
        row = summarized(case, f"phub-cores-{count}", blocks, floor_s)
        used = max(block.daemon_bytes for block in blocks)
        row.more |= {"notes": blocks[0].notes, "core_loops": count, "server_bytes": used,
                     "server_formula_bytes": formulas[count],
                     "traffic_bytes_per_s": memory_traffic_bytes(workload) / row.median_s}
        cells.append([str(count), seconds_text(row.median_s),
                      gigabytes_text(workload, row.median_s), gigabytes_text(workload, floor_s),
                      f"{100 * floor_s / row.median_s:.0f} %",
                      f"{median_s(phub_blocks[1]) / row.median_s:.2f}x", seconds_text(row.cpu_s),
                      f"{used / (1 << 20):.1f} MiB", f"{used / formulas[count]:.2f}x"])
        yield row
    context.say(f"\n{case}, core loops: the ceiling is the kernels alone in as many threads")
    context.say(aligned(cells))


def measure_workers(context: Context) -> Iterator[Result]:
    counts = (2, 4) if context.smoke else WORKERS
    size = "64KiB" if context.smoke else "8MiB"
    with Daemon(context.build, context.scratch, "phubd-workers") as daemon:
        floor = KernelFloor(context.build, daemon.core_loops)
        loopback = Loopback(context.scratch)
        for transport in context.options.transport:
            over_tcp = transport == "tcp"
            if over_tcp and loopback.missing():
                context.say(f"# no ceiling over tcp: {loopback.missing()}")
            blocks: dict[int, list[Block]] = {count: [] for count in counts}
            floors: dict[int, list[Block]] = {count: [] for count in counts}
            loads = {count: sized(context, Workload(model(size), count), max(4, 160 // count))
                     for count in counts}
            for _ in range(rounds(context)):
                for count in counts:
                    context.progress(f"{transport}: {count} workers")
                    blocks[count].append(run_block(
                        Phub(context.build, [daemon], transport, "library"), loads[count],
                        context.scratch))
                    floors[count].append(run_block(floor, loads[count], context.scratch))
            ceilings: dict[int, float | None] = {
                count: median_s(floors[count]) for count in counts}
            if over_tcp:
                ceilings = {count: over_loopback(loopback, loads[count], median_s(floors[count]))
                            for count in counts}
            context.progress_done()
            cells = [["workers", "exchange", "per worker", "traffic", "ceiling", "ceiling/time",
                      "CPU", "server memory", "to formula"]]
            for count, load in loads.items():
                limit_s = ceilings[count]
                row = summarized(load.case("scale", transport), "phub", blocks[count], limit_s)
                used = max(block.daemon_bytes for block in blocks[count])
                formula = server_formula_bytes(load, daemon)
                row.more |= {"notes": blocks[count][0].notes, "server_bytes": used,
                             "server_formula_bytes": formula}
                cells.append([str(count), seconds_text(row.median_s),
                              seconds_text(row.median_s / count),
                              gigabytes_text(load, row.median_s),
                              seconds_text(limit_s) if limit_s else "-",
                              f"{100 * limit_s / row.median_s:.0f} %" if limit_s else "-",
                              seconds_text(row.cpu_s), f"{used / (1 << 20):.1f} MiB",
                              f"{used / formula:.2f}x"])
                yield row
            context.say(f"\nscale/{transport}/{size}: workers, each a process; "
                        f"{daemon.description()}; the ceiling is the kernels alone"
                        f"{', plus iperf3 with as many streams' if over_tcp else ''}")
            context.say(aligned(cells))


def measure_chunks(context: Context) -> Iterator[Result]:
    size = 1 << (16 if context.smoke else 20)
    tiny = TINY_CHUNKS[::2] if context.smoke else TINY_CHUNKS
    workers = 2 if context.smoke else context.options.workers
    with Daemon(context.build, context.scratch, "phubd-chunks", ["--cores", "1"]) as daemon:
        for transport in context.options.transport:
            blocks: dict[int, list[Block]] = {chunk: [] for chunk in tiny}
            loads = {chunk: sized(context, Workload(model(str(size)), workers),
                                  40 if chunk < 4096 else 200) for chunk in tiny}
            for _ in range(rounds(context)):
                for chunk in tiny:
                    context.progress(f"{transport}: chunks of {chunk}")
                    system = Phub(context.build, [daemon], transport, "library",
                                  ["--chunk-bytes", str(chunk)])
                    blocks[chunk].append(run_block(system, loads[chunk], context.scratch))
            context.progress_done()
            cells = [["chunk bytes", "exchange", "chunks/s", "messages/s", "loop CPU",
                      "CPU ns per chunk", "CPU ns per message", "chunks/s per full core"]]
            for chunk, load in loads.items():
                row = summarized(load.case("scale", transport), f"phub-chunk-{chunk}",
                                 blocks[chunk], None)
                count = size // chunk
                messages = 2 * workers  # a chunk's gradients and replies
                daemon_s = statistics.median(
                    block.files[0]["daemons_cpu_s"] / len(block.times_s)
                    for block in blocks[chunk])
                row.more |= {"notes": blocks[chunk][0].notes, "chunk_bytes": chunk,
                             "chunks_per_s": count / row.median_s,
                             "loop_ns_per_chunk": daemon_s / count * 1e9,
                             "loop_busy": daemon_s / row.median_s}
                cells.append([str(chunk), seconds_text(row.median_s),
                              f"{count / row.median_s:,.0f}",
                              f"{messages * count / row.median_s:,.0f}",
                              f"{100 * daemon_s / row.median_s:.0f} %",
                              f"{daemon_s / count * 1e9:,.0f}",
                              f"{daemon_s / count / messages * 1e9:,.0f}",
                              f"{count / daemon_s:,.0f}"])
                yield row
            context.say(f"\nscale/{transport}/{size}: chunks of {workers} workers, 1 core loop")
            context.say(aligned(cells))


def measure_cost(context: Context) -> Iterator[Result]:
    if instructions.missing():
        context.say(f"\ncost in instructions is left out: {instructions.missing()}")
        return
    workers = 2 if context.smoke else context.options.workers
    stages = (*instructions.STAGES, instructions.OTHERS)
    cells = [["transport, chunk bytes", "instructions", *stages]]
    for transport in context.options.transport[:1] if context.smoke else context.options.transport:
        for chunk in COST_CHUNKS[:1] if context.smoke else COST_CHUNKS:
            size = chunk * (64 if context.smoke else 256)
            workload = Workload(model(str(size)), workers, exchanges=3 if context.smoke else 20)
            context.progress(f"{transport}: instructions for chunks of {chunk}")
            counted = instructions.count(context, transport, workload,
                                         ["--chunk-bytes", str(chunk)])
            total = sum(counted.values())
            cells.append([f"{transport}, {chunk}", f"{total:,.0f}",
                          *(f"{counted[stage]:,.0f} ({100 * counted[stage] / total:.0f} %)"
                            for stage in stages)])
            yield Result(workload.case("scale", transport), f"phub-cost-{chunk}", 0.0, 0.0, 0.0,
                         0.0, None, workload.exchanges,
                         {"chunk_bytes": chunk, "instructions_per_chunk": counted})
    context.progress_done()
    context.say(f"\nuser-space instructions of the core loop per round of a chunk, {workers} "
                "workers")
    context.say(aligned(cells))


def run_sweep(context: Context) -> Iterator[Result]:
    options = context.options
    workload = sized(context, Workload(model("256KiB" if context.smoke else options.model),
                                       2 if context.smoke else options.workers), 6)
    with Daemon(context.build, context.scratch) as daemon:
        context.say(f"# phubd: {daemon.description()}")
        for transport in options.transport:
            for memory in options.memory or ["library", "user"][:2 if transport == "shm" else 1]:
                yield from chunk_sweep.sweep(context, daemon, transport, memory, workload,
                                             rounds(context))


def run(context: Context) -> list[Result]:
    if context.options.sweep:
        return list(run_sweep(context))
    measures = {"cores": measure_cores, "workers": measure_workers, "chunks": measure_chunks,
                "cost": measure_cost}
    return [row for name in context.options.measure for row in measures[name](context)]
