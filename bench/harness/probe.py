"""Hidden racks: checks that `phubctl plan probe` finds groups of racks and link rates. Needs root.

The daemons form groups, each behind its own uplink (network namespaces, tc tbf). The order of their
names does not reveal the groups. The bench fails unless the probe finds the groups, an order of
racks that keeps each group together, and the rates of links and uplinks within 15 % of the shaped
rates. It also reports how long probing took and the predicted speed-up of the proposed plan.

Daemons with topology = "probe" measure the same on their own. A job with plan=auto then moves close
to the minimum over the uplinks, by the kernel's counters. With an unknown topology it moves several
times as much (probed_job.py).
"""

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from . import namespaces, probed_job
from .context import Context, positive
from .failure import BenchFailure, NotPossibleHere
from .hidden_racks import Hidden, daemons_of, hidden_network, node
from .namespaces import FRAME_BYTES, PAYLOAD_BYTES, Network
from .processes import clean_environment
from .results import Result

SUMMARY = "find hidden racks behind shaped links with `phubctl plan probe` (needs root)"
TOLERANCE = 0.15
SMOKE_TOLERANCE = 0.5


SMOKE = Hidden((0, 1, 1, 0, 1, 0), 200, 100)
CASES = (SMOKE,
         Hidden((0, 1, 1, 0, 1, 0), 400, 100),
         Hidden((0, 1, 2, 0, 2, 1, 1, 2), 200, 100),
         Hidden((0, 1, 2, 3, 0, 1, 2, 3), 200, 50))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--duration-ms", type=positive, default=1000,
                        help="duration of one probe in ms (default 1000)")


def ask(context: Context, network: Network, endpoint: str, duration_ms: int,
        files: Sequence[str]) -> dict[str, object]:
    command = [*network.prefix(node(0)), str(context.build.phubctl), "-e", endpoint, "-o", "json",
               "plan", "probe", "--duration", f"{duration_ms}ms", *files]
    answer = subprocess.run(command, capture_output=True, text=True, check=False,
                            env=clean_environment())
    if answer.returncode != 0:
        raise BenchFailure(f"phubctl plan probe failed: {answer.stderr}")
    return dict(json.loads(answer.stdout))


def probe(context: Context, hidden: Hidden, topology: Path) -> tuple[dict[str, object], float]:
    with hidden_network(hidden) as network, daemons_of(context, hidden, network) as daemons:
        begun = time.monotonic()
        found = ask(context, network, daemons[0].endpoint, context.options.duration_ms,
                    ["--topology-out", str(topology), "--repeat", "1" if context.smoke else "2"])
        return found, time.monotonic() - begun


def wrong(hidden: Hidden, found: dict[str, object], tolerance: float) -> str:
    """Empty, or the first difference between the probe's result and the truth."""
    if found["groups"] != hidden.groups:
        return f"the probe found the groups {found['groups']} instead of {hidden.groups}"
    ranks: list[int] = found["order"]  # type: ignore[assignment]
    order = [hidden.group_of[rack] for rack in ranks]
    changes = sum(one != other for one, other in zip(order, order[1:]))
    if changes != len(hidden.groups) - 1:
        return f"the order of racks {found['order']} does not keep groups together"
    for what, mbit, shaped in rates(hidden, found):
        if abs(mbit / shaped - 1) > tolerance:
            return f"{what}: measured {mbit:.1f} Mbit/s, but shaped to {shaped:.1f} Mbit/s"
    return ""


def rates(hidden: Hidden, found: dict[str, object]) -> list[tuple[str, float, float]]:
    """Name, measured rate and shaped rate (payload only) of each link and uplink, in Mbit/s."""
    payload = PAYLOAD_BYTES / FRAME_BYTES
    measured: list[list[float]] = found["bytes_per_s"]  # type: ignore[assignment]
    between: list[list[float]] = found["between_groups_bytes_per_s"]  # type: ignore[assignment]
    known = []
    for one, row in enumerate(measured):
        for other, bytes_per_s in enumerate(row):
            if one != other and hidden.group_of[one] == hidden.group_of[other]:
                known.append((f"racks {one} to {other}", bytes_per_s * 8e-6,
                              hidden.link_mbit * payload))
    for one, row in enumerate(between):
        for other, bytes_per_s in enumerate(row):
            if one != other:
                known.append((f"groups {one} to {other}", bytes_per_s * 8e-6,
                              hidden.uplink_mbit * payload))
    return known


def run(context: Context) -> list[Result]:
    if why := namespaces.missing():
        raise NotPossibleHere(why)
    measured = []
    for number, hidden in enumerate([SMOKE] if context.smoke else CASES):
        context.progress(f"{hidden.name}: probing")
        topology = context.scratch / f"topology-{number}.json"
        found, seconds = probe(context, hidden, topology)
        context.progress_done()
        if why := wrong(hidden, found, SMOKE_TOLERANCE if context.smoke else TOLERANCE):
            raise BenchFailure(f"{hidden.name}: {why}")
        worst = max(abs(mbit / shaped - 1) for _, mbit, shaped in rates(hidden, found))
        gain = float(str(found["gain"]))
        context.say(f"{hidden.name}: found the groups {found['groups']} in {seconds:.1f} s; rates "
                    f"within {100 * worst:.1f} % of the shaped rates; the proposed plan is "
                    f"predicted to be {gain:.2f}x as fast")
        moved = probed_job.moved(context, hidden)
        context.say(f"  over each uplink, plan=auto moves {moved['unknown']:.2f}x a worker's "
                    f"gradients with an unknown topology and {moved['probed']:.2f}x with topology "
                    f"= \"probe\"; the minimum is {moved['least']:.2f}x")
        measured.append(Result(f"probe/{hidden.name}", "phub", seconds, seconds, 0.0, 0.0, None, 1,
                               {"groups": found["groups"], "order": found["order"],
                                "worst_rate_error": worst, "predicted_gain": gain,
                                "uplink_bytes_of_gradients": moved}))
    return measured
