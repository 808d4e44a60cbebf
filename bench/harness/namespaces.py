"""Networks on this host: a namespace per node, each behind a link of a given rate.

Without racks, one bridge joins all nodes. With racks, a bridge joins the nodes of each rack, and
another bridge joins the racks, each behind an uplink of a given rate.

The links of some nodes may lead through one more namespace, the box, whose interfaces forward
nothing until a bench-lossy-box runs there (lossy_box.py). Packets there are those of a wire:
senders cut joined segments and datagrams.

The addresses exist only inside the namespaces. The namespaces are deleted when the `with` block
ends, also after an exception. The next run deletes the namespaces of a run that was killed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .failure import BenchFailure

PREFIX = "phub-bench"
INTERFACE = "eth0"
SUBNET = "10.97.53"
NODES_MAX = 250
# The burst that a link may send after it was idle. A packet has up to 64 KiB before segmentation.
# With a burst much smaller than 512 KiB the link does not reach its rate on a busy host.
BURST_BYTES = 512 << 10
QUEUE_BYTES = 2_500_000
# Per frame: TCP's payload (with timestamps), and the bytes that the shaper counts.
PAYLOAD_BYTES = 1448
FRAME_BYTES = 1514


@dataclass(frozen=True)
class Node:
    name: str
    rate_bits_per_s: float  # each way
    width: float = 1        # its burst and queue, in multiples of a worker's
    rack: int | None = 0    # its rack, if racks have uplinks; None: at the bridge of all racks


# ethtool -K INTERFACE gro on|off, without the tool: ETHTOOL_SGRO in SIOCETHTOOL's struct ifreq.
SET_GRO = """
import array, fcntl, socket, struct, sys
value = array.array("I", [0x2c, int(sys.argv[2])])
request = struct.pack("16sP16x", sys.argv[1].encode(), value.buffer_info()[0])
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)
"""


def missing() -> str:
    """Empty, or the reason why this host cannot have such networks."""
    if os.geteuid() != 0:
        return "network namespaces need root: run this bench as root or with sudo"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"'{tool}' is not installed (package iproute2)"
    return ""


def run(*command: str) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BenchFailure(f"{' '.join(command)}: {answer.stderr.strip() or answer.returncode}")


def set_gro(interface: str, on: bool) -> list[str]:
    """A command that has the interface join packets that it receives, or not."""
    return [sys.executable, "-c", SET_GRO, interface, str(int(on))]


def remove_left_over() -> None:
    """Deletes the namespaces of runs that no longer exist."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for found in re.finditer(rf"^{PREFIX}-([0-9]+)-\S+", names.stdout, re.MULTILINE):
        if not Path(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "delete", found[0]], capture_output=True, check=False)


