"""PyTorch's own suite of torch.distributed (torch/testing/_internal/distributed/distributed_test.py
in its wheel), for the backend in TORCH_SUITE_BACKEND.

The suite chooses its tests by the name of the backend. Here it chooses those of TORCH_SUITE_LIKE
(default: gloo) for every backend, so that results can be compared. As a program it runs the tests
that its arguments name (patterns; default: all), and prints a line of JSON for each.
"""

from __future__ import annotations

import faulthandler
import fnmatch
import json
import logging
import multiprocessing
import os
import sys
import time
import unittest
from typing import Any

os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "90")
LIKE = os.environ.get("TORCH_SUITE_LIKE", "gloo")
os.environ["BACKEND"] = LIKE
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402

BACKEND = os.environ.get("TORCH_SUITE_BACKEND", "phub")
os.environ["BACKEND"] = suite.BACKEND = BACKEND
for names in vars(suite.DistTestCases)["backend_feature"].values():
    if "gloo" in names:
        names.add("phub")

# A server that has imported everything forks the ranks, which then start fast.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["suite"])
# The suite's barrier of processes. They all start at once, so on a busy machine it takes long.
BARRIER_S = 60
MESSAGE_MAX = 4000
# Tests that compare the name of the backend.
BY_NAME = {"test_get_backend", "test_Backend_enum_class"}


class Upstream(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(self._process)

    @staticmethod
    def _process(*, kwargs: dict[str, Any], **options: Any) -> Any:
        # The server has the environment of the first test.
        return CONTEXT.Process(kwargs={**kwargs, "environment": dict(os.environ)}, **options)

    def _barrier(self, *arguments: Any, **options: Any) -> None:
        suite.Barrier.sync(*arguments, **{"timeout": BARRIER_S, **options})

    def run_test(self, name: str, pipe: Any) -> None:
        if name not in BY_NAME:
            suite.BACKEND = LIKE  # bodies, too, choose by name
        super().run_test(name, pipe)

    @classmethod
    def _run(cls, *arguments: Any, environment: dict[str, str], **options: Any) -> None:
        os.environ.update(environment)
        logging.disable(logging.INFO)
        if BACKEND == "phub":
            import phub.torch  # noqa: F401
        super()._run(*arguments, **options)


suite.instantiate_parametrized_tests(Upstream)


class Printed(unittest.TestResult):
    """One line for each test: its name, outcome, message and seconds."""

    def startTest(self, test: unittest.TestCase) -> None:
        self._begun = time.monotonic()
        self._outcome, self._message = "passed", ""
        super().startTest(test)

    def _note(self, outcome: str, message: str) -> None:
        self._outcome, self._message = outcome, message[-MESSAGE_MAX:]

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        self._note("failed", self._exc_info_to_string(error, test))

    addFailure = addError

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note("skipped", reason)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        seconds = round(time.monotonic() - self._begun, 1)
        name = test.id().rpartition(".")[2]
        print(json.dumps([name, self._outcome, self._message, seconds]), flush=True)


def main() -> None:
    faulthandler.enable()
    patterns = sys.argv[1:] or ["*"]
    every = unittest.TestLoader().getTestCaseNames(Upstream)
    names = [name for name in every if any(fnmatch.fnmatch(name, each) for each in patterns)]
    module = __import__("suite")  # not __main__, which other processes do not have
    unittest.TestSuite(module.Upstream(name) for name in names).run(Printed())


if __name__ == "__main__":
    main()
