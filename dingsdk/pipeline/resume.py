"""Saves runs so that they can be resumed, and resumes them.

A run in parallel mode is resumed from the journal of its coordinator and the newest checkpoint of
its learner. A serial run makes saves. A save is a folder ``resume/<number>`` of the run folder:
``state.safetensors`` with the state of every part, and ``buffer`` with the rows of the replay
buffer. The state is written last, so a folder with a state is complete. The two newest saves are
kept. Segments of rows that did not change are shared between saves by hard links.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import structs

from dingsdk import __version__
from dingsdk.config import apply_set
from dingsdk.config.files import check_sets
from dingsdk.config.plain import flatten, to_plain
from dingsdk.data import decode_safetensors, encode_safetensors
from dingsdk.data.seeding import derive_seed
from dingsdk.envs import seed_envs
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMissingError,
    CheckpointVersionError,
    ConfigError,
    DataCorruptError,
    DataMissingError,
    DataVersionError,
    DingError,
    NotSavableError,
    NotSetError,
    StorageFullError,
    error_text,
    spelling,
)
from dingsdk.pipeline.context import Evaluation, RunContext
from dingsdk.pipeline.run_folder import (
    CONFIG_NAME,
    JOURNAL_FOLDER,
    check_run_folder,
    no_run_text,
    read_config,
    versions,
)
from dingsdk.pipeline.saved_run import PlayerState, RunState, Save, SavedRun
from dingsdk.pipeline.signals import PATIENCE_S
from dingsdk.pipeline.team import Team, Workers
from dingsdk.plugins.discovery import version_of
from dingsdk.policy.modes import attribute_of
from dingsdk.runtime import Folder
from dingsdk.runtime.files import Patience, guarded
from dingsdk.worker.coordinator.journal import OWNER_NAME, Journal
from dingsdk.worker.learner.checkpoint import save_pause
from dingsdk.worker.replay_server.client import FOLDER as REPLAY_FOLDER
from dingsdk.worker.run_id import run_id

RESUME_FOLDER = "resume"
STATE_NAME = "state.safetensors"
CHANGEABLE = (
    "env.stop_value",
    "system.max_env_steps",
    "system.save_every",
    "policy.learn.learner.train_iterations",
    "system.transport.address",
)
"""Keys that may change when a run is resumed: they do not change what the run computes."""

_PLACE = (
    "system.transport.host",
    "system.transport.port",
    "policy.eval.evaluator.stop_value",
)
_KIND = "run-state"
_BUFFER = "buffer"
_MAX_BYTES = 64 << 30
"""Largest saved state of a run."""
_KEPT = 2
"""Number of saves that are kept; older ones are deleted."""
_AUTO_S = 60.0
"""With ``save_every: auto``, the shortest time between two saves."""
_log = logging.getLogger(__name__)


def has_journal(run: Path) -> bool:
    """Whether the folder is of a run in parallel mode that can be resumed."""
    return os.path.isfile(run / JOURNAL_FOLDER / OWNER_NAME)


def find_run(run: Path) -> SavedRun:
    """Read the journal of a run in parallel mode, or the save that ``find_save`` returns.

    Raises:
        CheckpointError: the journal or the save cannot be used.
        RunFolderError: as ``check_run_folder``.
    """
    is_save = os.path.isfile(run / STATE_NAME)
    run_dir = run.parent.parent if is_save else run
    if os.path.isdir(run_dir):
        check_run_folder(run_dir)
    with guarded(run_dir):
        if is_save or not has_journal(run):
            return find_save(run)
        own = run_id(run, create=False)
        with Folder(run / JOURNAL_FOLDER, create=False) as folder:
            Journal(folder, run=own).read()
        if (run / REPLAY_FOLDER).is_dir():
            from dingsdk.worker.replay_server.served_buffer import check_run

            with Folder(run / REPLAY_FOLDER, create=False) as folder:
                check_run(folder, own)
        return SavedRun(run, read_config(run))


def find_unfinished(run: Path, cfg: Any) -> SavedRun | None:
    """Return the run in this folder, or None if there is no run that can be resumed.

    Raises:
        ConfigError: its config differs from ``cfg`` in a key that may not change.
    """
    if not has_journal(run):
        return None
    found = find_run(run)
    for path, before, now in _differences(found.config, cfg):
        raise ConfigError(
            f"{run} holds a run with {path}: {before!r}, not {now!r}; give the same config to go "
            "on with it, or another folder",
            path=path,
        )
    return found


def warn_of_other_config(run: Path, worker_id: str, cfg: Any) -> None:
    """Log the keys whose values in a worker's config are not those of its run's.

    Keys of which a worker may have its own values are left out: of ``system``, and the modules that
    tasks may import. So are the spaces, which follow from the env.
    """
    own = ("system.", "seed", "exp_name", "env.observation_space", "env.action_space")
    with contextlib.suppress(ConfigError):  # another host may not see the file yet
        found = [
            f"{path}: {now!r:.80}, and the run has {before!r:.80}"
            for path, before, now in _differences(read_config(run), cfg)
            if not (path.startswith(own) or path.endswith(".import_names"))
        ]
        if found:
            _log.warning(
                "the config of %s is not that of the run, so give it that one: it has %s",
                worker_id,
                "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if found[5:] else ""),
            )


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that differs but may not change, with both values.

    The types of parts come first, because other keys differ if they do.
    """
    flat_before, flat_now = flatten(to_plain(before)), flatten(to_plain(now))

    def rank(path: str) -> tuple[bool, int, str]:
        is_type = path.rpartition(".")[2] == "type"
        return not is_type, path.count(".") if is_type else 0, path

    for path in sorted(flat_before.keys() | flat_now.keys(), key=rank):
        values = flat_before.get(path), flat_now.get(path)
        if values[0] != values[1] and path not in (*CHANGEABLE, *_PLACE):
            yield path, *values


