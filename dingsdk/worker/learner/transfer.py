"""What a new run takes from a checkpoint: everything, the weights, or parts of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dingsdk.errors import CheckpointError, listing, spelling
from dingsdk.worker.learner.checkpoint import Checkpoint

_TARGET = "target_"


def state_to_load(
    own: Mapping[str, Any],
    checkpoint: Checkpoint,
    *,
    with_optimizers: bool = True,
    with_settings: bool = False,
    parts: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the policy state that a new run loads in place of its own.

    Args:
        own: The state of the new policy; not changed.
        checkpoint: Where the other values are from.
        with_optimizers: False leaves out the states of optimizers and of torch's schedulers, so
            that they begin anew.
        with_settings: Whether the settings of optimizers are those in the checkpoint, too.
        parts: Parts of the model to take, by their module path, as ``encoder``; a part of another
            network has its name before it, as ``critic.encoder``. None takes all of them.

    Raises:
        CheckpointError: the checkpoint has no such part, or a tensor has another shape. The error
            names the file, the tensor and both shapes, and the parts that fit.
    """
    saved = checkpoint.state
    if with_optimizers:
        return dict(saved) if with_settings else _with_settings_of(own, saved)
    saved = _weights(saved)
    if parts is None:
        for name in saved.keys() & own.keys():
            if _is_network(saved[name]) and _is_network(own[name]):
                _check_fits(own, checkpoint, name, "")
        return saved
    made = {name: dict(section) for name, section in _weights(own).items() if _is_network(section)}
    taken = set()
    for part in parts:
        name, prefix = _place_of(part, checkpoint)
        if name not in made:
            raise _no_part(part, checkpoint, "the model of this run")
        _check_fits(made, checkpoint, name, prefix)
        made[name].update(_under(saved[name], prefix))
        taken.add(name)
    # A target network that is absent becomes a copy of the network that it belongs to.
    return {
        name: section
        for name, section in made.items()
        if not (name.startswith(_TARGET) and name.removeprefix(_TARGET) in taken)
    }


def _weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a policy's state that are not of optimizers or torch's schedulers."""
    return {
        name: section
        for name, section in state.items()
        if not (isinstance(section, Mapping) and {"param_groups", "base_lrs"} & section.keys())
    }


def _is_network(section: Any) -> bool:
    """Whether a section of a state holds tensors by name."""
    return isinstance(section, Mapping) and all(hasattr(each, "shape") for each in section.values())


def _under(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the tensors of a module, by their names in the network; all with an empty prefix."""
    return {
        key: tensor
        for key, tensor in section.items()
        if not prefix or key == prefix or key.startswith(f"{prefix}.")
    }


def _place_of(part: str, checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the section of the checkpoint, and the module path in it, that a part names."""
    networks = {k: v for k, v in _weights(checkpoint.state).items() if _is_network(v)}
    name, _, prefix = part.partition(".")
    for where in (("model", part), (name, prefix)):
        if where[0] in networks and _under(networks[where[0]], where[1]):
            return where
    raise _no_part(part, checkpoint, f"the checkpoint {checkpoint.path}")


def _no_part(part: str, checkpoint: Checkpoint, where: str) -> CheckpointError:
    known = _names_in(checkpoint.state)
    nearest, hint = spelling(part, known)
    return CheckpointError(
        f"{where} has no part {part!r}{hint} Parts in {checkpoint.path}: {listing(known)}",
        path=str(checkpoint.path),
        found=part,
        known=sorted(known),
        nearest=nearest,
    )


def _names_in(state: Mapping[str, Any]) -> list[str]:
    """Return the modules of the model, and the other networks and their modules."""
    found: set[str] = set()
    for name, section in _weights(state).items():
        if not _is_network(section) or name.startswith(_TARGET):
            continue
        modules = {key.partition(".")[0] for key in section}
        found |= modules if name == "model" else {name, *(f"{name}.{each}" for each in modules)}
    return sorted(found)


def _check_fits(own: Mapping[str, Any], checkpoint: Checkpoint, name: str, prefix: str) -> None:
    """Check that the tensors of a module have the names and shapes of this run's.

    Raises:
        CheckpointError: they do not.
    """
    found = _misfit(own[name], checkpoint.state[name], prefix)
    if found is None:
        return
    key, *shapes = found
    texts = ["absent" if shape is None else f"of shape {shape}" for shape in shapes]
    fitting = []
    for part in _names_in(checkpoint.state):
        section, path = _place_of(part, checkpoint)
        ours = own.get(section)
        if _is_network(ours) and _misfit(ours, checkpoint.state[section], path) is None:
            fitting.append(part)
    advice = (
        f"to take only parts that fit, give --parts {','.join(fitting)}"
        if fitting
        else "no part of it fits"
    )
    raise CheckpointError(
        f"the checkpoint {checkpoint.path} does not fit this policy: {name}.{key} is "
        f"{texts[0]} there, and {texts[1]} in the model of this run; {advice}",
        path=str(checkpoint.path),
        key=f"{name}.{key}",
        found=shapes[0],
        expected=shapes[1],
        known=fitting,
    )


def _misfit(own: Any, saved: Any, prefix: str) -> tuple[str, Any, Any] | None:
    """Return the first tensor of a module that differs, with the shapes in ``saved`` and ``own``.

    A shape is None if there is no such tensor. None if all tensors have the same shapes.
    """
    theirs, ours = (
        {key: tuple(np.shape(tensor)) for key, tensor in _under(each, prefix).items()}
        for each in (saved, own)
    )
    for key in sorted(ours.keys() | theirs.keys()):
        if theirs.get(key) != ours.get(key):
            return key, theirs.get(key), ours.get(key)
    return None


def _with_settings_of(own: Any, saved: Any) -> Any:
    """Return a saved policy state with the optimizer settings of another state.

    Settings are all entries of the ``param_groups`` of optimizers, such as learning rate, weight
    decay and betas, and the ``base_lrs`` of torch's schedulers. Moments and counts stay.

    Args:
        own: The state of a new policy, whose settings are those of its config.
        saved: A state of the same form; not changed.
    """
    if not (isinstance(own, Mapping) and isinstance(saved, Mapping)):
        return saved
    made = {key: _with_settings_of(own.get(key), value) for key, value in saved.items()}
    groups: list[Any] = [own.get("param_groups"), saved.get("param_groups")]
    if all(isinstance(each, list) for each in groups) and len(groups[0]) == len(groups[1]):
        made["param_groups"] = [
            {**ours, **{key: theirs[key] for key in ("params",) if key in theirs}}
            for ours, theirs in zip(*groups, strict=True)
        ]
    if "base_lrs" in own and "base_lrs" in saved:
        made["base_lrs"] = own["base_lrs"]
    return made
