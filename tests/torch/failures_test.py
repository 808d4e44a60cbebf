"""What goes wrong: ranks that die, are late, leave or disagree, daemons that die, and no daemon."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import tempfile
import time
import unittest
from typing import Any, Callable


from ranks import CONTEXT, PATIENCE_S, Daemon, Failed, Run, TorchTest, initialize, leave_after


def described(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, str(error)


def train_until_error(rank: int, size: int, started: Any) -> Any:
    """Steps of DistributedDataParallel without an end. Returns the error."""
    import torch

    initialize()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    try:
        for step in range(1_000_000):
            model(torch.ones(4, 100)).sum().backward()
            if step == 5:
                started.release()
    except Exception as error:
        return described(error)


def different(rank: int, size: int, which: str) -> Any:
    """Ranks call different collectives. Returns the error and how long it took."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(3))
    first = rank == 0
    calls: dict[str, Callable[[], Any]] = {
        "shape": lambda: dist.all_reduce(torch.ones(10 if first else 11)),
        "size": lambda: dist.all_reduce(torch.ones(10 if first else 100_000)),
        "large": lambda: dist.all_reduce(torch.ones(2_000_000 if first else 2_000_001)),
        "type": lambda: dist.all_reduce(
            torch.ones(10, dtype=torch.int64 if first else torch.int32)
        ),
        "operation": lambda: dist.all_reduce(
            torch.ones(10), dist.ReduceOp.MAX if first else dist.ReduceOp.SUM
        ),
        "collective": lambda: dist.all_reduce(torch.ones(10)) if first else dist.barrier(),
        "root": lambda: dist.broadcast(torch.ones(10), 0 if first else 1),
        "broadcast": lambda: dist.broadcast(torch.ones(10 if first else 12), 0),
        "gather": lambda: dist.all_gather([torch.ones(n) for n in (5, 5)], torch.ones(5))
        if first
        else dist.all_gather([torch.ones(n) for n in (6, 6)], torch.ones(6)),
    }

    def order() -> None:
        tensors = [torch.ones(10), torch.ones(50_000)]
        for work in [
            dist.all_reduce(each, async_op=True) for each in (tensors if first else tensors[::-1])
        ]:
            work.wait()

    calls["order"] = order
    begun = time.monotonic()
    try:
        calls[which]()
        dist.barrier()  # the root of a broadcast does not see what the others called
    except Exception as error:
        return (*described(error), time.monotonic() - begun)
    return None


def differences(rank: int, size: int) -> dict[str, Any]:
    """Each in a process group of its own, after the one before has failed."""
    errors = {}
    for which in DIFFERENCES:
        dist = initialize()
        errors[which] = different(rank, size, which)
        dist.destroy_process_group()
    return errors


DIFFERENCES = ["shape", "size", "large", "type", "operation", "collective", "root", "broadcast"]
DIFFERENCES += ["gather", "order"]


def late(rank: int, size: int, seconds: float, timeout: float) -> Any:
    import torch
    import torch.distributed as dist

    initialize(timeout)
    dist.barrier()
    if rank == 1:
        time.sleep(seconds)
    try:
        dist.all_reduce(torch.ones(3))
    except Exception as error:
        return described(error)
    return "complete"


def leaves(rank: int, size: int, how: str) -> Any:
    import torch
    import torch.distributed as dist

    initialize()
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        if how == "destroy":
            dist.destroy_process_group()
        if how == "in flight":
            dist.all_reduce(torch.ones(3), async_op=True)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return None
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(3))
    except Exception as error:
        return described(error)