def find_save(run: Path) -> Save:
    """Read the newest save of a run folder; or, if ``run`` is the folder of a save, that save.

    Raises:
        CheckpointMissingError: there is no save.
        CheckpointCorruptError: the save is damaged; the message names an older one, if any.
        CheckpointVersionError: another version of dingsdk wrote it.
        CheckpointError: the save is not of the run in this folder.
    """
    found = [run] if os.path.isfile(run / STATE_NAME) else _saves(run / RESUME_FOLDER)
    if not found:
        raise CheckpointMissingError(
            no_run_text(run)
            or f"{run} cannot be resumed: it has no save and no journal. A serial run has none if "
            "it ended before its first save, or if system.save_every is null; a parallel run has "
            "none if it reached its stop value, or if system.journal is off (as with in_memory)",
            path=str(run),
        )
    save = _read(found[-1])
    if (own := run_id(save.run_dir, create=False)) != save.state.run:
        raise CheckpointError(
            f"the save {save.path} is of another run: its id is {save.state.run!r:.80}, and that "
            f"of this run is {own!r}; put the saves of this run there",
            path=str(save.path),
            found=save.state.run,
            expected=own,
        )
    path = save.run_dir / CONFIG_NAME
    now = read_config(save.run_dir) if path.is_file() else save.config
    for key, saved, found in _differences(save.config, now):
        raise CheckpointError(
            f"the save {save.path} is of another run: it has {key}: {saved!r}, and {path} has "
            f"{found!r}; put the saves of this run there",
            path=str(save.path),
            key=key,
        )
    return save


def _saves(folder: Path) -> list[Path]:
    """Return the folders of complete saves, oldest first."""
    if not os.path.isdir(folder):
        return []
    numbered = [path for path in folder.iterdir() if path.name.isdecimal()]
    # What is not a folder or file is not left out: reading it raises an error that names it.
    complete = (
        each for each in numbered if not each.is_dir() or os.path.lexists(each / STATE_NAME)
    )
    return sorted(complete, key=_number)


def _number(path: Path) -> int:
    return int(path.name) if path.name.isdecimal() else 0


