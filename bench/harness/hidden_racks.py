"""Racks in groups behind uplinks. The order of the racks' names does not reveal the groups."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import namespaces
from .context import Context
from .daemon import Daemon
from .namespaces import Network, Node

PORT = 7700


@dataclass(frozen=True)
class Hidden:
    """group_of[r] is the group of rack r of the configuration."""

    group_of: tuple[int, ...]
    link_mbit: float
    uplink_mbit: float

    @property
    def name(self) -> str:
        return (f"{len(self.group_of)}-racks,{self.link_mbit:.0f}Mbit,"
                f"uplinks-{self.uplink_mbit:.0f}Mbit")

    @property
    def groups(self) -> list[list[int]]:
        return [[rack for rack, group in enumerate(self.group_of) if group == number]
                for number in range(max(self.group_of) + 1)]


def node(rack: int) -> str:
    return f"server{rack}"


@contextlib.contextmanager
def hidden_network(hidden: Hidden) -> Iterator[Network]:
    nodes = [Node(node(rack), hidden.link_mbit * 1e6, rack=group)
             for rack, group in enumerate(hidden.group_of)]
    uplinks = [hidden.uplink_mbit * 1e6] * len(hidden.groups)
    with namespaces.network(nodes, uplinks) as network:
        yield network


@contextlib.contextmanager
def daemons_of(context: Context, hidden: Hidden, network: Network,
               more: Sequence[str] = (), name: str = "phubd") -> Iterator[list[Daemon]]:
    names = [node(rack) for rack in range(len(hidden.group_of))]
    listed = ",".join(f"{network.address(each)}:{PORT}" for each in names)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(
            Daemon(context.build, context.scratch, f"{name}-{each}",
                   ["--insecure", "--racks", listed, "--cores", "1", *more],
                   network.address(each), network.prefix(each), PORT))
               for each in names]