def ends_at_once(rank: int, size: int, rounds: int) -> None:
    """The last collective's result must reach every rank, though others leave at once."""
    import torch
    import torch.distributed as dist

    for index in range(rounds):
        initialize()
        tensor = torch.full((200_000,), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 1:
            time.sleep(0.02 * (index % 3))
        work.wait()
        assert tensor[0] == sum(range(size))
        dist.destroy_process_group()


def messages(rank: int, size: int) -> list[Any]:
    """Rank 1 sends to rank 0. Returns the errors of rank 0."""
    import torch
    import torch.distributed as dist

    found = []

    def fails(call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            found.append(described(error))

    initialize()
    if rank == 1:
        for work in [dist.isend(torch.ones(n), 0, tag=tag) for n, tag in ((10, 50), (1, 51))]:
            work.wait()
    else:
        dist.recv(torch.empty(1), 1, tag=51)  # the message with tag 50 arrives before its call
        fails(lambda: dist.recv(torch.empty(11), 1, tag=50))
        works = [dist.irecv(torch.empty(3), 1, tag=tag) for tag in (52, 53)]
    dist.barrier()
    leave_after(dist, 1, 0)
    if rank == 0:
        for work in works:
            fails(work.wait)
    dist.destroy_process_group()

    initialize()  # the call comes before the message
    fails(
        lambda: dist.send(torch.ones(10), 0, tag=50)
        if rank == 1
        else dist.recv(torch.empty(11), 1, tag=50)
    )
    dist.destroy_process_group()
    return found


def two_groups(rank: int, size: int) -> None:
    import torch
    import torch.distributed as dist

    for _ in range(2):
        initialize()
        gloo = dist.new_group(backend="gloo")
        other = dist.new_group()
        for group in (gloo, other, dist.group.WORLD):
            tensor = torch.ones(5)
            dist.all_reduce(tensor, group=group)
            assert tensor[0] == size
        dist.destroy_process_group()


def by_url(rank: int, size: int, url: str, removed: list[str]) -> str:
    import torch
    import torch.distributed as dist

    for name in removed:
        os.environ.pop(name, None)
    initialize(init_method=url)
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size() == 2
    name = dist.group.WORLD.job_name
    dist.destroy_process_group()
    return str(name)


def without_daemon(rank: int, size: int) -> Any:
    try:
        initialize()
    except Exception as error:
        return described(error)


def subgroups_that_fail(rank: int, size: int) -> list[Any]:
    """Rank 1 destroys a group, and is late in another, where rank 0 waits for it."""
    import datetime

    import torch
    import torch.distributed as dist

    initialize()
    left, late = dist.new_group(), dist.new_group(timeout=datetime.timedelta(seconds=2))
    errors = []
    for group in (left, late):
        dist.all_reduce(torch.ones(3), group=group)
        if rank == 1:
            if group is left:
                dist.destroy_process_group(group)
        else:
            try:
                dist.all_reduce(torch.ones(3), group=group)
            except Exception as error:
                errors.append(described(error))
        # The other groups go on.
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor[0] == size
    leave_after(dist, 1, 0)
    dist.destroy_process_group()
    return errors


WAITS = "rank 0 waits in operation 2, all_reduce(SUM) of 3 float32 for rank 1"


class Failures(TorchTest):
    def expect(self, error: Any, *words: str) -> None:
        self.assertIsNotNone(error)
        for word in words:
            self.assertIn(word, error[1])

    def training(self, size: int, **options: Any) -> Run:
        """Ranks that train."""
        started = CONTEXT.Semaphore(0)
        run = self.start(size, train_until_error, started, **options)
        for _ in range(size):
            self.assertTrue(started.acquire(timeout=PATIENCE_S), run.errors())
        return run

    def test_a_group_that_fails_leaves_the_others(self) -> None:
        left, late = self.run_ranks(2, subgroups_that_fail)[0]
        self.expect(left, "rank 1: has left the group", "operation 2, all_reduce(SUM)")
        self.assertEqual(late[0], "CollectiveTimeout")
        self.expect(late, "rank 1 has not called it")

    def test_a_killed_rank_is_named(self) -> None:
        begun = time.monotonic()
        run = self.training(3)
        run.kill(2)
        for rank in range(2):
            self.expect(run.result(rank), "rank 2", f"rank {rank} of job torch-", "died")
        self.assertLess(time.monotonic() - begun, PATIENCE_S)

    def test_a_stopped_rank_is_named(self) -> None:
        run = self.training(2)
        run.kill(1, signal.SIGSTOP)
        self.expect(run.result(0), "rank 1", "job torch-")
        run.kill(1)

    def test_a_daemon_that_dies(self) -> None:
        daemon = Daemon()
        run = self.training(2, environment={"PHUB_ENDPOINT": daemon.endpoint})
        daemon.stop()
        for rank in range(2):
            self.expect(run.result(rank), daemon.endpoint, f"rank {rank} of job torch-")

    def test_ranks_that_disagree_are_named_with_both_operations(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            both = self.run_ranks(2, differences, environment={"PHUB_FLIGHT_FOLDER": folder})
            reasons = [each["reason"] for each in self.flight_records(folder, "*.json")]
        self.assertGreaterEqual(len(reasons), len(DIFFERENCES))
        self.assertTrue(any("different collectives" in each for each in reasons), reasons)
        for which in DIFFERENCES:
            with self.subTest(which):
                results = [errors[which] for errors in both]
                for rank, error in enumerate(results):
                    self.expect(error, "rank 0", "rank 1")
                    self.assertLess(error[2], 10.0)
                kinds = {error[0] for error in results}
                self.assertIn("CollectiveMismatch", kinds, results)
                self.assertTrue(
                    any(error[1].count("called") >= 2 for error in results), results
                )

    def test_a_late_rank_is_reported_and_waited_for(self) -> None:
        run = self.start(2, late, 7.0, 60.0)
        self.assertEqual([run.result(rank) for rank in range(2)], ["complete", "complete"])
        self.assertRegex(
            run.errors(),
            r"phub: rank 0 of job torch-\S+ has waited \d+ s in operation 2, all_reduce\(SUM\) of "
            r"3 float32; rank 1 has not called it",
        )

    def test_a_rank_that_never_calls_is_named_at_the_timeout(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = self.start(2, late, 6.0, 2.0, environment={"PHUB_FLIGHT_FOLDER": folder})
            error = run.result(0)
            (record,) = self.flight_records(folder, "*.rank-0.json")
            (text,) = pathlib.Path(folder).glob("*.rank-0.txt")
            self.assertIn(WAITS, text.read_text())
        self.assertEqual(error[0], "CollectiveTimeout")
        self.expect(error, "rank 1 has not called it", "all_reduce(SUM) of 3 float32", "2 s")
        self.assertIn("timed out after 2 s", record["reason"])
        self.assertEqual([each["waits_for"] for each in record["ranks"]], [[1], []])
        states = [(each["operation"], each["state"]) for each in record["operations"]]
        self.assertEqual(
            states, [("barrier", "completed"), ("all_reduce(SUM) of 3 float32", "waits")]
        )
        self.assertIn(WAITS, run.errors())

    @staticmethod
    def flight_records(folder: str, pattern: str) -> list[dict[str, Any]]:
        return [json.loads(each.read_text()) for each in pathlib.Path(folder).glob(pattern)]

    def test_ranks_that_leave_early_are_named(self) -> None:
        for how in ("destroy", "exit", "in flight", "killed"):
            with self.subTest(how):
                run = self.start(2, leaves, how)
                self.expect(run.result(0), "rank 1", "died" if how == "killed" else "left")

    def test_messages_that_fail(self) -> None:
        early, *left, late = self.run_ranks(2, messages)[0]
        for error in (early, late):
            self.assertEqual(error[0], "CollectiveMismatch", error)
            self.expect(error, "tag 50 of 10 float32", "tag 50 of 11 float32")
        self.assertEqual(len(left), 2)
        for tag, error in zip((52, 53), left):
            self.expect(error, "left", f"rank 1 to rank 0, tag {tag} of 3 float32 waits")

    def test_the_last_collective_completes_everywhere(self) -> None:
        self.run_ranks(2, ends_at_once, 12)

    def test_two_groups_and_a_second_initialization(self) -> None:
        self.run_ranks(2, two_groups)

    def test_urls(self) -> None:
        host = self.daemon.endpoint
        store = ["MASTER_ADDR", "MASTER_PORT", "PHUB_ENDPOINT"]
        for url, removed in (
            (f"phub://{host}/digits?transport=tcp", ["PHUB_ENDPOINT"]),
            (f"phub://{host}/digits", store),
            ("phub://", []),
        ):
            with self.subTest(url):
                names = self.run_ranks(2, by_url, url, removed)
                self.assertEqual(names[0], names[1])
                self.assertTrue(names[0].startswith("digits-" if "digits" in url else "torch-"))
        run = self.start(
            2, by_url, f"phub://{host}/x?colour=red", store
        )
        with self.assertRaisesRegex(Failed, "colour"):
            run.results()

    def test_no_daemon(self) -> None:
        (error,) = self.run_ranks(
            1, without_daemon, environment={"PHUB_ENDPOINT": "127.0.0.1:1"}
        )
        self.expect(error, "no phub daemon answers at 127.0.0.1:1", "phubd --listen 127.0.0.1:1")


if __name__ == "__main__":
    unittest.main()