def _read(path: Path) -> Save:
    try:
        with Folder(path, create=False) as folder:
            content = folder.view(STATE_NAME, _MAX_BYTES)
            state = msgspec.convert(decode_safetensors(_KIND, content), RunState, strict=True)
    except (DataCorruptError, DataMissingError, DataVersionError, msgspec.ValidationError) as error:
        raise _unusable(path, error) from error
    return Save(path.parent.parent, state.config, path, _number(path), state)


def _unusable(path: Path, error: DingError | msgspec.ValidationError) -> CheckpointError:
    older = [each for each in _saves(path.parent) if _number(each) < _number(path)]
    advice = f"; resume from {older[-1]} instead" if older else ""
    text = f"the save {path} cannot be used: {error}{advice}"
    if isinstance(error, DataVersionError):
        return CheckpointVersionError(text, path=str(path), **error.facts)
    return CheckpointCorruptError(text, path=str(path))


@contextlib.contextmanager
def _restoring(part: str, save: Save) -> Iterator[None]:
    """Convert an error of a part that cannot read its state: another version of it wrote the state.

    Raises:
        CheckpointVersionError: in place of the error.
    """
    try:
        yield
    except DingError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        found = save.state.versions.get("dingsdk", "of unknown version")
        raise CheckpointVersionError(
            f"the save {save.path} does not fit the {part} of this installation "
            f"({error_text(error)}). It was written by dingsdk {found}, perhaps by "
            "another version of its source: resume the run with that one, or begin a new run with "
            "the weights in ckpt",
            path=str(save.path),
            found=found,
            expected=__version__,
        ) from error


def changed_config(save: SavedRun, sets: Sequence[str]) -> dict[str, Any]:
    """Return the config of a saved run with overrides.

    Raises:
        ConfigError: an override is of a key that cannot change.
    """
    changed = copy.deepcopy(save.config)
    for assignment in check_sets(sets):
        path = assignment.partition("=")[0].strip()
        if path not in CHANGEABLE:
            # For a key that the config has, no other is proposed.
            nearest, hint = spelling(path, () if path in flatten(save.config) else CHANGEABLE)
            raise ConfigError(
                f"{path} cannot change when a run is resumed{hint} Keys that can: "
                f"{', '.join(CHANGEABLE)}",
                path=path,
                known=list(CHANGEABLE),
                nearest=nearest,
            )
        apply_set(changed, assignment)
        if path == "env.stop_value":
            changed["policy"]["eval"]["evaluator"]["stop_value"] = changed["env"]["stop_value"]
    return changed