class Network:
    """The nodes of a network, and the prefix of commands that run on them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        if len(nodes) > NODES_MAX:
            raise BenchFailure(f"{len(nodes)} nodes do not fit into one network "
                               f"(maximum {NODES_MAX})")
        self._nodes = {node.name: number for number, node in enumerate(nodes)}

    def address(self, node: str) -> str:
        return f"{SUBNET}.{self._nodes[node] + 1}"

    def prefix(self, node: str) -> list[str]:
        return ["ip", "netns", "exec", namespace(node)]

    def box_link(self, node: str) -> str:
        """The interfaces of the node's link in the box: the node's side, then the bridge's."""
        return f"in{self._nodes[node]}:out{self._nodes[node]}"

    def uplink_bytes(self, rack: int) -> int:
        """The kernel's byte count of a rack's uplink so far, both ways, headers included."""
        return sum(self._moved(f"up{rack}"))

    def node_bytes(self, node: str) -> tuple[int, int]:
        """The kernel's byte counts of the node's link so far: received and sent by the node, with
        headers. A packet that is not segmented yet counts with one header."""
        sent, received = self._moved(f"port{self._nodes[node]}")
        return received, sent

    def shaped_bytes(self, node: str) -> tuple[int, int]:
        """The byte counts of the node's shapers so far: to the node and from it. A packet counts
        as it would on a wire, with the headers of each segment or datagram that it has."""
        return (shaper_bytes(namespace("bridge"), f"port{self._nodes[node]}"),
                shaper_bytes(namespace(node), INTERFACE))

    def receive_redirected(self, node: str) -> None:
        """The node's side of the bridge receives what a program in the node redirects. veth drops
        such packets unless GRO is on."""
        run(*self.prefix("bridge"), *set_gro(f"port{self._nodes[node]}", True))

    def _moved(self, interface: str) -> tuple[int, int]:
        """Bytes that have come in and gone out at an interface of the bridges."""
        answer = subprocess.run(
            ["ip", "-n", namespace("bridge"), "-json", "-statistics", "link", "show", interface],
            capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise BenchFailure(f"cannot read the counters of {interface}: {answer.stderr}")
        counters = json.loads(answer.stdout)[0]["stats64"]
        return int(counters["rx"]["bytes"]), int(counters["tx"]["bytes"])


def namespace(node: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{node}"


def shape(in_namespace: str, interface: str, rate_bits_per_s: float, width: float = 1) -> None:
    width = max(1.0, width)
    run("tc", "-netns", in_namespace, "qdisc", "add", "dev", interface, "root", "tbf",
        "rate", f"{rate_bits_per_s:.0f}bit", "burst", f"{BURST_BYTES * width:.0f}",
        "limit", f"{QUEUE_BYTES * width:.0f}")


def shaper_bytes(in_namespace: str, interface: str) -> int:
    answer = subprocess.run(["tc", "-netns", in_namespace, "-statistics", "-json", "qdisc", "show",
                             "dev", interface], capture_output=True, text=True, check=False)
    try:
        return sum(int(queue["bytes"]) for queue in json.loads(answer.stdout)
                   if queue["kind"] == "tbf")
    except (ValueError, KeyError) as error:
        raise BenchFailure(f"cannot read the counters of {interface}: {answer.stderr}") from error


def add_link(own: str, number: int, bridge: str, box: str) -> None:
    """Adds a node's link to the bridge's namespace; through the box unless that is empty."""
    port = f"port{number}"
    if not box:
        run("ip", "link", "add", INTERFACE, "netns", own, "type", "veth", "peer", "name", port,
            "netns", bridge)
        return
    for place, interface, inner in ((own, INTERFACE, f"in{number}"),
                                    (bridge, port, f"out{number}")):
        run("ip", "link", "add", interface, "netns", place, "gso_max_segs", "1", "type", "veth",
            "peer", "name", inner, "netns", box)
        run("ip", "-n", box, "link", "set", inner, "up")


def add_bridges(bridge: str, uplinks: Sequence[float]) -> None:
    """Adds bridge0, which joins all nodes or all racks, and a bridge rackR for each rack. The pair
    upR and downR is the uplink between rackR and bridge0."""
    for name in ["bridge0", *(f"rack{rack}" for rack in range(len(uplinks)))]:
        run("ip", "-n", bridge, "link", "add", name, "type", "bridge")
        run("ip", "-n", bridge, "link", "set", name, "up")
    for rack, rate_bits_per_s in enumerate(uplinks):
        up, down = f"up{rack}", f"down{rack}"
        run("ip", "-n", bridge, "link", "add", up, "type", "veth", "peer", "name", down)
        run("ip", "-n", bridge, "link", "set", up, "master", f"rack{rack}", "up")
        run("ip", "-n", bridge, "link", "set", down, "master", "bridge0", "up")
        shape(bridge, up, rate_bits_per_s)
        shape(bridge, down, rate_bits_per_s)


def remove(names: Sequence[str]) -> None:
    """Deletes all of them, even if one deletion fails or Ctrl-C is pressed meanwhile."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


@contextlib.contextmanager
def network(nodes: Sequence[Node], uplinks: Sequence[float] = (),
            boxed: Sequence[str] = ()) -> Iterator[Network]:
    """uplinks: the rate of each rack's uplink in bits per second, each way. Empty: no racks. boxed:
    the nodes whose links lead through the box."""
    remove_left_over()
    made = Network(nodes)
    bridge, box = namespace("bridge"), namespace("box") if boxed else ""
    try:
        for name in filter(None, (bridge, box)):
            run("ip", "netns", "add", name)
        add_bridges(bridge, uplinks)
        for number, node in enumerate(nodes):
            own, port = namespace(node.name), f"port{number}"
            run("ip", "netns", "add", own)
            add_link(own, number, bridge, box if node.name in boxed else "")
            run("ip", "-n", own, "address", "add", f"{made.address(node.name)}/24",
                "dev", INTERFACE)
            in_rack = uplinks and node.rack is not None
            switch = f"rack{node.rack}" if in_rack else "bridge0"
            run("ip", "-n", bridge, "link", "set", port, "master", switch, "up")
            run("ip", "-n", own, "link", "set", "lo", "up")
            run("ip", "-n", own, "link", "set", INTERFACE, "up")
            shape(own, INTERFACE, node.rate_bits_per_s, node.width)
            shape(bridge, port, node.rate_bits_per_s, node.width)
        yield made
    finally:
        remove([*(namespace(node.name) for node in nodes), bridge, *filter(None, (box,))])
