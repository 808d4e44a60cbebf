"""CPU time of an aggregator per contribution as from a wire, for the bench `aggregation`.

Frames are made one by one in the kernel and put on one end of a veth, so that the other end
receives each by itself, as a network card would (bench/wire). Without that, veth would carry joined
datagrams as one packet, and the aggregator in the process would look cheaper than behind a wire.
Everything is pinned to one CPU: the sender, in whose time the frames are received, the kernel's
thread for what is left of that, and the aggregator. The CPU time of the same with an empty program
as the receiver is subtracted. So the rest is what the aggregator costs, sums included.
"""

import contextlib
import json
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import machine, namespaces
from .aggregation_network import AGGREGATOR_PORT, AGGREGATOR_START_SECONDS_MAX
from .context import Context
from .failure import BenchFailure
from .namespaces import namespace, run
from .processes import Command, clean_environment, started_and_ready
from .results import Result, aligned, median_absolute_deviation

PROGRAM = "bench-wire"
ADDRESS, CORE_LOOP = "10.97.54.1", "10.97.54.2"
SENDER, RECEIVER = "wire", "aggregator"  # nodes
OUT, IN = "out0", "in0"                  # their interfaces
WORKERS = 4
# Other work on that CPU may keep the aggregator from receiving, so that its socket overflows.
ATTEMPTS_MAX = 4
WARMUP = 8192  # contributions: each slot is used several times
INTEGERS = (350, 256)
# A frame on a wire: 14 bytes of Ethernet, 28 of IP and UDP, 32 of ours, and 24 around it.
AROUND_BYTES = 14 + 28 + 32 + 24
WIRE_BITS_PER_S = 10e9
KERNEL_GOAL, UDP_GOAL, GSO_GOAL = 10, 0.35, 0.6


@dataclass(frozen=True)
class Variant:
    name: str
    what: str
    program: str = ""     # of bench-wire, at the receiving interface
    measured: str = ""    # the program in the kernel that has work
    joins: bool = False   # the interface joins datagrams (GRO)


EMPTY = Variant("empty", "a program that drops all", program="empty", measured="empty")
XDP = Variant("xdp", "phub-aggregator --xdp", measured="aggregate")
UDP = Variant("udp", "phub-aggregator, datagrams arrive one by one", program="pass")
GRO = Variant("udp-gro", "phub-aggregator, the interface joins datagrams", joins=True)
VARIANTS = (EMPTY, XDP, UDP, GRO)


@dataclass
class Sample:
    cpu_ns: float      # of sender, receiver and aggregator, per contribution
    program_ns: float  # of one run of the program in the kernel; 0 if not measured


@contextlib.contextmanager
def wire() -> Iterator[None]:
    namespaces.remove_left_over()
    sender, receiver = namespace(SENDER), namespace(RECEIVER)
    try:
        for name in (sender, receiver):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "link", "add", OUT, "netns", sender, "address", "04:04:04:04:04:04",
            "numrxqueues", "1", "numtxqueues", "1", "type", "veth", "peer", "name", IN, "netns",
            receiver, "address", "02:02:02:02:02:02", "numrxqueues", "1", "numtxqueues", "1")
        run("ip", "-n", receiver, "address", "add", f"{ADDRESS}/24", "dev", IN)
        run("ip", "-n", sender, "link", "set", OUT, "up")
        run("ip", "-n", receiver, "link", "set", IN, "up")
        # Nobody has the core loop's address: what arrives there is dropped as early as possible.
        run("ip", "-n", receiver, "neighbor", "add", CORE_LOOP, "lladdr", "02:00:00:00:00:99",
            "dev", IN, "nud", "permanent")
        yield
    finally:
        namespaces.remove([sender, receiver])


def prefix(node: str) -> list[str]:
    return ["ip", "netns", "exec", namespace(node)]


def pid_of_softirqs(cpu: int) -> int:
    """The kernel's thread that receives packets if the sender leaves some."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == f"ksoftirqd/{cpu}":
                return int(comm.parent.name)
    raise BenchFailure(f"there is no ksoftirqd/{cpu}")


def holds(context: Context, node: str, interface: str, program: str
          ) -> contextlib.AbstractContextManager[object]:
    """The program is attached to the interface within the `with` block."""
    command = [*prefix(node), str(context.build.program(PROGRAM)), "hold", "--interface", interface,
               "--program", program]
    return started_and_ready(Command(command, context.scratch / f"hold-{program}.log"),
                             "event=held", AGGREGATOR_START_SECONDS_MAX)


def sample(context: Context, variant: Variant, integers: int, packets: int,
           with_program: bool) -> Sample:
    """A sample in which nothing was lost."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            return attempted(context, variant, integers, packets, with_program)
        except BenchFailure:
            if attempt + 1 == ATTEMPTS_MAX:
                raise
    raise AssertionError