class RunSaver:
    """Saves a serial run at regular intervals.

    Attributes:
        inexact: Lines that say in what a resumed run will differ from an uninterrupted one.
    """

    def __init__(self, context: RunContext, team: Team) -> None:
        self._context = context
        self._team = team
        self._every = context.cfg.system.save_every
        self._folder = context.run_dir / RESUME_FOLDER
        self._last = max((_number(path) for path in _saves(self._folder)), default=0)
        self._due_at = time.monotonic() + self._pause(0.0)
        self._saved_at: list[int] = []
        self.inexact = () if self._every is None else tuple(_inexact(context.cfg, team.members[0]))

    def save_if_due(self) -> None:
        """Save if the interval has passed; errors are logged, and training continues."""
        if time.monotonic() >= self._due_at:
            self.save()

    def save(self, *, is_last: bool = False) -> None:
        """Save now, unless saving is off, or nothing has changed since the last save.

        Args:
            is_last: Whether the run ends then: the save waits for room on the disk.

        Raises:
            StorageFullError: there was no room for the last save for too long.
        """
        place = [len(self._context.recorder.all_evaluations)]
        for each in self._team.members:
            counts = (each.learner.train_iter, each.collector.envstep, each.updates_left)
            place += map(int, counts)
        if self._every is None or place == self._saved_at:
            return
        began = time.monotonic()
        try:
            if is_last:
                limit_s = self._context.cfg.system.coordinator.storage_timeout_s
                Patience(limit_s, self._wait_for_room)(lambda: self._write(self._last + 1))
            else:
                self._write(self._last + 1)
            self._saved_at = place
        except DingError as error:
            if is_last and isinstance(error, StorageFullError):
                raise
            _log.warning("the run cannot be saved for resuming: %s", error)
        now = time.monotonic()
        self._due_at = now + self._pause(now - began)

    def _wait_for_room(self, pause_s: float) -> bool:
        """Wait, also after a signal, as the run could not be resumed without its last save."""
        if self._context.stop.is_set():
            self._context.signals.break_after(pause_s + PATIENCE_S)  # not during the wait
        time.sleep(pause_s)
        return False

    def _pause(self, took_s: float) -> float:
        if self._every == "auto":
            return save_pause(_AUTO_S, took_s)
        return float("inf") if self._every is None else float(self._every)

    def _write(self, number: int) -> None:
        path = self._folder / f"{number:06d}"
        with Folder(self._folder) as folder:
            folder.remove_tree(path.name)
            for index, each in enumerate(self._team.members):
                buffer = path / _buffer_name(index)
                _link_files(self._folder / f"{self._last:06d}" / buffer.name, buffer)
                each.buffer.save_data(str(buffer))
            content = encode_safetensors(_KIND, self._state().plain())
            with Folder(path) as save:
                save.write_atomic(STATE_NAME, [content], durable=True)
            folder.sync()
            self._last = number
            kept = {each.name for each in _saves(self._folder)[-_KEPT:]}
            for name in folder.names():
                if name.isdecimal() and name not in kept:
                    folder.remove_tree(name)

    def _state(self) -> RunState:
        context, recorder = self._context, self._context.recorder
        first, *others = self._team.members
        return RunState(
            **structs.asdict(_state_of(first)),
            run=run_id(context.run_dir),
            config=to_plain(context.cfg),
            versions=_versions(context.cfg),
            turn=self._team.turn,
            others={f"{index}": _state_of(each) for index, each in enumerate(others, start=1)},
            streams={
                "python": random.getstate(),
                "numpy": np.random.get_state(legacy=False),
                "torch": torch.get_rng_state(),
            },
            evaluations=[dataclasses.asdict(each) for each in recorder.all_evaluations],
            training=recorder.training,
            elapsed_s=recorder.elapsed_s,
        )

    def resume(self, save: Save) -> None:
        """Restore the state of a save in parts that were just built."""
        context, state = self._context, save.state
        for name, version in _versions(context.cfg).items():
            if version != state.versions.get(name):
                _log.warning(
                    "saved with %s %s, the run continues with %s: results may differ",
                    name,
                    state.versions.get(name),
                    version,
                )
        for index, workers in enumerate(self._team.members):
            self._resume_player(workers, state.others[f"{index}"] if index else state, save, index)
        self._team.turn = state.turn
        evaluations = [Evaluation(**each) for each in state.evaluations]
        context.recorder.resume(evaluations, state.elapsed_s, state.training)
        random.setstate(state.streams["python"])
        np.random.set_state(state.streams["numpy"])
        torch.set_rng_state(state.streams["torch"])

    def _resume_player(self, workers: Workers, state: PlayerState, save: Save, index: int) -> None:
        policy = workers.learner.policy
        with _restoring("policy", save):
            policy.load_state_dict(state.policy["state"])
            if state.policy["acting_state"] is not None:
                policy.set_attribute("acting_state", state.policy["acting_state"])
        resume_buffer = getattr(workers.buffer, "resume_data", workers.buffer.load_data)
        try:
            resume_buffer(str(save.path / _buffer_name(index)))
        except (CheckpointCorruptError, CheckpointMissingError) as error:
            raise _unusable(save.path, error) from error
        branch: list[str | int] = ["resume", save.number, *([index] if index else [])]
        for name in ("collector", "evaluator"):
            with _restoring(name, save):
                is_continued = self._resume_worker(getattr(workers, name), name, state, branch)
            if name == "collector" and not is_continued:
                # The collector dropped the rest of an episode whose first steps are in the buffer.
                workers.buffer.end_trajectory()
        for name in ("learner", "commander"):
            if name in state.parts:
                with _restoring(name, save):
                    getattr(workers, name).load_state_dict(state.parts[name])
        workers.updates_left = state.updates_left
        workers.collected, workers.trained = state.samples["collected"], state.samples["trained"]
        workers.evicted_before = Counter(state.samples["evicted"])
        workers.preloaded = state.samples.get("preloaded", 0)
        # The buffer's counts at this point are of the saved run or of loading: cancel them out.
        counted = Counter(workers.samples().evicted) - workers.evicted_before
        workers.evicted_before.subtract(counted)

    def _resume_worker(
        self, worker: Any, name: str, state: PlayerState, branch: Sequence[str | int]
    ) -> bool:
        """Restore a collector or evaluator; return whether it continues its episodes."""
        if state.envs[name] is not None:
            worker.env.set_state(state.envs[name])
        if name in state.parts:
            worker.load_state_dict(state.parts[name])
        has_env = _env_of(worker) is not None
        is_restored = state.envs[name] is not None or not has_env
        is_continued = is_restored and getattr(worker, "resumes", False)
        if not is_continued and has_env:
            # New episodes begin, with other seeds than those that the run began with.
            seed_envs(worker.env, derive_seed(self._context.cfg.seed, *branch), name)
            worker.reset_env()
        return is_continued


