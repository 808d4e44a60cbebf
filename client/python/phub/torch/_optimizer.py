"""phub.torch.DistributedOptimizer: an optimizer of torch.optim that runs in the daemon."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterable, Iterator, Optional

import torch

from .._compression import Compression
from .._job import IterationOutcome
from ._descriptions import Description
from ._errors import NotServed
from ._joining import join
from ._names import Names
from ._options import Options
from ._replicate import refuse_others, register
from ._rules import check_class
from ._saved_state import check_saved
from ._settings import Settings
from ._shared import SharedParameters
from ._updates import Updates
from ._wire import chosen, uncast


class _Distributed:
    """The methods that a wrapped optimizer has instead of its class's. Its thread is the caller's.

    Not a subclass of torch.optim.Optimizer by itself: DistributedOptimizer() mixes it with the
    class of the optimizer that it wraps, so that isinstance() still holds.
    """

    _phub: Updates
    param_groups: list[dict[str, Any]]
    state: dict[Any, Any]
    # GradScaler sets grad_scale and found_inf, and always calls step().
    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> None:
        """Waits for the parameters that the daemon has computed, and copies them into the model's.

        Gradients that no hook has pushed are pushed first. The order of waiting is that in which
        the next forward pass needs the parameters. With wait_in_forward, modules wait instead.
        """
        if closure is not None:
            raise NotServed(
                "step(closure) is not served: the daemon applies the gradients of one backward "
                "pass and cannot evaluate the closure. Call backward(), then step()"
            )
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is not None:
            self._phub.require_for_scaler()
        self._phub.step(1.0 if scale is None else 1.0 / float(scale))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch.optim. Between backward() and step() it warns, or raises OptimizerError if
        the daemon has the gradients already."""
        self._phub.discard()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def synchronize(self) -> None:
        """Blocks until all new parameters are in this process. step() then only copies them.

        Unlike in Horovod, gradients are not averaged in place: the daemon keeps the averages.
        """
        self._phub.synchronize()

    def wait_for_parameters(self) -> None:
        """With wait_in_forward: blocks until the parameters have the values of the last step(). For
        programs that read or write parameters before the next forward pass."""
        self._phub.wait_for_all()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For scripts that call synchronize() before step()."""
        self._phub.require_synchronized()
        yield

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes only accumulate gradients in this process."""
        before = self._phub.pause(True)
        try:
            yield
        finally:
            self._phub.pause(before)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Every rank adds the same groups, between steps. Rank 0's values win."""
        super().add_param_group(param_group)  # type: ignore[misc]
        try:
            self._phub.add_group()
        except BaseException:
            self.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """As in torch.optim, with the state that the daemon has. It fits an optimizer of
        torch.optim, too. One rank may call it alone, between steps."""
        self.state.update(self._phub.values.fetch_state())
        try:
            packed: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        finally:
            self.state.clear()
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives the daemon the state of this optimizer, or of torch.optim's. Every rank calls it
        with the same state, between steps. The parameters become rank 0's: load the model first."""
        with self._phub.values.loading_state():
            self._load_state_dict(state_dict)

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_saved(self._phub.kind, state_dict, self.param_groups, self._phub.names.of)
        super().load_state_dict(state_dict)  # type: ignore[misc]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [each for group in self.param_groups for each in group["params"]]
        states = dict(self.state)
        for number, parameter in zip(numbers, parameters):
            for name, value in states.get(parameter, {}).items():
                saved = state_dict["state"].get(number, {}).get(name)
                states[parameter][name] = uncast(value, saved)
        self.state.clear()
        self._phub.groups = self.param_groups  # torch has made new ones
        self._phub.store_state(states)

    def iteration(self) -> int:
        """The steps that all parameters have taken, which is the number of the next step, from 0.
        With restart=True, a process that replaces one that died continues there."""
        self._phub.wait_for_all()
        return self._phub.job.iteration

    def last_iteration(self) -> IterationOutcome:
        """Whether the last step was skipped, and the norm of its gradients before clipping, with
        clip_norm, skip_nonfinite or apply="iteration". The same on all ranks."""
        self._phub.wait_for_all()
        return self._phub.job.last_iteration()

    def save_checkpoint(self, folder: Any) -> int:
        """Writes parameters, state and hyper-parameters into a folder (docs/checkpoints.md). One
        rank calls it, between steps. Returns the number of steps."""
        return self._phub.values.save(folder)

    def load_checkpoint(self, folder: Any) -> int:
        """Loads such a folder of rank 0's host. Every rank calls it, between steps. The groups'
        hyper-parameters stay those of this process. Returns the number of steps."""
        return self._phub.values.load(folder)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotServed("a DistributedOptimizer cannot be copied or pickled")

    def leave(self) -> None:
        """Leaves the job. No steps are possible afterwards. Also done when the process exits."""
        self._phub.leave()


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Optional[Iterable[tuple[str, Any]]] = None,
    *,
    process_group: Any = None,
    options: Optional[Options] = None,
    backward_passes_per_step: int = 1,
    op: str = "mean",
    push: str = "backward",
    clip_value: float = 0.0,
    clip_norm: float = 0.0,
    skip_nonfinite: bool = False,
    screening: str = "reject",
    apply: str = "chunk",
    skip_unused: bool = False,
    wait_in_forward: Optional[torch.nn.Module] = None,
    share_parameters: Optional[torch.nn.Module] = None,
    timeout: float = 1800.0,
    gradient_dtype: Any = None,
    parameter_dtype: Any = None,
    sum: str = "float",
    compression: Optional[Compression] = None,
    restart: bool = False,
) -> Any:
    """Turns an optimizer of torch.optim into one that runs in the phub daemon, and returns it.

    Every rank of the process group calls it with an equal optimizer (SGD, Adam, AdamW, Adagrad or
    RMSprop); optimizers in the same order. Parameters and state of earlier steps become rank 0's.
    Each optimizer is a job of its own. The result is the same object, so schedulers that have it,
    or are made later, work.

    named_parameters: model.named_parameters(); the names appear in errors.
    process_group: of torch.distributed, with any backend; default: the default group.
    options: where the daemon is; default: those of the group if its backend is phub, otherwise
    PHUB_ENDPOINT or port 7700 of MASTER_ADDR.

    wait_in_forward: the model. step() returns without waiting for new parameters; each module waits
    for its own before its forward pass. Until then the parameters have old values: call
    wait_for_parameters() before they are used in another way. state_dict() of the model waits.

    share_parameters: the model. Its parameters of this optimizer then lie in phub's memory, one
    copy for all ranks of the host, and step() copies nothing. They change between the first push
    and step(), so use them only in forward and backward passes. The process can only read them: a
    write ends it, with a line that names the parameter. model.load_state_dict() works: it moves
    parameters to private memory until broadcast_parameters(). So does leave(). Not with
    parameter_dtype.

    The other settings are the same on all ranks:
    backward_passes_per_step: a gradient is pushed after this number of backward passes. The passes
    are summed; divide the loss by their number for a mean.
    op: "mean" or "sum" of the ranks' gradients.
    push: "backward" pushes gradients while the backward pass runs; then they must not be changed
    between backward() and step(). "step" pushes them in step().
    clip_value: elements of the combined gradient are clamped to [-clip_value, clip_value].
    clip_norm: the combined gradients are scaled if their 2-norm, over all parameters, is greater.
    skip_nonfinite: a step whose combined gradients have NaN or infinity changes nothing.
    screening: otherwise, "reject" ends training with an error that names rank and parameter. Parts
    of the step may have been applied: continue from a checkpoint. "report" applies such a step, as
    torch.optim does; the daemon logs the first one and counts them. "off" does neither.
    apply: "chunk" updates each part of a parameter as soon as all ranks have pushed it. "iteration"
    updates all or nothing, after the last gradient, and zero_grad() before step() can discard
    gradients; clip_norm and skip_nonfinite imply it.
    skip_unused: parameters that have no gradient on all ranks keep their values, as in torch. It
    costs a small round in each step, and small parameters are not bundled.
    timeout: seconds that a step waits for the other ranks.
    gradient_dtype: torch.float16 or torch.bfloat16 rounds gradients to this type before they are
    sent; the daemon sums them in float32. None: the parameter's type.
    parameter_dtype: the same for new parameters, before they come back. The daemon keeps float32
    parameters, and so does state_dict(). A model in float16 or bfloat16 has such masters, too, so
    small steps are not lost when its parameters are rounded.
    sum: "fixed" sums gradients in fixed point, which gives the same bits in any order. float64
    parameters are refused. phub/job_options.h explains it.
    compression: phub.Int8(), phub.TopK(share) or phub.RandomK(share) of gradients on the wire. The
    daemon decodes them and sums in float32. What TopK and RandomK leave out, and what Int8 rounds
    off with error_feedback=True, is added to this rank's next gradients. It is not saved.
    restart: if a rank dies, the others wait up to `timeout` seconds for a process that takes its
    place. Without a process group, because those of torch end when a rank dies: rank and world size
    come from the launcher's variables (PHUB_RANK, RANK, ...), and the job's name from options.job,
    PHUB_RUN or the launcher. The new process runs the same script: wrapping the optimizer gives it
    the current parameters, and it continues at optimizer.iteration(). The bits at the end are those
    of a run in which no rank died. An exception that ends the process counts as a death. Parameters
    become rank 0's when the optimizer is wrapped and cannot be replaced later. Not with clip_norm,
    skip_nonfinite, apply="iteration", skip_unused, TopK, RandomK or add_param_group().

    Raises NotServed for what the daemon does not do, OptimizerError for errors of a step.
    """
    settings = Settings(
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        push=push,
        clip_value=clip_value,
        clip_norm=clip_norm,
        skip_nonfinite=skip_nonfinite,
        screening=screening,
        apply=apply,
        skip_unused=skip_unused,
        timeout=timeout,
        gradient_dtype=chosen("gradient_dtype", gradient_dtype),
        parameter_dtype=chosen("parameter_dtype", parameter_dtype),
        sum=sum,
        compression=compression,
        restart=restart,
    )
    if share_parameters is not None and settings.parameter_dtype is not None:
        raise ValueError(
            f"share_parameters cannot be combined with parameter_dtype={parameter_dtype}: the "
            "model's parameters have another type than those that the daemon sends"
        )
    shared = None if share_parameters is None else SharedParameters(share_parameters)
    return wrap(
        optimizer,
        named_parameters,
        process_group,
        options,
        settings,
        _Distributed,
        Updates,
        wait_in_forward,
        shared,
    )


