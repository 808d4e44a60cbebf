"""A job while somebody attacks the control port of its daemon.

The daemon has TLS and tenants. The kinds of attack are described in harness/attackers.py; those
of ANONYMOUS need no identity, in the others another tenant stays within its quota. Each block of
the job is timed three times: alone; while the attacker works against another server on this host
(a TLS server that drops everything, or a second phubd if the attack needs an identity); and while
it works against the job's own daemon. On a host where the attacker competes with the job for
processors, the second is the fair comparison.

Meanwhile honest newcomers connect once a second; the longest time that one needed is shown, and
how much memory the daemon and its front gained beyond what the tenants are charged for.
"""

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import results
from .attackers import ANONYMOUS, WITH_IDENTITY
from .block import Block, run_block
from .ceilings import KernelFloor
from .context import Context, listed, positive
from .daemon import Daemon
from .failure import BenchFailure
from .processes import Command, clean_environment, started_and_ready, tail
from .results import Result
from .systems import Phub
from .workload import ROOT, Workload, model, size_text

SUMMARY = "measure a job while strangers or another tenant attack the daemon's control port"
KINDS = (*ANONYMOUS, *WITH_IDENTITY)
SMOKE_KINDS = ("unfinished", "memory")
BLOCK_SECONDS = 2.0
COMES_SECONDS_MAX = 60.0
NEWCOMER_SECONDS = 1.0
SAMPLE_SECONDS = 0.1
ATTACKER, VICTIM = "greedy", "quiet"  # names of tenants


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="16MiB", metavar="SIZE",
                        help="size of the job's tensor, or a model (default 16MiB)")
    parser.add_argument("--workers", type=positive, default=2, metavar="COUNT",
                        help="workers of the job (default 2)")
    parser.add_argument("--transport", choices=("shm", "tcp"), default="shm",
                        help="transport of the job (default shm)")
    parser.add_argument("--kinds", type=listed(KINDS), default=list(KINDS), metavar="KIND,...",
                        help=f"kinds of attack (default {','.join(KINDS)})")
    parser.add_argument("--rounds", type=positive, default=5, metavar="COUNT",
                        help="blocks of each kind and each target, interleaved (default 5)")


class TenantsDaemon(Daemon):
    """A phubd with TLS and identities."""

    def __init__(self, context: Context, name: str) -> None:
        self.folder = context.scratch / name
        self.folder.mkdir()
        self.phubctl = context.build.phubctl
        self.pki = self.folder / "pki"
        self._run(["pki", "init", str(self.pki), "--trust-domain", "bench.test"])
        self._run(["pki", "issue", str(self.pki), "server", "node", "--host", "127.0.0.1"])
        super().__init__(context.build, self.folder, arguments=[
            "--cores", "1", "--state-dir", str(self.folder / "state"),
            "--control-socket", str(self.folder / "control.sock"),
            "--tls-certificate", str(self.pki / "server-node.crt"),
            "--tls-key", str(self.pki / "server-node.key"),
            "--tls-client-ca", str(self.pki / "ca.crt"), "--trust-domain", "bench.test"])

    def _run(self, arguments: Sequence[str]) -> str:
        answer = subprocess.run([self.phubctl, *arguments], capture_output=True, text=True,
                                check=False, env=clean_environment())
        if answer.returncode != 0:
            raise BenchFailure(f"phubctl {' '.join(arguments)} failed: {answer.stderr}")
        return answer.stdout

    def ask(self, phubctl: Path, arguments: Sequence[str]) -> str:
        del phubctl
        return self._run(["-e", f"unix:{self.folder}/control.sock", *arguments])

    def admit(self, tenant: str) -> dict[str, str]:
        """Creates a tenant. Returns the environment of its programs."""
        token = self.folder / f"{tenant}.token"
        self.ask(self.phubctl, ["tenant", "create", tenant])
        self.ask(self.phubctl, ["token", "issue", "--file", str(token), "--tenant", tenant])
        return {"PHUB_TOKEN_FILE": str(token), "PHUB_CA_FILE": str(self.pki / "ca.crt")}

    def bytes_with_front(self) -> int:
        """Private memory of phubd and its front."""
        total = 0
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (str(self.pid), *children):
            with contextlib.suppress(OSError):
                found = re.search(r"^RssAnon:\s+([0-9]+) kB", Path(f"/proc/{pid}/status")
                                  .read_text(), re.MULTILINE)
                total += int(found[1]) << 10 if found else 0
        return total

    def charged_bytes(self) -> int:
        """Memory that the quotas of both tenants are charged for."""
        total = 0
        for tenant in (ATTACKER, VICTIM):
            told = json.loads(self.ask(self.phubctl, ["tenant", "get", tenant, "-o", "json"]))
            total += int(told.get("usage", {}).get("memory_bytes", 0))
        return total

    def refused(self) -> int:
        """Everything that phubd counts as refused."""
        counters = json.loads(self.ask(self.phubctl, ["stats", "-o", "json"]))["counters"]
        return sum(int(each["value"]) for each in counters if "refused" in each["name"])


