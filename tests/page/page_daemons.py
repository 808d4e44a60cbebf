"""A daemon with the page and jobs in chosen states, for tests of the page."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from waiting import wait_until

PHUBD, PHUBCTL, TRAINER = (os.environ[name] for name in
                           ("PHUB_PHUBD", "PHUB_PHUBCTL", "PHUB_TRAINER"))
# phubd refuses variables that begin with PHUB_ and are no settings.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PHUB_")}
PATIENCE_S = 60
HOSTILE = "<img src=x onerror=alert(1)>\"'&amp;</script>"


class PageDaemon:
    def __init__(self, test: unittest.TestCase, *arguments: str,
                 listen: str = "127.0.0.1:0") -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-page-")
        test.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self._test = test
        self.process = self._start("phubd", [
            PHUBD, "--listen", listen, "--cores", "1", "--page-listen", "127.0.0.1:0",
            "--health-listen", "127.0.0.1:0", *arguments])
        wait_until(lambda: "event=serving" in self._log("phubd") or self.process.poll() is not None,
                   "phubd serves")
        found = re.search(r"event=serving .* listen=(\S+) .* health=http://127.0.0.1:(\d+)/readyz "
                          r"page=http://127.0.0.1:(\d+)/ ", self._log("phubd"))
        assert found is not None, self._log("phubd")
        self.endpoint = found.group(1)
        self.health_port, self.page_port = int(found.group(2)), int(found.group(3))

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT,
                                       env=ENVIRONMENT)
        def end() -> None:
            process.kill()
            process.wait()
        self._test.addCleanup(end)
        return process

    def rank(self, job: str, rank: int, world_size: int, *arguments: str,
             reaches: str = "iteration 1\n") -> subprocess.Popen[bytes]:
        name = f"job{len(list(self.folder.iterdir()))}"
        process = self._start(name, [
            TRAINER, "--endpoint", self.endpoint, "--job", job, "--rank", str(rank),
            "--world-size", str(world_size), "--iterations", "1000000", *arguments])
        if reaches:
            wait_until(lambda: reaches in self._log(name) or process.poll() is not None, reaches)
            assert process.poll() is None, self._log(name)
        return process

    def ctl(self, *arguments: str) -> str:
        return subprocess.run([PHUBCTL, "-e", self.endpoint, *arguments], check=True,
                              capture_output=True, text=True, timeout=PATIENCE_S,
                              env=ENVIRONMENT).stdout

    def ctl_json(self, *arguments: str) -> Any:
        return json.loads(self.ctl("-o", "json", *arguments))

    def ask(self, path: str, port: int | None = None, method: str = "GET",
            **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.page_port, timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        result = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return result

    def status(self) -> Any:
        code, _, body = self.ask("/status.json")
        assert code == 200, body
        return json.loads(body)

    def job_of(self, status: Any, name: str) -> Any:
        return next((job for job in status["job_list"]["jobs"] if job["name"] == name), None)
