"""A job with plan=auto across racks that lie in groups, of which nobody said anything: how many
bytes it moves over the uplinks between the groups, by the kernel's counters.

Racks without a topology are taken for neighbours on one switch. With topology = "probe" rack 0 has
measured what lies between them. Ranks run beside their daemons, so that only exchanges pass links;
they verify every sum.
"""

import json
import subprocess
import time

from .block import run_block
from .context import Context
from .daemon import Daemon
from .failure import BenchFailure
from .hidden_racks import Hidden, daemons_of, hidden_network, node
from .namespaces import FRAME_BYTES, INTERFACE, PAYLOAD_BYTES, Network
from .processes import clean_environment
from .systems import Phub, Place
from .workload import Workload, model

SURVEY_SECONDS_MAX = 90.0
EXCHANGES = (1, 4)  # of two blocks, whose difference tells of exchanges and nothing else
# Acknowledgements, and what the control plane says meanwhile.
BESIDE = 0.25
# What racks that are taken for neighbours move at least, by what is needed.
UNKNOWN_TIMES_MIN = 1.8


def await_survey(context: Context, network: Network, daemon: Daemon) -> None:
    """Until rack 0 has a topology; any daemon tells."""
    command = [*network.prefix(node(0)), str(context.build.phubctl), "-e", daemon.endpoint,
               "-o", "json", "plan", "probe", "--show"]
    deadline = time.monotonic() + SURVEY_SECONDS_MAX
    while True:
        answer = subprocess.run(command, capture_output=True, text=True, check=False,
                                env=clean_environment())
        if answer.returncode == 0 and json.loads(answer.stdout)["measured_unix_ns"] != 0:
            return
        if time.monotonic() > deadline:
            raise BenchFailure(f"the racks' topology is not measured: {answer.stdout}"
                               f"{answer.stderr}")
        time.sleep(0.5)


def uplink_passes(context: Context, hidden: Hidden, topology: str) -> float:
    """Of one exchange: bytes over all uplinks, of a worker's gradients, for each uplink and
    direction."""
    size = "1MiB" if context.smoke else "8MiB"
    racks = range(len(hidden.group_of))
    workload = Workload(model(size), len(racks), exchanges=EXCHANGES[1], warmup=1)
    more = ["--topology", topology] if topology else []
    with (hidden_network(hidden) as network,
          daemons_of(context, hidden, network, more, f"phubd-{topology or 'unknown'}") as daemons):
        if topology:
            await_survey(context, network, daemons[-1])
        place = Place([network.prefix(node(rack)) for rack in racks],
                      [network.address(node(rack)) for rack in racks], [INTERFACE] * len(racks))
        system = Phub(context.build, daemons, "tcp", "library", ["--plan", "auto"], place, racks)

        def counted(exchanges: int) -> int:
            groups = range(len(hidden.groups))
            before = sum(network.uplink_bytes(group) for group in groups)
            run_block(system, workload.with_exchanges(exchanges), context.scratch)
            return sum(network.uplink_bytes(group) for group in groups) - before

        short, long = (counted(exchanges) for exchanges in EXCHANGES)
    of_one = (long - short) / (EXCHANGES[1] - EXCHANGES[0])
    return of_one / (2 * len(hidden.groups) * workload.bytes * FRAME_BYTES / PAYLOAD_BYTES)


def moved(context: Context, hidden: Hidden) -> dict[str, float]:
    """Times a worker's gradients that pass each uplink in each direction. Fails unless a probed
    topology keeps that near the least."""
    # Each group's sum leaves it but for the part that is at home there, which comes back whole.
    groups = len(hidden.groups)
    least = 2 * (groups - 1) / groups
    context.progress(f"{hidden.name}: a job, racks unknown")
    unknown = uplink_passes(context, hidden, "")
    context.progress(f"{hidden.name}: a job, topology = \"probe\"")
    probed = uplink_passes(context, hidden, "probe")
    context.progress_done()
    if probed > least * (1 + BESIDE):
        raise BenchFailure(f"{hidden.name}: with topology = \"probe\" a job moves {probed:.2f}x "
                           f"its gradients over each uplink, and {least:.2f}x are needed")
    if unknown < UNKNOWN_TIMES_MIN * least:
        raise BenchFailure(f"{hidden.name}: racks that nobody knows move {unknown:.2f}x their "
                           f"gradients over each uplink; then this tells nothing of probing")
    return {"unknown": unknown, "probed": probed, "least": least}
