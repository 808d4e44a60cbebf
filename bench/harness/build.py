"""The programs that a bench runs, from a CMake build directory. Only optimised builds are used."""

import json
import subprocess
from pathlib import Path

from .failure import BenchFailure


class Build:
    """A build directory. Every program must report how it was built before it is used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checked: set[Path] = set()
        if not (folder / "CMakeCache.txt").is_file():
            raise BenchFailure(f"{folder} is not a build directory: run bench/run without "
                               "--no-build, or pass another directory with --build-dir")
        self._refuse_configuration()

    def _refuse_configuration(self) -> None:
        settings = {}
        for line in (self.folder / "CMakeCache.txt").read_text().splitlines():
            name, separator, value = line.partition("=")
            if separator and not line.startswith(("#", "//")):
                settings[name.partition(":")[0]] = value
        configuration = settings.get("CMAKE_BUILD_TYPE") or "none"
        if configuration != "Release":
            raise BenchFailure(
                f"refuses to measure an unoptimised build: {self.folder} has the build type "
                f"{configuration}; use Release (cmake --preset release)")
        if settings.get("PHUB_SANITIZE"):
            raise BenchFailure(f"refuses to measure a build with sanitizers: {self.folder}")

    @property
    def phubd(self) -> Path:
        return self._existing("server/phubd")

    @property
    def phubctl(self) -> Path:
        return self._existing("client/cli/phubctl")

    @property
    def aggregator(self) -> Path:
        return self._existing("aggregator/phub-aggregator")

    @property
    def count_traffic(self) -> Path:
        """The library that is preloaded to count copies."""
        return self._existing("bench/libbench-count-traffic.so")

    def has(self, name: str) -> bool:
        return (self.folder / "bench" / name).is_file()

    def program(self, name: str) -> Path:
        """The path of a bench program, after a check that it is optimised."""
        path = self._existing(f"bench/{name}")
        if path not in self._checked:
            self._refuse_unoptimised(path)
            self._checked.add(path)
        return path

    def _existing(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise BenchFailure(f"{path} does not exist: run bench/run without --no-build to "
                               "build it")
        return path

    @staticmethod
    def _refuse_unoptimised(path: Path) -> None:
        answer = subprocess.run([path, "--build-info"], capture_output=True, text=True, check=False)
        try:
            info = json.loads(answer.stdout)
            good = info["build_type"] == "Release" and info["optimized"] and not info["sanitizer"]
        except (ValueError, KeyError) as error:
            raise BenchFailure(f"{path} --build-info does not report how it was built: "
                               f"{answer.stdout}"
                               f"{answer.stderr}") from error
        if not good:
            raise BenchFailure(f"refuses to measure an unoptimised build: {path} reports {info}")
