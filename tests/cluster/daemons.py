"""Daemons whose control store is in etcd."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Optional

from waiting import wait_until

PHUBD, PHUBCTL = os.environ["PHUB_PHUBD"], os.environ["PHUB_PHUBCTL"]
PATIENCE_S = 60
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PHUB_")}


class Daemon:
    def __init__(self, folder: Path, name: str, endpoints: str, *arguments: str,
                 token_key: Optional[Path] = None, notify: str = "",
                 store: Optional[list[str]] = None, listen: str = "127.0.0.1:0",
                 socket: bool = True) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.token_key = self.folder / "token.key"
        if token_key:
            shutil.copy(token_key, self.token_key)
        self._arguments = [
            PHUBD, "--listen", listen, "--cores", "1", *(store or [
                "--control-store", f"etcd:{endpoints}", "--token-key", str(self.token_key)]),
            *(["--control-socket", str(self.folder / "s")] if socket else []), *arguments]
        self._log = self.folder / "log"
        self._environment = ENVIRONMENT | ({"NOTIFY_SOCKET": notify} if notify else {})
        self.start()

    def start(self) -> None:
        with self._log.open("w") as file:
            self.process = subprocess.Popen(self._arguments, stdout=file, stderr=file,
                                            env=self._environment)

    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        def is_there() -> bool:
            if text in self.log():
                return True
            if self.process.poll() is not None:
                raise AssertionError(f"it ended:\n{self.log()}")
            return False
        wait_until(is_there, f"{text}\n{self.log()}")

    def serve(self) -> None:
        self.wait_for("event=serving")
        found = re.search(r"event=serving .* listen=(\S+)", self.log())
        assert found is not None
        self.endpoint = found[1]

    def health(self, path: str) -> int:
        """The code of the answer at its health_listen."""
        self.wait_for("event=health_serving")
        found = re.search(r"event=health_serving health=http://([^/ ]+)", self.log())
        assert found is not None
        connection = http.client.HTTPConnection(found[1], timeout=PATIENCE_S)
        connection.request("GET", path)
        return connection.getresponse().status

    def fails(self) -> str:
        """Waits for its end, and returns why it ended."""
        self.process.wait(PATIENCE_S)
        return self.log()

    def ask(self, *arguments: str, token: Optional[Path] = None) -> str:
        """What phubctl prints: as root, or with a token."""
        who = (["-e", f"unix:{self.folder / 's'}"] if token is None else
               ["-e", self.endpoint, "--token-file", str(token)])
        done = subprocess.run([PHUBCTL, *who, *arguments], env=ENVIRONMENT, check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
