"""Debian's Prometheus, without its service."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Optional

import debian_programs


def find_programs() -> Optional[Path]:
    """The folder of `prometheus` and `promtool`. None: they are not installed and cannot be
    downloaded."""
    return debian_programs.find_programs(["prometheus"], ["prometheus", "promtool"])


class Prometheus:
    """Runs until close()."""

    def __init__(self, programs: Path, configuration: Path, folder: Path) -> None:
        self._log = (folder / "prometheus.log").open("w+")
        self._process = subprocess.Popen(
            [programs / "prometheus", f"--config.file={configuration}",
             f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0"],
            stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)
        self._address = ""

    def log(self) -> str:
        return Path(self._log.name).read_text()

    def wait(self, seconds: float) -> None:
        """Until it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            found = re.search(r"Listening on.*address=(\S+)", self.log())
            if found and "Server is ready to receive web requests" in self.log():
                self._address = found[1]
                return
            time.sleep(0.05)
        raise AssertionError(f"Prometheus does not answer:\n{self.log()}")

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series now: each has `metric`, its labels, and `value`, a time and a text."""
        result: list[dict[str, Any]] = self.ask("query?" + urllib.parse.urlencode(
            {"query": expression}))["result"]
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
