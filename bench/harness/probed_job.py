"""Runs a job with plan=auto across racks in unconfigured groups, and counts bytes on the uplinks.

The counts are the kernel's. Without a topology, daemons assume that all racks are on one switch.
With topology = "probe", rack 0 measures the links between the racks. Every rank runs on its
daemon's node, so that only traffic between daemons passes the links. The ranks verify every sum.
"""

import json
import subprocess
import time

from .block import run_block
from .context import Context
from .daemon import Daemon
from .failure import BenchFailure
from .hidden_racks import Hidden, daemons_of, hidden_network, node
from .namespaces import FRAME_BYTES, PAYLOAD_BYTES, Network
from .processes import clean_environment
from .systems import Phub, Place
from .workload import Workload, model

SURVEY_SECONDS_MAX = 90.0
EXCHANGES = (1, 4)  # of two blocks; their difference leaves out everything but exchanges
# The allowance for acknowledgements and control-plane traffic.
OVERHEAD_MAX = 0.25
# With an unknown topology, a job moves at least this many times the minimum.
UNKNOWN_TIMES_MIN = 1.8


def await_survey(context: Context, network: Network, daemon: Daemon) -> None:
    """Waits until rack 0 has measured a topology. Any daemon can report it."""
    command = [*network.prefix(node(0)), str(context.build.phubctl), "-e", daemon.endpoint,
               "-o", "json", "plan", "probe", "--show"]
    deadline = time.monotonic() + SURVEY_SECONDS_MAX
    while True:
        answer = subprocess.run(command, capture_output=True, text=True, check=False,
                                env=clean_environment())
        if answer.returncode == 0 and json.loads(answer.stdout)["measured_unix_ns"] != 0:
            return
        if time.monotonic() > deadline:
            raise BenchFailure("rack 0 did not measure the topology within "
                               f"{SURVEY_SECONDS_MAX:.0f} s: {answer.stdout}{answer.stderr}")
        time.sleep(0.5)


def uplink_passes(context: Context, hidden: Hidden, topology: str) -> float:
    """Bytes that one exchange moves over each uplink in each direction, in multiples of a worker's
    gradients."""
    size = "1MiB" if context.smoke else "8MiB"
    racks = range(len(hidden.group_of))
    workload = Workload(model(size), len(racks), exchanges=EXCHANGES[1], warmup=1)
    more = ["--topology", topology] if topology else []
    with (hidden_network(hidden) as network,
          daemons_of(context, hidden, network, more, f"phubd-{topology or 'unknown'}") as daemons):
        if topology:
            await_survey(context, network, daemons[-1])
        place = Place.on(network, [node(rack) for rack in racks])
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
    """Bytes over each uplink in each direction, in multiples of a worker's gradients. Fails unless
    a probed topology keeps them near the minimum."""
    # A group sends its sum of the chunks whose home is elsewhere and receives their results. For
    # the chunks whose home it is, it receives the sums and sends the results.
    groups = len(hidden.groups)
    least = 2 * (groups - 1) / groups
    context.progress(f"{hidden.name}: a job, racks unknown")
    unknown = uplink_passes(context, hidden, "")
    context.progress(f"{hidden.name}: a job, topology = \"probe\"")
    probed = uplink_passes(context, hidden, "probe")
    context.progress_done()
    if probed > least * (1 + OVERHEAD_MAX):
        raise BenchFailure(f"{hidden.name}: with topology = \"probe\" a job moves {probed:.2f}x "
                           f"its gradients over each uplink; the minimum is {least:.2f}x")
    if unknown < UNKNOWN_TIMES_MIN * least:
        raise BenchFailure(f"{hidden.name}: with an unknown topology a job moves only "
                           f"{unknown:.2f}x its gradients over each uplink, so this case cannot "
                           "show the effect of probing")
    return {"unknown": unknown, "probed": probed, "least": least}
