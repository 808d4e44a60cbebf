"""Measures sums in the network: phub with phub-aggregator, phub over tcp, Gloo's ring. Needs root.

Each worker and the daemon have a network namespace behind a link of the same rate (tc tbf), and
each aggregator one behind a link of N + 1 times that rate: as a switch would, it has as much
capacity as the links of N workers and the daemon together. Systems:
  phub-sums      a job with sum=fixed. Workers send integers to the aggregator, which sends the sums
                 to the daemon; new parameters go back through it. The daemon's link carries the
                 model once in each direction.
  phub-sums-xdp  the same with an aggregator that adds in the kernel (--xdp)
  phub-tcp       the same job without an aggregator. The daemon's link carries the model N times.
  gloo-ring      Gloo's ring, without a daemon
Each system's limit is the time that its busiest link needs for the payload and its headers. Bytes
are read before and after the timed exchanges, while the ranks pause: on the daemon's link as its
shaper counts them, and of payload by the daemon's own counters.

With --loss, the links of the workers and the daemon lead through a box (bench-lossy-box) that loses
that share of packets of each link in each direction. It counts what it sees by kind, so the payload
on the daemon's link and the contributions that are sent again are counted in the kernel.

Last, it measures CPU time per contribution as from a wire (packet_cost.py), for the aggregator in
the kernel and in the process.

Everything runs on this machine's cores, aggregator included. So the rate must be low enough that
the links are the limit. The CPU time of each system is shown, too.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import link_bytes, lossy_box, namespaces, packet_cost, picture, results
from .aggregation_network import (RING, SERVER, SUMS, SYSTEMS, XDP, Running, Shape, running,
                                  worker)
from .context import Context, counts, listed, positive
from .failure import NotPossibleHere
from .results import Result

SUMMARY = "measure sums in the network over shaped links in namespaces (needs root)"
PARTS = ("links", "loss", "packets")
# What is read before and after each block. The daemons' counters are sums over all daemons, since
# only one of them has work.
DAEMON_COUNTERS = ("sum_block_bytes", "gradient_bytes", "parameter_block_bytes", "reply_bytes",
                   "rounds", "rounds_streamed", "sum_blocks", "parameter_blocks_again")
BOX_COUNTERS = ("sum_payload", "parameter_payload", "contributions", "sums", "lost")
READ = ("link_in", "link_out", *DAEMON_COUNTERS, *BOX_COUNTERS)


def percents(text: str) -> list[float]:
    """A type for argparse: percentages separated by commas."""
    numbers = [float(word) for word in listed()(text)]
    if not all(0 <= number <= 50 for number in numbers):
        raise argparse.ArgumentTypeError("a percentage must be from 0 to 50")
    return numbers


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", type=listed(PARTS), default=list(PARTS),
                        help="links: numbers of workers, without a box; loss: percentages of lost "
                             "packets; packets: CPU time per contribution (default all)")
    parser.add_argument("--systems", type=listed(SYSTEMS), default=list(SYSTEMS),
                        help=f"systems to measure (default {','.join(SYSTEMS)})")
    parser.add_argument("--workers", type=counts(2, 64), default=[2, 4, 8],
                        help="numbers of workers (default 2,4,8)")
    parser.add_argument("--rate", type=positive, default=200, metavar="MBIT",
                        help="rate of each worker's link and of the daemon's in Mbit/s "
                             "(default 200)")
    parser.add_argument("--model", default="8MiB", metavar="NAME",
                        help="resnet50, alexnet, a CSV file of sizes, or the size of a single "
                             "tensor (default 8MiB)")
    parser.add_argument("--loss", type=percents, default=[0.0, 0.01, 0.1, 1.0], metavar="PERCENTS",
                        help="percentages of packets that each link loses in each direction "
                             "(default 0,0.01,0.1,1)")
    parser.add_argument("--loss-workers", type=counts(2, 64), default=[4], metavar="WORKERS",
                        help="numbers of workers while packets are lost (default 4)")
    parser.add_argument("--packets", type=positive, default=50000,
                        help="contributions of a sample of CPU time (default 50000)")
    parser.add_argument("--packet-rounds", type=positive, default=3,
                        help="samples of CPU time (default 3)")
    parser.add_argument("--rounds", type=positive, default=2,
                        help="blocks of each system (default 2)")
    parser.add_argument("--exchanges", type=positive, default=3,
                        help="timed exchanges in a block (default 3)")


def shapes(context: Context) -> list[Shape]:
    options = context.options
    systems = tuple(options.systems)
    losses = options.loss if "loss" in options.parts else []
    if why := lossy_box.missing(context.build):
        context.say(f"# {XDP}, loss and packets are left out: {why}")
        systems, losses = tuple(name for name in systems if name != XDP), []
    plain = options.workers if "links" in options.parts else []
    if context.smoke:
        shape = Shape(2, 1000, "4MiB", 3, systems)
        lossy = replace(shape, loss=1.0, model="1MiB", systems=(SUMS, XDP))
        return [*([shape] if plain else []), *([lossy] if losses else [])]
    shape = Shape(0, options.rate, options.model, options.exchanges, systems)
    return [*(replace(shape, workers=workers) for workers in plain),
            *(replace(shape, workers=workers, loss=loss) for workers in options.loss_workers
              for loss in losses)]


def read(context: Context, served: Running) -> list[int]:
    """The counters that READ names."""
    to_daemon, from_daemon = served.network.shaped_bytes(SERVER)
    daemons = [daemon.counters(context.build.phubctl) for daemon in served.daemons.values()]
    numbers = [to_daemon, from_daemon,
               *(sum(counters[f"phub_{name}_total"] for counters in daemons)
                 for name in DAEMON_COUNTERS)]
    if not served.box:
        return numbers + [0] * len(BOX_COUNTERS)
    links = served.box.counters()
    server = links[SERVER]
    workers = [links[worker(rank)] for rank in range(served.shape.workers)]
    return [*numbers, server["down"]["kinds"]["sum"]["payload_bytes"],
            server["up"]["kinds"]["parameters"]["payload_bytes"],
            sum(link["up"]["kinds"]["payload"]["packets"] for link in workers),
            server["down"]["kinds"]["sum"]["packets"],
            sum(link[way]["lost"] for link in links.values() for way in ("up", "down"))]


def measure(context: Context, shape: Shape) -> list[Result]:
    workload = shape.workload()
    rounds = 1 if context.smoke else context.options.rounds
    with running(context, shape) as served:
        systems = served.systems(context)
        blocks, moved = link_bytes.counted(context, shape.case(), systems, workload, rounds,
                                           lambda: read(context, served))
    rows = [results.summarized(shape.case(), system.name, blocks[system.name],
                               shape.limit_s(system.name)) for system in systems]
    for row in rows:
        row.more |= dict(zip(READ, moved[row.system]))
        row.more |= {"ceiling": "payload and headers on the busiest link",
                     "model_bytes": workload.bytes, "model_s": shape.model_s}
        if shape.loss is not None:
            row.more["loss_percent"] = shape.loss
    results.add_ratios(rows)
    return rows


def number(row: Result, name: str) -> float:
    return float(str(row.more[name]))


def bytes_text(row: Result) -> str:
    """What the daemon's link carries, in multiples of the model."""
    model = number(row, "model_bytes")
    payload_in = number(row, "sum_block_bytes") + number(row, "gradient_bytes")
    payload_out = number(row, "parameter_block_bytes") + number(row, "reply_bytes")
    text = (f"; the daemon's link carries {number(row, 'link_in') / model:.3f}x the model in and "
            f"{number(row, 'link_out') / model:.3f}x out, headers included; payload "
            f"{payload_in / model:.4f}x and {payload_out / model:.4f}x")
    if "loss_percent" in row.more and row.system in (SUMS, XDP):
        text += (f" (the box saw {number(row, 'sum_payload') / model:.4f}x and "
                 f"{number(row, 'parameter_payload') / model:.4f}x)")
    return text