def attempted(context: Context, variant: Variant, integers: int, packets: int,
              with_program: bool) -> Sample:
    """`with_program`: measures the program's run time, too, which costs CPU."""
    cpu = machine.core_count() - 1
    pids = [pid_of_softirqs(cpu)]
    send = [*prefix(SENDER), str(context.build.program(PROGRAM)), "send", "--interface", OUT,
            "--count", str(integers), "--workers", str(WORKERS), "--packets", str(packets),
            "--warmup", str(min(packets, WARMUP)), "--cpu", str(cpu)]
    if with_program:
        send += ["--program", variant.measured]
    with wire(), contextlib.ExitStack() as stack:
        if variant.program:
            stack.enter_context(holds(context, RECEIVER, IN, variant.program))
        # A program turns GRO on.
        run(*prefix(RECEIVER), *namespaces.set_gro(IN, variant.joins))
        if variant is not EMPTY:
            control = context.scratch / "wire.sock"
            command = ["taskset", "--cpu-list", str(cpu), *prefix(RECEIVER),
                       str(context.build.aggregator), "--listen", f"{ADDRESS}:{AGGREGATOR_PORT}",
                       "--control", str(control)]
            if variant is XDP:
                command += ["--xdp", IN]
                stack.enter_context(holds(context, SENDER, OUT, "sink"))
            pids.append(stack.enter_context(started_and_ready(
                Command(command, context.scratch / f"wire-{variant.name}.log"), "event=serving",
                AGGREGATOR_START_SECONDS_MAX)).pid)
            send += ["--control", str(control)]
        answer = subprocess.run([*send, "--pids", ",".join(map(str, pids))], capture_output=True,
                                text=True, check=False, env=clean_environment())
    if answer.returncode != 0:
        raise BenchFailure(f"{variant.what}: {answer.stderr.strip()}")
    measured = json.loads(answer.stdout)
    total = measured["sender_ns"] + measured["others_ns"]
    return Sample(total / measured["packets"],
                  measured["program_ns"] / max(1, measured["program_runs"]))


def sizes(context: Context) -> tuple[int, ...]:
    return INTEGERS[-1:] if context.smoke else INTEGERS


def measure(context: Context) -> list[Result]:
    """Samples of all variants in turn."""
    packets = 1024 if context.smoke else context.options.packets
    rounds = 1 if context.smoke else context.options.packet_rounds
    rows = []
    for integers in sizes(context):
        taken: dict[str, list[Sample]] = {variant.name: [] for variant in VARIANTS}
        programs: dict[str, list[float]] = {EMPTY.name: [], XDP.name: []}
        for number in range(rounds):
            for variant in VARIANTS:
                context.progress(f"{integers} integers, round {number + 1} of {rounds}: "
                                 f"{variant.name}")
                taken[variant.name].append(sample(context, variant, integers, packets, False))
                if variant.measured:
                    programs[variant.name].append(
                        sample(context, variant, integers, packets, True).program_ns)
        context.progress_done()
        rows += rows_of(integers, taken, programs)
    return rows


def rows_of(integers: int, taken: dict[str, list[Sample]],
            programs: dict[str, list[float]]) -> list[Result]:
    base = statistics.median(each.cpu_ns for each in taken[EMPTY.name])
    rows = []
    for variant in VARIANTS:
        # The empty row shows what is subtracted from the others.
        less = 0.0 if variant is EMPTY else base
        times = [(each.cpu_ns - less) * 1e-9 for each in taken[variant.name]]
        row = Result(f"aggregation/wire/{integers}/w{WORKERS}", variant.name,
                     statistics.median(times), min(times), median_absolute_deviation(times),
                     statistics.median(times), None, len(times),
                     {"what": variant.what, "integers": integers, "wire_s": wire_s(integers)})
        if variant.measured:
            row.more["program_s"] = statistics.median(programs[variant.name]) * 1e-9
        rows.append(row)
    return rows


def wire_s(integers: int) -> float:
    """The time between two frames on a wire of 10 Gbit/s."""
    return (AROUND_BYTES + 4 * integers) * 8 / WIRE_BITS_PER_S


def show(context: Context, rows: list[Result]) -> None:
    for integers in sizes(context):
        of_case = {row.system: row for row in rows if row.more["integers"] == integers}
        table = [["receiver", "CPU per contribution", "min", "MAD", "program", ""]]
        for row in of_case.values():
            program = row.more.get("program_s")
            table.append([row.system, *(f"{1e6 * value:.3f} us" for value in
                                        (row.median_s, row.min_s, row.mad_s)),
                          f"{1e9 * float(str(program)):.0f} ns" if program else "-",
                          str(row.more["what"])])
        context.say(f"\ncontributions of {integers} integers as from a wire, {WORKERS} workers; "
                    "the first row is subtracted from the others")
        context.say(aligned(table))
        context.say(f"  a wire of 10 Gbit/s has one every {1e6 * wire_s(integers):.3f} us")
        xdp, empty = of_case[XDP.name], of_case[EMPTY.name]
        ratio = float(str(xdp.more["program_s"])) / float(str(empty.more["program_s"]))
        context.say(f"  the program takes {ratio:.1f}x an empty one (at most {KERNEL_GOAL} with "
                    "256 integers)")
        for variant, goal in ((UDP, UDP_GOAL), (GRO, GSO_GOAL)):
            context.say(f"  {XDP.name} takes {xdp.median_s / of_case[variant.name].median_s:.2f}x "
                        f"the CPU time of {variant.name} (at most {goal}), whose sums leave "
                        "joined (GSO)")