def wrap(
    optimizer: Any,
    named_parameters: Optional[Iterable[tuple[str, Any]]],
    group: Any,
    options: Optional[Options],
    settings: Settings,
    methods: Any,
    updates_class: Any,
    model: Any = None,
    shared: Optional[SharedParameters] = None,
) -> Any:
    """Joins a job for the optimizer and gives it the methods of a class."""
    check_class(optimizer)
    kind = type(optimizer)
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise NotServed(
            f"DistributedOptimizer needs torch 2.1 or newer; this is {torch.__version__}"
        )
    names = Names(optimizer, named_parameters)
    call = "DistributedOptimizer" if methods is _Distributed else "DiLoCo"
    joined = join(group, options, settings, Description.of(call, optimizer, names))
    job = joined.job
    try:
        groups = optimizer.param_groups
        refuse_others(groups, names)
        updates = updates_class(kind, groups, names, job, joined.notes, settings, model, shared)
        if joined.has_state(optimizer):
            updates.store_state(dict(optimizer.state))
    except Exception as error:
        joined.notes.write(0, str(error))
        job._leave_quietly()  # the other ranks need not wait
        raise
    _convert(optimizer, kind, updates, methods)
    register(updates)
    return optimizer


def _convert(optimizer: Any, kind: Any, updates: Updates, methods: Any) -> None:
    """Changes the object's class, so that everyone who has the optimizer has the new one."""
    patched = optimizer.__dict__.pop("step", None)  # by a scheduler
    optimizer.state.clear()  # the daemon has it
    optimizer._phub = updates
    optimizer.__class__ = type(
        kind.__name__, (methods, kind), {"__module__": __name__, "__doc__": kind.__doc__}
    )
    if hasattr(optimizer, "_patch_step_function"):
        optimizer._patch_step_function()  # hooks of steps
    if patched is not None and hasattr(patched, "_wrapped_by_lr_sched"):
        step = optimizer.step

        @functools.wraps(step)
        def counted(*arguments: Any, **named: Any) -> Any:
            optimizer._opt_called = True
            return step(*arguments, **named)

        setattr(counted, "_wrapped_by_lr_sched", True)
        optimizer.step = counted
