"""What can be wrong with a step of this rank. Each function returns the reason, or None."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from ._bundles import Bundle, Slot, listed

SCALER = (
    'GradScaler needs DistributedOptimizer(..., push="step", skip_nonfinite=True): gradients are '
    "divided by the scale before they are pushed, and a step with infinity on any rank is skipped "
    "on all"
)


def _described(shape: Any, dtype: Any) -> str:
    return f"{tuple(shape)} of {str(dtype).replace('torch.', '')}"


def changed_parameter(slot: Slot) -> Optional[str]:
    """The parameter is still the one that was wrapped."""
    parameter = slot.parameter
    if parameter.shape != slot.shape or parameter.dtype != slot.dtype:
        return (
            f"parameter {slot.name} was {_described(slot.shape, slot.dtype)} when the optimizer "
            f"was wrapped, and is {_described(parameter.shape, parameter.dtype)} now"
        )
    if parameter.device.type != "cpu":
        return (
            f"parameter {slot.name} was moved to {parameter.device} after the optimizer was "
            "wrapped, and the daemon's optimizers serve parameters on the CPU only. Leave the "
            "model on the CPU, or use DistributedDataParallel with an optimizer of torch.optim: "
            "the backend phub takes CUDA tensors"
        )
    if slot.moved:
        return (
            f"parameter {slot.name} does not lie in phub's memory any more: .to(), an assignment "
            "to its .data or the like replaced it, so steps do not reach it. Do that before the "
            "optimizer is wrapped, or leave out share_parameters"
        )
    return None


def wrong_tensors(slot: Slot, gradient: Any) -> Optional[str]:
    """The parameter and its gradient, before the gradient is copied."""
    changed = changed_parameter(slot)
    if changed is not None:
        return changed
    if gradient.layout != torch.strided:
        layout = str(gradient.layout).rsplit(".", 1)[-1]
        return (
            f"the gradient of parameter {slot.name} is {layout}, which phub does not serve: "
            "use a layer with sparse=False"
        )
    if slot.parameter._version != slot.version:
        return (
            f"parameter {slot.name} was written by this process after the last step, but the "
            "daemon has the old values. Call phub.torch.broadcast_parameters("
            "model.state_dict(), root_rank=0) on all ranks after load_state_dict() or other "
            "changes of parameters"
        )
    return None


def used_again(slot: Slot, passes: int) -> str:
    """A backward pass has reached a parameter whose gradient was pushed."""
    return (
        f"parameter {slot.name} was used in more backward passes before step() than "
        f"backward_passes_per_step={passes}, and its gradient was already pushed. Call step() "
        "after each of them, pass a larger backward_passes_per_step, or run passes that need no "
        "step under optimizer.no_sync()"
    )


def discarded_after_push(slots: list[Slot]) -> str:
    """zero_grad() after these gradients were pushed."""
    return (
        f"zero_grad() was called before step(), but the gradient of {listed(slots)} was pushed "
        "during the backward pass, and the daemon applies it. Run backward passes that need no "
        'step under optimizer.no_sync(), or pass push="step" or apply="iteration"'
    )


def discarded_passes(slots: list[Slot], passes: int) -> str:
    """zero_grad() before the last of several passes."""
    return (
        f"zero_grad() before step() discards the gradients of {slots[0].passes} of {passes} "
        f"backward passes, of {listed(slots)}"
    )


def used_before_arrival(slot: Slot) -> Optional[str]:
    """A backward pass has added to the parameter's gradient."""
    if slot.bundle.late is None:
        return None
    return (
        f"a backward pass reached parameter {slot.name}, but its new values have not been copied "
        "yet, because no module that has it was called after step(): the forward pass used old "
        "values. Call optimizer.wait_for_parameters() before it"
    )


def written_before_arrival(bundle: Bundle) -> Optional[str]:
    """The parameters of a key whose new values have not been copied yet."""
    for slot in bundle.slots:
        if slot.parameter._version != slot.version:
            return (
                f"parameter {slot.name} was written by this process between step() and the "
                "arrival of its new values, which are copied in the next forward pass. Call "
                "optimizer.wait_for_parameters() before writing parameters"
            )
    return None