class VictimJobs(Phub):
    """Jobs of a tenant."""

    def __init__(self, context: Context, daemon: TenantsDaemon, environment: dict[str, str],
                 transport: str) -> None:
        super().__init__(context.build, [daemon], transport, "library")
        self._environment = environment

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        return [replace(command, environment=self._environment)
                for command in super().commands(workload, folder)]


class Watch:
    """Newcomers that connect, and the daemon's memory, during an attack."""

    def __init__(self, daemon: TenantsDaemon, environment: dict[str, str]) -> None:
        self._daemon = daemon
        self._environment = clean_environment() | environment
        self._done = threading.Event()
        self._before_bytes = daemon.bytes_with_front()
        self.gained_bytes = 0
        self.newcomer_s = 0.0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._newcomers),
                         threading.Thread(target=self._samples)]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _newcomers(self) -> None:
        while not self._done.wait(NEWCOMER_SECONDS):
            begun = time.monotonic()
            answer = subprocess.run(
                [self._daemon.phubctl, "-e", self._daemon.endpoint, "whoami"],
                capture_output=True, text=True, check=False, env=self._environment)
            self.newcomer_s = max(self.newcomer_s, time.monotonic() - begun)
            if answer.returncode != 0:
                self.failures.append(answer.stderr.strip())

    def _samples(self) -> None:
        """Compares memory with the larger of the charges before and after it was read."""
        charged = self._daemon.charged_bytes()
        while not self._done.wait(SAMPLE_SECONDS):
            gained = self._daemon.bytes_with_front() - self._before_bytes
            before, charged = charged, self._daemon.charged_bytes()
            self.gained_bytes = max(self.gained_bytes, gained - max(before, charged))


@dataclass
class Attacked:
    """What was seen of one kind of attack."""

    on_sink: list[Block] = field(default_factory=list)
    on_daemon: list[Block] = field(default_factory=list)
    gained_bytes: int = 0
    newcomer_s: float = 0.0
    refused: int = 0
    failures: list[str] = field(default_factory=list)

    def ratio(self) -> float:
        """The time under attack over the time during the same attack on another server."""
        return statistics.median(
            statistics.median(daemon.times_s) / statistics.median(sink.times_s)
            for sink, daemon in zip(self.on_sink, self.on_daemon))


class Attacks:
    def __init__(self, context: Context, daemon: TenantsDaemon, other: TenantsDaemon,
                 sink: str) -> None:
        options = context.options
        self.context, self.daemon, self.other, self.sink = context, daemon, other, sink
        self.transport = str(options.transport)
        size = "64KiB" if context.smoke else options.model
        self.workload = Workload(model(size), options.workers, warmup=5).with_exchanges(50)
        self.victim = daemon.admit(VICTIM)
        self.attacker = daemon.admit(ATTACKER)
        self.other_attacker = other.admit(ATTACKER)
        self.jobs = VictimJobs(context, daemon, self.victim, self.transport)
        self.kernel = KernelFloor(context.build, daemon.core_loops)

    def block(self) -> Block:
        return run_block(self.jobs, self.workload, self.context.scratch)

    def choose_length(self) -> None:
        seconds = 0.1 if self.context.smoke else BLOCK_SECONDS
        one_s = statistics.median(self.block().times_s)
        self.workload = self.workload.with_exchanges(max(50, round(seconds / one_s)))

    @contextlib.contextmanager
    def attack(self, kind: str, on_daemon: bool) -> Iterator[None]:
        environment = {"PYTHONPATH": f"{ROOT / 'bench'}:{ROOT / 'client' / 'python'}",
                       "PHUB_LIBRARY": str(self.context.build.folder / "client/libphub.so"),
                       "PHUB_LOG_LEVEL": "error"}
        endpoint = self.daemon.endpoint if on_daemon else self.sink
        if kind in WITH_IDENTITY:
            environment |= self.attacker if on_daemon else self.other_attacker
            environment["PHUBCTL"] = str(self.context.build.phubctl)
            endpoint = self.daemon.endpoint if on_daemon else self.other.endpoint
        command = Command([sys.executable, "-B", "-m", "harness.attackers", kind, endpoint],
                          self.context.scratch / "attacker.log", environment)
        with started_and_ready(command, "there", COMES_SECONDS_MAX):
            time.sleep(0.1 if self.context.smoke else 1.0)
            yield

    def run_kind(self, kind: str, attacked: Attacked) -> None:
        with self.attack(kind, on_daemon=False):
            attacked.on_sink.append(self.block())
        refused = self.daemon.refused()
        with Watch(self.daemon, self.victim) as watch:
            with self.attack(kind, on_daemon=True):
                attacked.on_daemon.append(self.block())
        attacked.gained_bytes = max(attacked.gained_bytes, watch.gained_bytes)
        attacked.newcomer_s = max(attacked.newcomer_s, watch.newcomer_s)
        attacked.failures += watch.failures
        attacked.refused += self.daemon.refused() - refused