def show(context: Context, shape: Shape, rows: Sequence[Result]) -> None:
    behind = f", which lose {shape.loss:g} % in each direction" if shape.is_boxed else ""
    context.say(f"\n{rows[0].case}: links of {shape.workers} workers and the daemon of "
                f"{shape.rate_mbit:.0f} Mbit/s{behind}; the aggregator's "
                f"{shape.rate_mbit * (shape.workers + 1):.0f} Mbit/s")
    context.say(results.table(rows))
    context.say(f"  D/rate, the model without headers: {results.seconds_text(shape.model_s)}")
    for row in rows:
        limit_s = row.ceiling_s or 0.0
        line = (f"  {row.system}: {row.median_s / limit_s:.3f}x its limit "
                f"({results.seconds_text(limit_s)}), {row.median_s / shape.model_s:.3f}x D/rate")
        if row.system != RING:
            line += bytes_text(row)
        if row.system in (SUMS, XDP):
            share = number(row, "rounds_streamed") / max(1.0, number(row, "rounds"))
            line += f"; the aggregator sums {100 * share:.0f} % of the chunks"
        context.say(line)


def show_losses(context: Context, measured: Sequence[tuple[Shape, list[Result]]]) -> None:
    """A line per system and percentage: times, CPU, and what is sent again. The CPU time is that of
    the system's processes, since other work of the machine would hide the ratio."""
    table = [["system", "workers", "lost", "median", "of D/rate", "process CPU", "of 0 %", "resent",
              "at most", "sums again", "parameters again"]]
    for system in SYSTEMS:
        unlost: dict[int, float] = {}
        for shape, rows in measured:
            for row in (row for row in rows if row.system == system and shape.loss is not None):
                if shape.loss == 0:
                    unlost[shape.workers] = number(row, "process_cpu_s")
                base, cpu_s = unlost.get(shape.workers), number(row, "process_cpu_s")
                line = [system, str(shape.workers), f"{shape.loss:g} %",
                        results.seconds_text(row.median_s),
                        f"{row.median_s / shape.model_s:.3f}x", results.seconds_text(cpu_s),
                        f"{cpu_s / base:.2f}x" if base else "-"]
                if system in (SUMS, XDP):
                    blocks = max(1.0, number(row, "sum_blocks"))
                    resent = number(row, "contributions") / (shape.workers * blocks) - 1
                    row.more |= {"resent": resent, "resent_goal": shape.resent_goal}
                    line += [f"{100 * resent:.2f} %", f"{100 * shape.resent_goal:.2f} %",
                             f"{100 * (number(row, 'sums') / blocks - 1):.2f} %",
                             f"{100 * number(row, 'parameter_blocks_again') / blocks:.2f} %"]
                else:
                    line += ["-"] * 4
                table.append(line)
    if len(table) > 1:
        context.say("\nlost packets: contributions sent again, at most 3 (n p_up + p_down); sums "
                    "and blocks of parameters that were asked for again")
        context.say(results.aligned(table))


def run(context: Context) -> list[Result]:
    if why := namespaces.missing():
        raise NotPossibleHere(why)
    measured = []
    for shape in shapes(context):
        rows = measure(context, shape)
        show(context, shape, rows)
        measured.append((shape, rows))
    show_losses(context, measured)
    costs = []
    if "packets" in context.options.parts and not lossy_box.missing(context.build):
        costs = packet_cost.measure(context)
        packet_cost.show(context, costs)
    return [*(row for _, rows in measured for row in rows), *costs]


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    renamed = [replace(row, system="phub") if row.system == SUMS else row for row in measured]
    picture.draw_ratios(context, renamed, path,
                        "Time of an exchange, in multiples of phub-sums' (lower is better)")