def _state_of(workers: Workers) -> PlayerState:
    return PlayerState(
        parts={
            name: part.state_dict()
            for name in ("learner", "collector", "evaluator", "commander")
            if hasattr(part := getattr(workers, name), "state_dict")
        },
        envs={name: _envs_state(getattr(workers, name)) for name in ("collector", "evaluator")},
        policy={
            "state": dict(workers.learner.policy.state_dict()),
            "acting_state": attribute_of(workers.learner.policy, "acting_state"),
        },
        updates_left=workers.updates_left,
        samples=dataclasses.asdict(workers.samples()),
    )


def _buffer_name(index: int) -> str:
    """Return the name of the folder with the replay buffer of a player, by the player's index."""
    return f"{_BUFFER}-{index}" if index else _BUFFER


def _env_of(worker: Any) -> Any:
    """Return the env manager of a worker, or None if it has none."""
    try:
        env = worker.env
    except (AttributeError, NotSetError):
        return None
    return env if hasattr(env, "get_state") else None  # a metric evaluator has data instead


def _envs_state(worker: Any) -> dict[str, Any] | None:
    env, state = _env_of(worker), None
    with contextlib.suppress(NotSavableError):
        state = None if env is None else env.get_state()
    return state


def _inexact(cfg: Any, workers: Workers) -> list[str]:
    """Return lines that say in what a resumed run will differ."""
    found = []
    for name in ("collector", "evaluator"):
        worker = getattr(workers, name)
        env = _env_of(worker)
        if env is None:
            continue
        try:
            env.get_state()
        except NotSavableError as error:
            found.append(f"the envs of the {name} begin new episodes with other seeds: {error}")
        else:
            if not getattr(worker, "resumes", False):
                found.append(f"the {name} {type(worker).__name__} begins new episodes")
    if attribute_of(workers.learner.policy, "acting_state") is None:
        found.append(
            f"the policy {cfg.policy.type} has no attribute acting_state to save, with its random "
            "numbers and recurrent states"
        )
    if cfg.policy.eval.evaluator.get("eval_interval_s") is not None:
        found.append("policy.eval.evaluator.eval_interval_s goes by the clock")
    return found


def _versions(cfg: Any) -> dict[str, str]:
    return {
        **versions(),
        "numpy": version_of("numpy") or "",
        "machine": platform.machine(),
        "torch threads": str(cfg.system.torch_threads),
    }


def _link_files(old: Path, new: Path) -> None:
    """Hard-link the files of ``old`` into ``new``, so that unchanged files are shared."""
    with Folder(new):
        pass
    if not old.is_dir():
        return
    with Folder(old, create=False) as folder:
        names = folder.names()
    for name in names:
        # Without hard links, all rows are written again.
        with contextlib.suppress(OSError):
            os.link(old / name, new / name, follow_symlinks=False)
