"""Env managers whose envs run in child processes."""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.util import is_exiting
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Count, Positive
from dingsdk.envs.base import Capabilities, EnvManager, Timestep
from dingsdk.envs.guard import (
    ABNORMAL,
    EPISODE_INFO,
    ERROR,
    GuardedEnv,
    GuardedEnvFn,
    close_quietly,
    count_failure,
    plain_reward,
    restart_seed,
)
from dingsdk.envs.in_process import Played, SingleEnvManager, play, restart
from dingsdk.envs.spaces import ActionChecker, ObservationSchema
from dingsdk.errors import ConfigError, DingError, EnvError
from dingsdk.runtime.deadline import set_patience
from dingsdk.runtime.spawn import (
    check_guarded,
    how_it_ended,
    is_main_importable,
    signals_blocked,
    spawn_context,
)

_CLOSE_TIMEOUT_S = 4.0
"""How long the processes of envs may take to end; then they are killed."""
IMPORT_S = 300.0
"""How long a process may take to start and to import the code of its envs, on a busy machine."""
_CALLED = "called"
"""Key of an answer that holds the result of a called method; the others are env ids."""


class SubprocessEnvManager(SingleEnvManager):
    """Type ``subprocess``: groups of envs in child processes; can all that ``in_process`` can.

    A process steps its envs one after the other, all processes work at the same time, and ``step``
    waits for all envs that it was given. One message to a process steps all its envs, and one
    message has the results; only those of the dict form have the contents of ``info``.

    If a process ends or takes longer than its timeout, the episodes of its envs are dropped. The
    process is started again, up to ``max_retry`` times in a row. Processes are spawned: the code
    that makes the envs must be importable, and a script needs the ``__main__`` guard.
    """

    class Config(EnvManager.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            envs_per_process: Number of envs in each child process. None: the envs are spread over
                the CPU cores that this process may use; in ``async_subprocess`` it is one.
            step_timeout: Seconds that one step of a process may take.
            reset_timeout: Seconds that a process may take to make its envs (after its imports) or
                to reset them.
        """

        envs_per_process: Count | None = None
        step_timeout: Positive = 60.0
        reset_timeout: Positive = 60.0

    _saved = (*SingleEnvManager._saved, "_under_way", "_lost", "_answers", "_reset_kwargs")

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]) -> None:
        super().__init__(cfg, env_fns)
        ids, size = range(self._env_num), self.section.envs_per_process or self._group_size()
        self._groups = [_Group(list(ids[low : low + size])) for low in ids[::size]]
        self._group_of = [group for group in self._groups for _ in group.env_ids]
        # Groups that have not answered yet, by their pipe.
        self._busy: dict[Any, _Group] = {}
        # True for envs that are in a step, up to the call that returns its result.
        self._under_way = np.zeros(self._env_num, dtype=np.bool_)
        # By env id: why its process was lost; the next result of the env reports it.
        self._lost: dict[int, str] = {}
        self._answers: dict[Any, Any] = {}
        self._reset_kwargs: dict[int, Mapping[str, Any]] = {}

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        super().seed(seed, dynamic_seed)
        for group in self._groups:
            group.rebuilds = 0

    def _group_size(self) -> int:
        is_async = self.capabilities.asynchronous
        return 1 if is_async else math.ceil(self._env_num / len(os.sched_getaffinity(0)))

    def _running(self) -> NDArray[np.bool_]:
        is_running: NDArray[np.bool_] = ~(self._parked | self._under_way)
        for group in self._busy.values():
            is_running[group.env_ids] = False  # a process runs one command at a time
        return is_running

    def _play_all(self, actions: Mapping[int, Any], *, has_infos: bool) -> Iterable[Played]:
        self._wait(for_all=True)
        self._begin(actions, has_infos=has_infos)
        if self.meanwhile is not None:
            self.meanwhile()
        self._wait(for_all=True)
        return map(self._take, actions)

    def _begin(self, actions: Mapping[int, Any], *, has_infos: bool) -> None:
        """Start the steps of envs."""
        goes_on = self._go_on()
        self._under_way[list(actions)] = True
        for env_id in actions:
            self._answers.pop(env_id, None)
        lost = self._lost
        asked = {i: (action, goes_on[i]) for i, action in actions.items() if i not in lost}
        self._ask(asked, self.section.step_timeout, _step_envs, has_infos)

    def _ask(
        self, asked: Mapping[int, Any], timeout_s: float, command: Callable[..., Any], *more: Any
    ) -> None:
        """Send what is asked of each env to its process."""
        deadline = time.monotonic() + timeout_s
        by_group: dict[_Group, dict[int, Any]] = {}
        for env_id, each in asked.items():
            by_group.setdefault(self._group_of[env_id], {})[env_id] = each
        for group, of_group in by_group.items():
            group.ask((command, of_group, *more), deadline)
            self._busy[group.connection] = group

    def _take(self, env_id: int) -> Played:
        """Return the result of a step that has ended."""
        self._under_way[env_id] = False
        if (error := self._lost.pop(env_id, None)) is None:
            played: Played = self._answers.pop(env_id)
            return played
        nothing = plain_reward(np.zeros(self._player_num), self._player_num)
        obs, info = self._obs[env_id], {ABNORMAL: True, ERROR: error}
        return obs, nothing, False, False, info, obs, 0

    def _ended(self) -> list[int]:
        """Return the envs that have ended a step whose result was not returned yet."""
        known = self._answers.keys() | self._lost.keys()
        return [i for i in np.flatnonzero(self._under_way).tolist() if i in known]

    def _wait(self, *, for_all: bool) -> None:
        """Wait for the answers of all busy groups, or only until an env has ended its step.

        Raises:
            DingError: an env or a process failed too often; the manager is closed.
        """
        try:
            while self._busy:
                is_enough = not for_all and bool(self._ended())
                if not self._receive_some(is_waiting=not is_enough) and is_enough:
                    return
        except DingError:
            self.close()
            raise

    def _receive_some(self, *, is_waiting: bool) -> bool:
        """Receive answers, and replace groups that are late; return whether one has answered."""
        deadline = min(group.deadline for group in self._busy.values())
        wait_s = max(0.0, deadline - time.monotonic()) if is_waiting else 0.0
        answered = [self._busy.pop(each) for each in wait(list(self._busy), wait_s)]
        for group in answered:
            try:
                self._answers.update(group.answer())
            except ProcessLostError as error:
                self._replace(group, error)
        now = time.monotonic()
        for group in [group for group in self._busy.values() if group.deadline <= now]:
            self._replace(group, ProcessLostError(f"{group} gave no answer in time"))
        return bool(answered)

    def _count_episodes(self, env_ids: Sequence[int] | NDArray[np.int64]) -> None:
        super()._count_episodes(env_ids)
        for env_id in env_ids:
            self._group_of[env_id].failures_in_row = 0

    def _open(self) -> None:
        self._under_way[:] = False
        self._lost.clear()
        self._answers.clear()
        self._reset_kwargs.clear()
        for group in self._groups:
            group.failures_in_row = group.rebuilds = 0
        try:
            observations, actions, players = self._start(self._groups)
        except ProcessLostError as error:
            raise EnvError(
                f"the envs did not start: {error}; the limit of imports is {IMPORT_S:g} s, then "
                f"the limit of env_manager.reset_timeout is {self.section.reset_timeout:g} s",
                env_id=None,
            ) from error
        self._spaces = (ObservationSchema(observations), ActionChecker(actions))
        self._set_players(players)

    def _start(self, groups: Sequence[_Group]) -> Any:
        """Start the processes of groups, which make their envs.

        Returns:
            The observation space, the action space and the number of players of the first env.
        """
        deadline = time.monotonic() + IMPORT_S
        with signals_blocked():
            for group in groups:
                group.start(deadline)
        for group in groups:
            made = {i: GuardedEnvFn(self._env_fns[i], i, self.section) for i in group.env_ids}
            try:
                for each in (self._env_fns[env_id] for env_id in group.env_ids):
                    # pickle accepts what a notebook defines, although no process can import it.
                    if getattr(each, "__module__", "") == "__main__" and not is_main_importable():
                        raise TypeError(f"{each} is defined in a notebook or a shell")
                group.connection.send(made)
            except OSError:
                continue  # the process has ended, as its answer will show
            except Exception as error:
                raise ConfigError(
                    f"env_manager.type: the envs of {group} cannot be sent to a child process "
                    f"({error}); make them by an importable function or class, or use in_process",
                    path="env_manager.type",
                ) from error
        for group in groups:
            group.answer(wait=True)  # the process has finished its imports
            group.deadline = time.monotonic() + self.section.reset_timeout
        first, *_ = [group.answer(wait=True) for group in groups]
        return first

    def _discard(self) -> None:
        self._end(self._groups, _CLOSE_TIMEOUT_S)

    def _end(self, groups: Sequence[_Group], timeout_s: float) -> None:
        """End the processes of groups; those that still run after ``timeout_s`` are killed."""
        deadline = time.monotonic() + timeout_s
        living = [group for group in groups if group.process is not None]
        for group in living:
            self._busy.pop(group.connection, None)
            group.ask(None, deadline)
        for group in living:
            group.end()

    def _restart_all(self, kwargs: Mapping[int, Mapping[str, Any]]) -> Iterable[tuple[Any, int]]:
        self._wait(for_all=True)
        for env_id, given in kwargs.items():
            if own := {key: value for key, value in given.items() if key != "seed"}:
                self._reset_kwargs[env_id] = own
            self._lost.pop(env_id, None)
            self._answers.pop(env_id, None)
        self._under_way[list(kwargs)] = False
        self._ask(kwargs, self.section.reset_timeout, _restart_envs, not self._dynamic_seed)
        self._wait(for_all=True)
        for env_id in kwargs:
            # If the process was lost during the reset, its new envs were reset as well.
            is_lost = self._lost.pop(env_id, None) is not None
            yield (self._obs[env_id], 0) if is_lost else self._answers.pop(env_id)

    def _envs_state(self) -> Any:
        # Results of steps that are under way, which `_call` waits for, are part of the state.
        return {
            "envs": [self._call(env_id, "get_state") for env_id in range(self._env_num)],
            "groups": [[group.failures_in_row, group.rebuilds] for group in self._groups],
        }

    def _set_envs_state(self, state: Any) -> None:
        for env_id, each in enumerate(state["envs"]):
            self._call(env_id, "set_state", each)
        for group, counts in zip(self._groups, state["groups"], strict=True):
            group.failures_in_row, group.rebuilds = counts

    def _call(self, env_id: int, name: str, *args: Any) -> Any:
        self._check_open()
        self._wait(for_all=True)
        self._ask({env_id: (name, args)}, self.section.step_timeout, _call_env)
        self._wait(for_all=True)
        called = self._answers.pop(_CALLED, None)
        if called is None:  # the process was lost and replaced
            raise EnvError(f"{self._lost[env_id]}, when {name} was called", env_id=env_id)
        if "error" in called:
            raise called["error"]
        return called["changed"] if called["value"] is None else called["value"]

    def _replace(self, group: _Group, error: Exception) -> None:
        """Start a lost process again; its envs begin new episodes.

        Raises:
            EnvError: the process was lost too often in a row, or the program ends.
        """
        if is_exiting():
            # At its exit the program ends the processes of multiprocessing; this thread still runs.
            raise EnvError(f"{error}, because the program ends", env_id=None) from error
        self._failure_count += len(group.env_ids)
        group.failures_in_row += 1
        self._end([group], 0.0)
        env_id = group.env_ids[0] if len(group.env_ids) == 1 else None
        count_failure(error, str(group), group.failures_in_row, self.section, env_id)
        group.rebuilds += 1
        keep = not self._dynamic_seed
        kwargs = {
            # A guarded env uses another name for its own rebuilds.
            i: {
                **self._reset_kwargs.get(i, {}),
                "seed": restart_seed(self._seeds[i], group.rebuilds, keep, "rebuild_process"),
            }
            for i in group.env_ids
        }
        try:
            self._start([group])
            deadline = time.monotonic() + self.section.reset_timeout
            group.ask((_restart_envs, kwargs, keep), deadline)
            for i, (obs, _) in group.answer(wait=True).items():
                self._obs[i] = obs
        except ProcessLostError as again:
            self._replace(group, again)
        self._lost |= dict.fromkeys(group.env_ids, f"{type(error).__name__}: {error}")


class AsyncSubprocessEnvManager(SubprocessEnvManager):
    """Type ``async_subprocess``: ``step`` returns the envs that have ended their step.

    A slow env does not delay the others: it is not in ``ready_obs`` while it steps, and a later
    ``step`` of the other envs returns its result. ``step`` waits until an env is ready for an
    action. ``step_batch`` waits for all envs that it is given.
    """

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(asynchronous=True)

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """Start the steps of these envs; return all ended steps, also those of earlier calls.

        An empty ``actions`` waits for a step that is under way.
        """
        self._begin(self._checked(actions), has_infos=True)
        timesteps: dict[int, Timestep] = {}
        while self._under_way.any():
            self._wait(for_all=False)
            ended = self._ended()
            timesteps |= self._timesteps(ended, map(self._take, ended))
            if self._running().any():
                break
        return timesteps


class ProcessLostError(RuntimeError):
    """The process of a group of envs has ended, or did not answer in time."""


class _Failure(NamedTuple):
    """Answer of a process that ends, as its envs raised an error or cannot be used."""

    error: DingError
    text: str


@dataclass(eq=False)
class _Group:
    """The envs of one child process, and the pipe to it."""

    env_ids: list[int]
    process: Any = None
    connection: Connection = None  # type: ignore[assignment]
    deadline: float = 0.0
    failures_in_row: int = 0
    rebuilds: int = 0

    def __str__(self) -> str:
        first, last = self.env_ids[0], self.env_ids[-1]
        return f"the process of env {first}" + (f" to {last}" if last > first else "")

    def start(self, deadline: float) -> None:
        context = spawn_context("env_manager.type")
        self.deadline = deadline
        connection, theirs = context.Pipe()
        set_patience(connection, IMPORT_S)
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self.connection, self.process = connection, process

    def ask(self, command: Any, deadline: float) -> None:
        """Send a command."""
        self.deadline = deadline
        # If the process has ended, reading its answer reports it.
        with contextlib.suppress(OSError):
            self.connection.send(command)

    def answer(self, *, wait: bool = False) -> Any:
        """Return the answer of the process.

        Args:
            wait: Wait for the answer until the deadline; False: it has arrived.

        Raises:
            ProcessLostError: the process has ended or is late.
            ConfigError: the process would have run the user's script again.
            DingError: an error that its envs raised.
        """
        if wait and not self.connection.poll(max(0.0, self.deadline - time.monotonic())):
            raise ProcessLostError(f"{self} gave no answer in time")
        try:
            answer = self.connection.recv()
        except BlockingIOError:
            raise ProcessLostError(f"{self} stopped in the middle of its answer") from None
        except (EOFError, OSError):
            self.process.join(_CLOSE_TIMEOUT_S)
            code = self.process.exitcode
            check_guarded(code, "env_manager.type")
            raise ProcessLostError(f"{self} died: {how_it_ended(code)}") from None
        if isinstance(answer, _Failure):
            answer.error.add_note(f"In the child process:\n{answer.text}")
            raise answer.error
        return answer

    def end(self) -> None:
        """Wait for the end of the process until the deadline, then kill it."""
        self.process.join(max(0.0, self.deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        # The process object is not closed: multiprocessing joins it at the exit of this process, if
        # a daemon thread is here at that moment.
        self.connection.close()
        self.process = None


def _serve(connection: Connection) -> None:
    """Make the envs of a group, and run the manager's commands; runs in the child process."""
    envs: dict[int, GuardedEnv] = {}
    try:
        env_fns = connection.recv()  # imports the code of the envs
        connection.send(None)
        for env_id, env_fn in env_fns.items():
            envs[env_id] = env_fn()
        first = next(iter(envs.values()))
        _send(connection, (first.observation_space, first.action_space, first.player_num))
        while (command := connection.recv()) is not None:
            function, *args = command
            _send(connection, function(envs, *args))
    except EOFError:
        pass  # the manager's process has ended
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(error))
        if not isinstance(error, DingError):
            error = EnvError(f"{type(error).__name__}: {error}", env_id=None, traceback=text)
        with contextlib.suppress(OSError):
            connection.send(_Failure(error, error.facts.get("traceback", text)))
    finally:
        close_quietly(*envs.values())


