"""Debian's etcd, without its service."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Optional

import debian_programs
from waiting import free_ports

PATIENCE_S = 60


def find_programs() -> Optional[Path]:
    """The folder of `etcd` and `etcdctl`. None: they are not installed and cannot be downloaded."""
    return debian_programs.find_programs(["etcd-server", "etcd-client"], ["etcd", "etcdctl"])


class Etcd:
    """A cluster of etcd members on this host, each with its own data folder."""

    def __init__(self, programs: Path, folder: Path, members: int = 1, tls: Optional[Path] = None,
                 ) -> None:
        self._programs, self._folder, self._tls = programs, folder, tls
        scheme = "https" if tls else "http"
        ports = free_ports(2 * members)
        self._clients = [f"{scheme}://127.0.0.1:{port}" for port in ports[:members]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        self._data = [folder / f"etcd-{i}" for i in range(members)]
        self.members: list[Optional[subprocess.Popen[bytes]]] = [None] * members

    @property
    def endpoints(self) -> str:
        return ",".join(self._clients)

    @property
    def _cluster(self) -> str:
        return ",".join(f"m{i}={peer}" for i, peer in enumerate(self._peers))

    def start(self) -> None:
        for i, member in enumerate(self.members):
            if member is None:
                self.start_member(i)
        end = time.monotonic() + PATIENCE_S
        while self.ctl("endpoint", "health", check=False).returncode != 0:
            if time.monotonic() > end:
                raise AssertionError(f"etcd does not answer; its logs are in {self._folder}")
            time.sleep(0.1)

    def start_member(self, i: int) -> None:
        arguments = [
            str(self._programs / "etcd"), "--name", f"m{i}", "--data-dir", str(self._data[i]),
            "--listen-client-urls", self._clients[i], "--advertise-client-urls", self._clients[i],
            "--listen-peer-urls", self._peers[i], "--initial-advertise-peer-urls", self._peers[i],
            "--initial-cluster", self._cluster, "--heartbeat-interval", "50",
            "--election-timeout", "500"]
        if self._tls:
            arguments += ["--cert-file", f"{self._tls}/server-etcd.crt",
                          "--key-file", f"{self._tls}/server-etcd.key",
                          "--trusted-ca-file", f"{self._tls}/ca.crt", "--client-cert-auth"]
        with (self._folder / f"etcd-{i}.log").open("ab") as log:
            self.members[i] = subprocess.Popen(arguments, stdout=log, stderr=log)

    def stop_member(self, i: int, number: int = signal.SIGKILL) -> None:
        member = self.members[i]
        assert member is not None
        member.send_signal(number)
        if number == signal.SIGKILL:
            member.wait()
            self.members[i] = None

    def stop(self) -> None:
        for i, member in enumerate(self.members):
            if member is not None:
                self.stop_member(i)

    def ctl(self, *arguments: str, check: bool = True, endpoints: str = "",
            ) -> subprocess.CompletedProcess[str]:
        options = ["--endpoints", endpoints or self.endpoints]
        if self._tls:
            options += ["--cacert", f"{self._tls}/ca.crt", "--cert", f"{self._tls}/admin-root.crt",
                        "--key", f"{self._tls}/admin-root.key"]
        return subprocess.run([self._programs / "etcdctl", *options, *arguments], check=check,
                              env={**os.environ, "ETCDCTL_API": "3"}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)

    def put(self, key: str, value: str) -> None:
        self.ctl("put", key, "--", value)

    def save(self, file: Path) -> None:
        self.ctl("snapshot", "save", str(file), endpoints=self._clients[0])

    def restore(self, file: Path) -> None:
        """Replaces everything by the backup. The members must be stopped."""
        for i, data in enumerate(self._data):
            shutil.rmtree(data)
            self.ctl("snapshot", "restore", str(file), "--name", f"m{i}", "--data-dir", str(data),
                     "--initial-cluster", self._cluster,
                     "--initial-advertise-peer-urls", self._peers[i])
