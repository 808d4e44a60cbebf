"""Hosts of a small network, for tests that follow the documents: each is a network, mount and host
name namespace of its own, with the programs of this build in /usr/local/bin and empty folders where
the packages put theirs. Needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

# What the documents call, but a namespace cannot do.
STAND_INS = {
    # The packages: settings, the user phub and a started service. tests/install tests them.
    "apt": """set -e
[[ "$1" == install ]]
install -d /etc/phub && install -m 0644 "$REPOSITORY/deploy/phubd.toml" /etc/phub/
exec systemctl restart phubd""",
    # The service phubd, as its unit starts it, without systemd's sandbox.
    "systemctl": """set -e
running() { [[ -e /run/pid ]] && kill -0 "$(cat /run/pid)" 2>/dev/null; }
case "$*" in
  "restart phubd")
    if running; then
      kill -TERM "$(cat /run/pid)"
      while running; do sleep 0.05; done
    fi
    install -d -o phub -g phub /run/phub && install -d -o phub -g phub -m 0700 /var/lib/phub
    as_phub="setpriv --reuid phub --regid phub --clear-groups"
    $as_phub phubd --config /etc/phub/phubd.toml --check-config
    begun=$(stat --format=%s /run/log 2>/dev/null || echo 0)
    setsid $as_phub phubd --config /etc/phub/phubd.toml >>/run/log 2>&1 </dev/null &
    echo $! >/run/pid
    for ((i = 0; i < 600; ++i)); do
      tail --bytes=+$((begun + 1)) /run/log | grep --quiet event=serving && exit 0
      sleep 0.1
    done
    tail -n 5 /run/log >&2
    exit 1 ;;
  "stop phubd")
    if running; then kill -TERM "$(cat /run/pid)"; fi
    while running; do sleep 0.05; done ;;
  "status phubd --no-pager") running ;;
  *) echo "systemctl: $* is not expected" >&2; exit 1 ;;
esac""",
    "sudo": """[[ "$1" == -u ]] || exit 1
exec setpriv --reuid "$2" --regid "$2" --clear-groups "${@:3}\"""",
    # Copies to the home of root there: all homes are folders of one machine.
    "scp": """set -e
target="${@: -1}"
host="${target#root@}"
cp "${@:1:$#-1}" "$HOMES/${host%:}/\"""",
}


class Host:
    """A host with root's home in `scratch`/homes/`name`. Close() ends all of its processes."""

    def __init__(self, name: str, scratch: Path, programs: list[Path]) -> None:
        self.name = name
        self.home = scratch / "homes" / name
        self.home.mkdir(parents=True)
        folder = scratch / name
        tools = folder / "tools"
        tools.mkdir(parents=True)
        for program in programs:
            shutil.copy2(program, tools)
        for tool, script in STAND_INS.items():
            (tools / tool).write_text(f"#!/usr/bin/env bash\n{script}\n")
            (tools / tool).chmod(0o755)
        layers = folder / "layers"
        layers.mkdir()
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PHUB_")},
            "HOME": str(self.home),
            "HOMES": str(self.home.parent),
            "LD_LIBRARY_PATH": "/usr/local/bin",
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        overlays = "".join(
            f"mkdir -p {layers}/o/{name}/up {layers}/o/{name}/work\n"
            f"mount -t overlay overlay -o lowerdir=/{path},upperdir={layers}/o/{name}/up,"
            f"workdir={layers}/o/{name}/work /{path}\n"
            for name, path in (("etc", "etc"), ("lib", "var/lib"))
        )
        start = f"""set -e
mount --make-rprivate /
mount -t tmpfs layers {layers}
mkdir {layers}/o
chmod 755 {layers}
{overlays}
mount --bind {tools} /usr/local/bin
mount -t tmpfs -o mode=755 run /run
hostname {name}
echo "phub:x:64777:64777::/nonexistent:/usr/sbin/nologin" >>/etc/passwd
echo "phub:x:64777:" >>/etc/group
ip link set lo up
echo ready
exec sleep infinity"""
        self._started: list[subprocess.Popen[str]] = []
        self._process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "bash", "-c", start],
            env=self._environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"host {name} cannot be made")

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, script: str) -> subprocess.Popen[str]:
        """Starts it in root's home."""
        enter = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--uts"]
        process = subprocess.Popen(
            [*enter, "bash", "-c", f"set -euo pipefail\ncd '{self.home}'\n{script}"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, script: str, timeout: float = 100) -> str:
        """Runs it in root's home. Returns what it printed; raises if it failed."""
        process = self.start(script)
        try:
            printed, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            raise AssertionError(f"{self.name}: did not end:\n{script}\n--\n{printed}") from None
        if process.returncode != 0:
            raise AssertionError(
                f"{self.name}: exit code {process.returncode}:\n{script}\n--\n{printed}"
            )
        return printed

    def log(self) -> str:
        return self.run("cat /run/log 2>/dev/null || true")

    def close(self) -> None:
        """Kills every process in its network namespace."""
        network = os.readlink(f"/proc/{self.pid}/ns/net")
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns/net") == network:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue  # it has ended
        for process in (self._process, *self._started):
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def connect(hosts: dict[str, Host], addresses: dict[str, str], prefix: int = 24) -> None:
    """Joins the hosts at a bridge, which the first one has, and names them in each /etc/hosts."""
    names = list(hosts)
    first = hosts[names[0]]
    first.run("ip link add net type bridge && ip link set net up")
    first.run(f"ip addr add {addresses[names[0]]}/{prefix} dev net")
    lines = "".join(f"{addresses[name]} {name}\\n" for name in names)
    for name in names[1:]:
        host = hosts[name]
        first.run(
            f"ip link add to-{name} type veth peer name net netns {host.pid}\n"
            f"ip link set to-{name} master net up"
        )
        host.run(f"ip addr add {addresses[name]}/{prefix} dev net && ip link set net up")
    for host in hosts.values():
        host.run(f"printf '127.0.0.1 localhost\\n{lines}' >/etc/hosts")


def wait_until(condition: object, seconds: float = 60) -> None:
    """Calls `condition` until it returns something true."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not become true in time")
        time.sleep(0.1)