def _send(connection: Connection, answer: Any) -> None:
    """Send an answer; raise EnvError if it cannot be pickled, so that a failure is sent instead."""
    try:
        connection.send(answer)  # which writes nothing if it cannot be pickled
    except OSError:
        raise  # the manager's process has ended
    except Exception as error:
        raise EnvError(
            f"an env gave a value that cannot be sent to the manager's process ({error}): "
            f"{answer} ; make it of data and of objects of importable classes, or use "
            "env_manager.type in_process",
            env_id=None,
        ) from error


def _step_envs(
    envs: Mapping[int, GuardedEnv], steps: Mapping[int, tuple[Any, bool]], has_infos: bool
) -> dict[int, Played]:
    """Step envs; their infos are cut to what the batched form needs unless ``has_infos``."""
    found: dict[int, Played] = {}
    for env_id, (action, goes_on) in steps.items():
        obs, reward, terminated, truncated, info, *rest = play(envs[env_id], action, goes_on)
        if not has_infos:
            info = {key: info[key] for key in (ABNORMAL, EPISODE_INFO) if key in info}
        found[env_id] = (obs, reward, terminated, truncated, info, rest[0], rest[1])
    return found


def _restart_envs(
    envs: Mapping[int, GuardedEnv], kwargs: Mapping[int, Mapping[str, Any]], keep_seed: bool
) -> dict[int, tuple[Any, int]]:
    return {env_id: restart(envs[env_id], keep_seed, given) for env_id, given in kwargs.items()}


def _call_env(
    envs: Mapping[int, GuardedEnv], asked: Mapping[int, tuple[str, Sequence[Any]]]
) -> dict[str, Any]:
    """Call a method of an env; return its value, and its first argument after the call."""
    ((env_id, (name, args)),) = asked.items()
    try:
        value = envs[env_id].call(name, *args)
        return {_CALLED: {"value": value, "changed": args[0] if args else None}}
    except DingError as error:
        return {_CALLED: {"error": error}}
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        why = f"{name} of the env raised {type(error).__name__}: {error}"
        return {_CALLED: {"error": EnvError(why, env_id=None, traceback=text)}}