@contextlib.contextmanager
def sink_of(context: Context, daemon: TenantsDaemon) -> Iterator[str]:
    """The endpoint of a TLS server that drops everything."""
    command = Command([sys.executable, "-B", "-m", "harness.sink",
                       str(daemon.pki / "server-node.crt"), str(daemon.pki / "server-node.key")],
                      context.scratch / "sink.log", {"PYTHONPATH": str(ROOT / "bench")})
    with started_and_ready(command, "port ", COMES_SECONDS_MAX):
        yield f"127.0.0.1:{tail(command.log).split()[-1]}"


def run(context: Context) -> list[Result]:
    rounds = 1 if context.smoke else context.options.rounds
    kinds = list(SMOKE_KINDS if context.smoke else context.options.kinds)
    with (TenantsDaemon(context, "attacked") as daemon, TenantsDaemon(context, "other") as other,
          sink_of(context, daemon) as sink):
        context.say(f"# phubd: {daemon.description()}")
        bench = Attacks(context, daemon, other, sink)
        bench.choose_length()
        alone: list[Block] = []
        attacked = {kind: Attacked() for kind in kinds}
        floors_s = []
        for number in range(rounds):
            alone.append(bench.block())
            floors_s += run_block(bench.kernel, bench.workload.with_exchanges(20),
                                  context.scratch).times_s
            for kind in kinds:
                context.progress(f"round {number + 1} of {rounds}: {kind}")
                bench.run_kind(kind, attacked[kind])
        context.progress_done()
    return shown(bench, alone, attacked, statistics.median(floors_s))


def shown(bench: Attacks, alone: list[Block], attacked: dict[str, Attacked],
          floor_s: float) -> list[Result]:
    case = bench.workload.case("attacks", bench.transport)
    rows = [results.summarized(f"{case}/alone", "phub", alone, floor_s)]
    for kind, seen in attacked.items():
        rows.append(results.summarized(f"{case}/{kind}", f"phub-{kind}-elsewhere", seen.on_sink,
                                       floor_s))
        row = results.summarized(f"{case}/{kind}", f"phub-{kind}", seen.on_daemon, floor_s)
        row.more |= {"of_attack_elsewhere": seen.ratio(), "gained_bytes": seen.gained_bytes,
                     "newcomer_s": seen.newcomer_s, "refused": seen.refused,
                     "newcomers_failed": len(seen.failures)}
        rows.append(row)
    say = bench.context.say
    say(f"\n{case}/...: {size_text(bench.workload.bytes)} per worker")
    say(results.table(rows, (("p99", "p99_s"),)))
    for kind, seen in attacked.items():
        say(f"  {kind}: {seen.ratio():.3f}x the time during the same attack elsewhere; memory "
            f"+{seen.gained_bytes / (1 << 20):.0f} MiB; slowest newcomer {seen.newcomer_s:.2f} s, "
            f"{len(seen.failures)} failed; {seen.refused} refusals counted")
        for failure in seen.failures[:3]:
            say(f"    {failure}")
    return rows
