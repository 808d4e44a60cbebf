"""phub.torch.DistributedOptimizer, against a real daemon."""

from __future__ import annotations

import json
import pathlib
import signal
import tempfile
import unittest
from typing import Any

from ranks import CONTEXT, Failed, PATIENCE_S, TorchTest, all_cases, initialize


def train_until_error(rank: int, size: int, started: Any) -> str:
    """Steps without an end. Returns the error."""
    import torch

    from optimizer_reference import adam, backward, wrapped
    from training_cases import network

    torch.set_num_threads(1)
    initialize()
    model = network()
    optimizer = wrapped(model, adam)
    try:
        for step in range(1_000_000):
            optimizer.zero_grad()
            backward(model, 0, rank, size)
            optimizer.step()
            if step == 3:
                started.release()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def write_a_shared_parameter(rank: int, size: int) -> None:
    import torch

    from optimizer_reference import adam, wrapped
    from training_cases import network

    initialize()
    model = network()
    wrapped(model, adam, share_parameters=model)
    with torch.no_grad():
        model[3].bias.add_(1.0)


def train_three_steps(rank: int, size: int) -> None:
    from optimizer_reference import adam, backward, wrapped
    from training_cases import network

    initialize()
    model = network()
    optimizer = wrapped(model, adam)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step, rank, size)
        optimizer.step()
    optimizer.leave()


def cases(rank: int, size: int, module: str) -> list[str]:
    return all_cases(module, rank, size)


class Optimizer(TorchTest):
    def check(self, size: int, module: str) -> None:
        for rank, errors in enumerate(self.run_ranks(size, cases, module)):
            self.assertEqual(errors, [], f"rank {rank}")

    def test_one_rank(self) -> None:
        self.check(1, "optimizer_cases")

    def test_two_ranks(self) -> None:
        self.check(2, "optimizer_cases")

    def test_waiting_in_the_forward_pass(self) -> None:
        self.check(2, "optimizer_forward_cases")

    def test_parameters_in_shared_memory(self) -> None:
        self.check(2, "optimizer_shared_cases")

    def test_a_write_to_a_shared_parameter_is_named(self) -> None:
        with self.assertRaisesRegex(
            Failed, r"ended with -11:\n(.*\n)*phub: this process wrote to parameter 3\.bias"
        ):
            self.run_ranks(1, write_a_shared_parameter)

    def test_outer_optimizers(self) -> None:
        self.check(2, "outer_cases")

    def test_steps_that_are_clipped_or_skipped(self) -> None:
        self.check(2, "optimizer_iteration_cases")

    def test_16_bit_gradients_and_parameters(self) -> None:
        self.check(2, "optimizer_precision_cases")

    def test_compressed_gradients(self) -> None:
        self.check(2, "optimizer_compression_cases")

    def test_the_compression_hook(self) -> None:
        self.check(2, "compression_hook_cases")

    def test_wrong_uses(self) -> None:
        self.check(2, "optimizer_failure_cases")

    def test_ranks_that_differ(self) -> None:
        self.check(2, "optimizer_difference_cases")

    def test_bad_input(self) -> None:
        self.check(2, "optimizer_bad_input_cases")

    def test_calls_of_some_ranks_only(self) -> None:
        self.check(2, "optimizer_meeting_cases")

    def test_models_with_shared_and_scalar_parameters(self) -> None:
        self.check(2, "optimizer_model_cases")

    def test_behaviours_that_horovod_tests(self) -> None:
        self.check(2, "horovod_cases")

    def test_the_timeline_has_computation_between_pushes(self) -> None:
        with tempfile.TemporaryDirectory(prefix="phub-torch-timeline-") as folder:
            environment = {
                "PHUB_TIMELINE": f"{folder}/trace.json", "PHUB_TIMELINE_ITERATIONS": "1:3"
            }
            self.run_ranks(2, train_three_steps, environment=environment)
            files = [pathlib.Path(f"{folder}/trace.rank{rank}.json") for rank in range(2)]
            traces = [json.loads(path.read_text()) for path in files]
        for events in traces:
            computed = [each for each in events if each.get("cat") == "compute"]
            waits = [each for each in events if each.get("cat") == "wait"]
            pushes = [each for each in events if each["name"] == "push"]
            names = ["forward, backward to 5.bias", "backward to 5.weight", "backward to 3.bias",
                     "backward to 3.weight", "backward to 0.bias", "backward to 0.weight",
                     "computation before step()"]
            # The order of weight and bias is that of autograd.
            found = [(each["args"]["iteration"], each["name"].split()[-1]) for each in computed]
            expected = [(step, name.split()[-1]) for step in (1, 2) for name in names]
            self.assertEqual(sorted(found), sorted(expected))
            for number in (0, len(names)):
                self.assertTrue(computed[number]["name"].startswith("forward, backward to 5."))
            self.assertEqual(computed[len(names) - 1]["name"], names[-1])
            spans = sorted(computed + waits, key=lambda each: float(each["ts"]))
            self.assertEqual(len({each["tid"] for each in spans}), 1)
            for one, other in zip(spans, spans[1:]):
                self.assertLessEqual(one["ts"] + one["dur"], other["ts"] + 0.01)
            for push in pushes:  # a bundle is pushed after the last of its gradients
                before = [each for each in computed if each["ts"] + each["dur"] <= push["ts"]]
                self.assertIn(push["args"]["iteration"], [e["args"]["iteration"] for e in before])

    def test_a_killed_rank_is_restarted(self) -> None:
        import optimizer_restart_cases as restart

        for die in ("before", "pushed", "loaded"):
            with self.subTest(die):
                whole = self.run_ranks(2, restart.train, f"whole-{die}", "", die == "loaded")
                run = self.start(2, restart.train, f"torn-{die}", die, die == "loaded")
                self.assertEqual(run.restart(1), -signal.SIGKILL, run.errors())
                torn = run.results()
                first = int(die == "loaded")  # that state has a step
                self.assertEqual(torn[0][0], first)
                # If all gradients had arrived, the daemon has applied the step.
                resumed = (restart.DEATH, restart.DEATH + int(die == "pushed"))
                self.assertIn(torn[1][0], resumed)
                self.assertEqual([each for each, _ in whole], [first, first])
                self.assertEqual(torn[0][1], torn[1][1])
                self.assertEqual(torn[0][1], whole[0][1])

    def test_wrong_uses_of_restart(self) -> None:
        import optimizer_restart_cases as restart

        self.assertEqual(self.run_ranks(1, restart.wrong_uses), [[]])

    def test_a_state_that_one_rank_loads_under_restart(self) -> None:
        import optimizer_restart_cases as restart

        loaded, other = self.run_ranks(2, restart.load_on_one_rank)
        for word in ("rank 0 of job one-loads.optimizer0", "in load_state_dict(), which every rank",
                     "not all ranks have called it within 1 s",
                     "waits in a barrier; it waits for rank 1"):
            self.assertIn(word, loaded)
        self.assertIn("rank 0 (", other)
        self.assertIn("has left the job", other)

    def test_a_killed_rank_is_named(self) -> None:
        started = CONTEXT.Semaphore(0)
        run = self.start(2, train_until_error, started)
        for _ in range(2):
            self.assertTrue(started.acquire(timeout=PATIENCE_S), run.errors())
        run.kill(1)
        error = run.result(0)
        for word in ("OptimizerError: rank 0 of job torch-", "parameter", "rank 1", "died"):
            self.assertIn(word, error)


if __name__ == "__main__":
    unittest.main()
