"""Counts the core loop's instructions by stage, with valgrind's callgrind on phubd.

The count covers CoreLoop::RunOnce() and its callees in user space. It leaves out the Linux kernel
and waiting. A stage is a set of functions with all their callees, except callees that belong to
another stage.
"""

import re
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from .block import run_block
from .context import Context
from .daemon import Daemon
from .failure import BenchFailure
from .systems import Phub
from .workload import Workload

LOOP = "phub::server::CoreLoop::RunOnce()"
# Each stage's functions, by the beginning of their names. A transport sends posted messages and
# wakes sleeping peers while it is polled; that work belongs to "sending".
STAGES = {
    "polling": ("phub::transport::ShmTransport::Poll(", "phub::transport::StreamTransport::Poll(",
                "phub::transport::ShmTransport::Release(", "phub::transport::ShmTransport::Tick(",
                "phub::transport::StreamTransport::Release(",
                "phub::transport::StreamTransport::Tick("),
    "sending": ("phub::transport::RingSender::Flush(", "phub::transport::StreamTransport::Send(",
                "phub::transport::ShmConnection::RingPeer("),
    "ingest": ("phub::server::ingest::", "phub::server::reply::ReplyStage::NoteReplyAddress("),
    "aggregate": ("phub::server::aggregate::",),
    "sum": ("phub::server::optimize::ApplyRound(",),
    "reply": ("phub::server::reply::ReplyStage::",),
}
OTHERS = "core loop"


def missing() -> str:
    return "" if shutil.which("valgrind") else "valgrind is not installed"


@dataclass
class CallGraph:
    """A callgrind file: the instructions of each function itself and of the calls it makes."""

    own: Counter[str] = field(default_factory=Counter)
    calls: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def read(cls, path: Path) -> "CallGraph":
        """Reads a file written with --compress-strings=no. Lines of cost follow a line "fn=". The
        line after "calls=" has the cost of the calls to the function in the last "cfn="."""
        graph = cls()
        caller = callee = ""
        is_call = False
        for line in path.read_text().splitlines():
            name, separator, value = line.partition("=")
            if separator:
                if name == "fn":
                    caller = value
                elif name == "cfn":
                    callee = value
                elif name == "calls":
                    is_call = True
            elif re.match(r"[0-9+*-]", line):
                cost = int(line.split()[1]) if " " in line else 0
                if is_call:
                    graph.calls[caller][callee] += cost
                else:
                    graph.own[caller] += cost
                is_call = False
        return graph

    def by_stage(self) -> Counter[str]:
        """Adds every function's own instructions to the stage that called it. The instructions of
        a function that several stages call (memcpy) are divided in proportion to the calls' costs.
        """
        costs: Counter[str] = Counter()
        loops = [name for name in self.own | self.calls if self._is(name, (LOOP,))]
        if len(loops) != 1:
            raise BenchFailure("callgrind did not find CoreLoop::RunOnce(); phubd is probably "
                               "stripped of its symbols")
        inclusive = {name: self.own[name] + sum(self.calls[name].values())
                     for name in set(self.own) | set(self.calls)}
        # The weight of each function by stage, callers first. Cycles in the graph are negligible.
        weights: dict[str, Counter[str]] = defaultdict(Counter)
        weights[loops[0]][OTHERS] = 1.0
        for name in self._callers_first(loops[0]):
            for stage, weight in weights[name].items():
                costs[stage] += weight * self.own[name]
                for callee, cost in self.calls[name].items():
                    if inclusive.get(callee):
                        share = weight * cost / inclusive[callee]
                        weights[callee][self._stage(callee, stage)] += share
        return Counter({stage: round(cost) for stage, cost in costs.items()})

    def _callers_first(self, root: str) -> list[str]:
        order: list[str] = []
        seen: set[str] = set()
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            name, is_left = stack.pop()
            if is_left:
                order.append(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack += [(callee, False) for callee in self.calls[name] if callee not in seen]
        return order[::-1]

    @staticmethod
    def _is(name: str, beginnings: tuple[str, ...]) -> bool:
        return name.startswith(beginnings)

    @classmethod
    def _stage(cls, name: str, caller_stage: str) -> str:
        for stage, beginnings in STAGES.items():
            if cls._is(name, beginnings):
                return stage
        return caller_stage


def count(context: Context, transport: str, workload: Workload,
          options: list[str]) -> dict[str, float]:
    """Instructions per round of a chunk, by stage. A round has one gradient and one reply per
    worker."""
    out = context.scratch / f"callgrind-{len(list(context.scratch.glob('callgrind-*')))}"
    prefix = ["valgrind", "--tool=callgrind", f"--toggle-collect={LOOP}", "--compress-strings=no",
              "--compress-pos=no", f"--callgrind-out-file={out}"]
    # Without a front, because phubd cannot execute itself again under valgrind.
    with Daemon(context.build, context.scratch, f"phubd-{out.name}",
                ["--cores", "1", "--liveness-timeout", "120s", "--front=false"],
                prefix=prefix) as daemon:
        phub = Phub(context.build, [daemon], transport, "library", options)
        run_block(phub, workload, context.scratch)
        rounds = daemon.counters(context.build.phubctl)["phub_rounds_total"]
    if not out.is_file():
        raise BenchFailure(f"callgrind did not write {out}; phubd probably crashed (see its log; "
                           "--keep keeps it)")
    by_stage = CallGraph.read(out).by_stage()
    return {stage: by_stage[stage] / rounds for stage in (*STAGES, OTHERS)}