def changed_groups(
    groups: list[dict[str, Any]],
    known: list[list[Any]],
    frozen: list[Any],
    name_of: Callable[[Any], str],
) -> Optional[str]:
    """Parameters are those that have keys. known: the parameters of each group."""
    for index, group in enumerate(groups):
        old = known[index] if index < len(known) else []
        new = group["params"]
        if len(new) == len(old) and all(a is b for a, b in zip(new, old)):
            continue
        for place, parameter in enumerate(new):
            if not any(parameter is each for each in old):
                return (
                    f"parameter {place} of parameter group {index} ({name_of(parameter)}) was "
                    "added to param_groups without add_param_group()"
                )
        gone = [each for each in old if not any(each is other for other in new)]
        names = ", ".join(name_of(each) for each in gone) or "the order"
        return f"parameter group {index} was changed after the optimizer was wrapped: {names}"
    for parameter in frozen:
        if parameter.requires_grad:
            return (
                f"parameter {name_of(parameter)} had requires_grad=False when the optimizer was "
                "wrapped, and has requires_grad=True now. Wrap the optimizer after unfreezing, or "
                "add the parameter with add_param_group()"
            )
    return None


def changed_after_push(slots: list[Slot], rule_of_group: Callable[[int], Any]) -> Optional[str]:
    """What was pushed during backward is still what the caller wants to be applied."""
    rules: dict[int, Any] = {}
    for slot in slots:
        if not slot.pushed:
            continue
        gradient = slot.parameter.grad
        # Clipping with an infinite limit, as trainers do for the norm, writes the same values.
        if not slot.has_pushed(gradient):
            what = "removed" if gradient is None else "changed"
            return (
                f"the gradient of parameter {slot.name} was {what} after it was pushed to the "
                'daemon during the backward pass. Pass push="step" to change gradients (clip '
                "them, unscale them) between backward() and step(). Do not wrap the model in "
                "DistributedDataParallel, which changes them, too"
            )
        bundle = slot.bundle
        if bundle.handle is None:
            continue
        if slot.group not in rules:
            rules[slot.group] = rule_of_group(slot.group)
        if rules[slot.group] != bundle.rule:
            return (
                f"hyper-parameters of parameter group {slot.group} changed between backward() "
                f"and step(): parameter {slot.name} was pushed with {bundle.rule}, and the "
                f"group now has {rules[slot.group]}. Change them after step(), or pass "
                'push="step"'
            )
    return None


def changed_kind(bundle: Bundle, rule: Any) -> Optional[str]:
    """The optimizer of the daemon is still that of the parameter group."""
    if type(rule) is bundle.kind:
        return None
    return (
        f"parameter group {bundle.slots[0].group} was wrapped as {bundle.kind.__name__} and has "
        f"become {type(rule).__name__}, because momentum, nesterov or centered changed: the daemon "
        "cannot change the kind of an optimizer"
    )


def absent_gradients(slots: list[Slot], count: int) -> Optional[str]:
    """slots: those that no hook has pushed. count: how many parameters the optimizer has."""
    absent = [slot for slot in slots if slot.parameter.grad is None]
    have, it = ("has", "it") if len(absent) == 1 else ("have", "them")
    frozen = [slot for slot in absent if not slot.parameter.requires_grad]
    if frozen:
        was, has = ("was", "has") if len(frozen) == 1 else ("were", "have")
        return (
            f"{listed(frozen)} {was} frozen (requires_grad=False) after the optimizer was wrapped, "
            f"and {has} no gradient. The daemon updates every parameter of the optimizer in every "
            "step: freeze before wrapping, or use an optimizer for each part"
        )
    if absent and len(absent) == count:
        return (
            f"no parameter of the optimizer has a gradient ({listed(absent)}): backward() was not "
            "called since the last step, or the model has other parameters now, for example after "
            ".to() or load_state_dict(assign=True). Wrap the optimizer after such calls"
        )
    if absent:
        return (
            f"{listed(absent)} {have} no gradient: the backward passes since the last step did not "
            f"use {it}. The daemon updates every parameter of the optimizer in every step: leave "
            "unused parameters out, use an optimizer for each part of the model, set the gradient "
            "to zeros, or pass skip_unused=True if all ranks use the same parameters"
        )
    return None


def not_finite(slots: list[Slot]) -> Optional[str]:
    """The first gradient with NaN or infinity among those that this rank pushed last."""
    for slot in slots:
        wrong = ~torch.isfinite(slot.gradient)
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            value = float(slot.gradient[tuple(place)])
            if not place:
                return f"the gradient of parameter {slot.name} is {value:g}"
            return (
                f"the gradient of parameter {slot.name} has NaN or infinity in {int(wrong.sum())} "
                f"of {wrong.numel()} elements, the first at {place}: {value:g}"
            )
    return None
