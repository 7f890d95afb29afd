"""Where a new run gets its first weights from, if not from its seed: ``dingsdk train --from``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dingsdk.config.plain import find, put
from dingsdk.errors import ConfigError
from dingsdk.pipeline.run_folder import find_checkpoints, run_path

_HOOK = "policy.learn.learner.hook.load_ckpt_before_run"
_SUFFIX = ".safetensors"


def begin_from(
    user: dict[str, Any],
    run: str | os.PathLike[str],
    keep: Sequence[str] = (),
    parts: Sequence[str] | None = None,
) -> None:
    """Let the run of a user's config begin with weights of another run.

    Args:
        user: The config; its learner gets the hook that loads the checkpoint.
        run: A run folder, for its best checkpoint or else the newest; or a checkpoint's file.
        keep: ``optimizer`` and ``counters``: what else is taken.
        parts: Parts of the model to take, by module path; None for all.

    Raises:
        CheckpointMissingError: there is no checkpoint.
        ConfigError: the config loads a checkpoint itself.
    """
    if find(user, _HOOK):
        raise ConfigError(
            f"the config loads a checkpoint itself, by {_HOOK}; leave that out, or the run to "
            "start from",
            path=_HOOK,
        )
    # The hook checks its arguments: anything but a list is left for it to refuse.
    args: dict[str, Any] = {"load_path": str(_checkpoint_of(run_path(run)).absolute())}
    args["keep"] = list(keep) if isinstance(keep, tuple) else keep
    if parts is not None:
        args["parts"] = list(parts) if isinstance(parts, tuple) else parts
    put(user, _HOOK, {"priority": 20, "ext_args": args})


def origin_of(cfg: Any) -> dict[str, Any] | None:
    """Return the checkpoint that a compiled config begins with, as ``result.json`` records it."""
    from dingsdk.worker.learner.hooks import loading_hook

    hook = loading_hook(cfg.policy.learn.learner.get("hook") or {})
    if hook is None:
        return None
    args = hook.args
    return {"checkpoint": args.load_path, "keep": list(args.keep), "parts": args.parts}


def without_loading(learner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of a learner for a resumed run, which has weights of its own.

    Its hooks load no weights, so that the run can be resumed if the checkpoint is gone. They stay
    in their places. A hook that also loads counters is not changed: those tell how many env steps
    are not of this run.
    """
    hooks: dict[str, Any] = dict(learner.get("hook") or {})
    for name, hook in hooks.items():
        args = hook.get("ext_args") if isinstance(hook, Mapping) else None
        if isinstance(args, Mapping) and "counters" not in args.get("keep", ["counters"]):
            hooks[name] = {**hook, "ext_args": {**args, "load_path": ""}}
    return {**learner, "hook": hooks}


def _checkpoint_of(path: Path) -> Path:
    """Return the file of the best checkpoint of a run, or of the newest."""
    from dingsdk.pipeline.predict import open_run

    if path.is_file() or path.suffix == _SUFFIX:
        return path
    which = "best" if "best" in find_checkpoints(path) else "latest"
    return open_run(path, which)[1].path
