"""Env managers whose envs run in child processes that share memory with this one."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import is_exiting
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Count, Positive
from dingsdk.data.pytree import map_leaves, part_of
from dingsdk.envs.base import EnvManager
from dingsdk.envs.guard import (
    ERROR,
    GuardedEnv,
    close_quietly,
    count_failure,
)
from dingsdk.envs.last_info import ABNORMAL, EPISODE_INFO
from dingsdk.envs.spaces import ActionChecker, Obs, ObservationSchema
from dingsdk.envs.steps import Capabilities, StepColumns, Timestep, step_columns
from dingsdk.errors import ConfigError, DingError, EnvError, error_text, message_of, traceback_text
from dingsdk.plugins import default_manager
from dingsdk.plugins.kinds import COMM_KINDS
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

# Commands to a process. Its answer to a step is an empty message, unless there are infos.
_STEP, _STEP_WITH_INFOS, _RESET, _CALL, _CLOSE = b"s", b"i", b"r", b"a", b"c"
_DATA = b"d"
"""An answer whose next message is an object."""
_CALLED = "called"
"""Key of an answer that holds the result of a called method."""
# Columns of the board that say how a step ended.
_RESULTS = ("reward", "terminated", "truncated", "abnormal")


class SubprocessEnvManager(EnvManager):
    """Type ``subprocess``: groups of envs in child processes; can all that ``in_process`` can.

    Observations and actions are in shared memory, so that a step pickles nothing; only the dict
    form sends the contents of ``info``. A process steps its envs one after the other, all processes
    work at the same time, and ``step`` waits for all envs that it was given.

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
            reset_timeout: Seconds that a process may take to make its envs, after it has imported
                the functions that make them, or to reset its envs.
        """

        envs_per_process: Count | None = None
        step_timeout: Positive = 60.0
        reset_timeout: Positive = 60.0

    _saved = (*EnvManager._saved, "_under_way", "_lost", "_infos", "_reset_kwargs")

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]) -> None:
        super().__init__(cfg, env_fns)
        ids, size = range(self._env_num), self.section.envs_per_process
        if size is None:
            is_async, cores = self.capabilities.asynchronous, len(os.sched_getaffinity(0))
            size = 1 if is_async else math.ceil(self._env_num / cores)
        self._groups = [_Group(list(ids[low : low + size])) for low in ids[::size]]
        self._group_of = [group for group in self._groups for _ in group.env_ids]
        self._memory: SharedMemory | None = None
        self._board: Any = None
        self._poll = select.poll()
        self._by_descriptor: dict[int, _Group] = {}
        # Groups that have not answered yet, by the file descriptor of their pipe.
        self._busy: dict[int, _Group] = {}
        # True for envs that are in a step, up to the call that returns its result.
        self._under_way = np.zeros(self._env_num, dtype=np.bool_)
        # True for envs that waited for an action when their process was lost; their next step
        # reports the loss.
        self._lost = np.zeros(self._env_num, dtype=np.bool_)
        # Infos by env id, and under _CALLED the result of a called method.
        self._infos: dict[Any, Any] = {}
        self._reset_kwargs: dict[int, Mapping[str, Any]] = {}

    def current_obs(self) -> Obs:
        self._check_open()
        return map_leaves(np.array, self._board.obs)

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        self._begin(actions)
        self._wait(for_all=True)
        return self._timesteps()

    def step_batch(
        self, actions: NDArray[Any], env_ids: NDArray[np.int64] | None = None
    ) -> StepColumns:
        self._check_open()
        self._wait(for_all=True)
        if env_ids is None:
            env_ids = np.arange(self._env_num)
        else:
            self._check_running(env_ids.tolist())
        self._board.actions[env_ids] = self._spaces[1].batch(actions, len(env_ids))
        self._send(env_ids[~self._episodes.parked[env_ids]], _STEP)
        self._wait(for_all=True)
        return self._take(env_ids)[0]

    def _running(self) -> NDArray[np.bool_]:
        is_running: NDArray[np.bool_] = ~(self._episodes.parked | self._under_way)
        for group in self._busy.values():
            is_running[group.env_ids] = False  # a process runs one command at a time
        return is_running

    def _begin(self, actions: Mapping[int, Any]) -> None:
        """Check actions in dict form, and start their steps."""
        for env_id, action in self._checked(actions).items():
            self._board.actions[env_id] = action
        self._send(np.array(list(actions), dtype=np.int64), _STEP_WITH_INFOS)

    def _send(self, env_ids: NDArray[np.int64], command: bytes) -> None:
        """Start the steps of envs whose actions are on the board."""
        self._under_way[env_ids] = True
        asked = env_ids[~self._lost[env_ids]]
        self._lost[env_ids] = False
        self._board.asked[asked] = True
        self._board.goes_on[asked] = self._episodes.goes_on(asked)
        groups: Iterable[_Group] = self._groups
        if len(asked) < self._env_num:
            groups = dict.fromkeys(self._group_of[env_id] for env_id in asked.tolist())
        deadline = time.monotonic() + self.section.step_timeout
        for group in groups:
            self._busy[group.ask(command, deadline)] = group
        if self.meanwhile is not None:
            self.meanwhile()

    def _ended(self) -> NDArray[np.bool_]:
        """Return which envs have ended a step whose result was not returned yet."""
        ended: NDArray[np.bool_] = self._under_way & ~self._board.asked
        return ended

    def _wait(self, *, for_all: bool) -> None:
        """Wait for the answers of all busy groups, or only until an env has ended its step.

        Raises:
            DingError: an env or a process failed too often; the manager is closed.
        """
        try:
            while self._busy:
                is_enough = not for_all and self._ended().any()
                deadline = min(group.deadline for group in self._busy.values())
                wait_s = 0.0 if is_enough else max(0.0, deadline - time.monotonic())
                answers = self._poll.poll(math.ceil(wait_s * 1000))
                for descriptor, _ in answers:
                    # If the process was not asked for anything, this means that it has ended.
                    self._receive(self._by_descriptor[descriptor])
                now = time.monotonic()
                for group in [group for group in self._busy.values() if group.deadline <= now]:
                    self._replace(group, ProcessLostError(f"{group} gave no answer in time"))
                if is_enough and not answers:
                    return
        except DingError:
            self.close()
            raise

    def _receive(self, group: _Group) -> None:
        """Process the answer of a group."""
        self._busy.pop(group.connection.fileno(), None)
        try:
            self._infos.update(group.answer())
        except ProcessLostError as error:
            self._replace(group, error)
            return
        asked = [env_id for env_id in group.env_ids if self._board.asked[env_id]]
        self._board.asked[asked] = False
        self._failure_count += int(self._board.failures[asked].sum())

    def _take(self, env_ids: NDArray[np.int64]) -> tuple[StepColumns, dict[int, dict[str, Any]]]:
        """Return the results and the infos of envs that have ended their step or are parked."""
        board, schema = self._board, self._spaces[0]
        self._under_way[env_ids] = False
        infos = {i: self._infos.pop(i) for i in env_ids.tolist() if i in self._infos}
        obs = final_obs = part_of(board.obs, env_ids)
        reward, terminated, truncated, abnormal = (
            column[env_ids]
            for column in (board.reward, board.terminated, board.truncated, board.abnormal)
        )
        parked = self._episodes.parked[env_ids]
        abnormal &= ~parked
        valid = ~(parked | abnormal)
        rows = np.flatnonzero((terminated | truncated) & valid)
        episode_info = {}
        if rows.size:
            ended = env_ids[rows]
            last = [part_of(board.final_obs, env_id) for env_id in ended]
            final_obs = schema.replace(obs, rows.tolist(), last)
            self._episodes.end(ended)
            for row, env_id in zip(rows.tolist(), ended.tolist(), strict=True):
                self._group_of[env_id].failures_in_row = 0
                if info := infos.get(env_id, {}).get(EPISODE_INFO):
                    episode_info[row] = info
        if self._bounds.is_on:
            self._bounds.look(self._spaces[0], [final_obs])
        step = step_columns(
            obs, final_obs, reward, terminated, truncated, valid, abnormal, episode_info
        )
        return step, infos

    def _timesteps(self) -> dict[int, Timestep]:
        """Return the results of all envs that have ended their step, in dict form."""
        ids = np.flatnonzero(self._ended())
        if not ids.size:
            return {}
        columns, infos = self._take(ids)
        return {
            env_id: self._episodes.timestep_of(columns, row, env_id, infos.get(env_id, {}))
            for row, env_id in enumerate(ids.tolist())
        }

    def _open(self) -> None:
        self._under_way[:] = self._lost[:] = False
        self._infos.clear()
        self._reset_kwargs.clear()
        for group in self._groups:
            group.failures_in_row = 0
        try:
            self._start(self._groups)
        except ProcessLostError as error:
            raise EnvError(
                f"the envs did not start: {error}; the limits are {IMPORT_S:g} s for imports and "
                f"then env_manager.reset_timeout, {self.section.reset_timeout:g} s, to make envs",
                env_id=None,
            ) from error

    def _start(self, groups: Sequence[_Group]) -> None:
        """Start the processes of groups, which make their envs; the first one sets the spaces."""
        deadline = time.monotonic() + IMPORT_S
        with signals_blocked():
            for group in groups:
                group.start(deadline)
                self._by_descriptor[group.connection.fileno()] = group
                self._poll.register(group.connection, select.POLLIN)
        for group in groups:
            env_fns = {env_id: self._env_fns[env_id] for env_id in group.env_ids}
            try:
                for each in env_fns.values():
                    # pickle accepts what a notebook defines, although no process can import it.
                    if getattr(each, "__module__", "") == "__main__" and not is_main_importable():
                        raise TypeError(f"{each} is defined in a notebook or a shell")
                # Wrappers are made by type key: the child needs the types that are registered
                # here. Transports import torch: 200 MB and seconds for each process.
                group.connection.send(default_manager().snapshot(without=COMM_KINDS))
                group.connection.send((self._env_num, self.section, env_fns))
            except OSError:
                continue  # the process has ended, as its answer will show
            except Exception as error:
                raise ConfigError(
                    f"env_manager.type: the envs of {group} cannot be sent to a child process "
                    f"({message_of(error)}); make them by an importable function or class, or use "
                    "in_process",
                    path="env_manager.type",
                ) from error
        for group in groups:
            group.answer(wait=True)  # it has imported the code of its envs
            group.deadline = time.monotonic() + self.section.reset_timeout
            spaces = group.answer(wait=True)
            if self._memory is None:
                schema, checker = ObservationSchema(spaces[0]), ActionChecker(spaces[1])
                self._episodes.set_players(spaces[2])
                self._spaces = (schema, checker)
                shape = (self._env_num, *self._episodes.reward_shape)
                size = _Board(schema, checker, shape).size
                self._memory = SharedMemory(create=True, size=size)
                self._board = _Board(schema, checker, shape, self._memory.buf)
            with contextlib.suppress(OSError):
                group.connection.send(self._memory.name)

    def _discard(self) -> None:
        self._end(self._groups, _CLOSE_TIMEOUT_S)
        self._board = None
        if self._memory is not None:
            self._memory.close()
            self._memory.unlink()
            self._memory = None

    def _end(self, groups: Sequence[_Group], timeout_s: float) -> None:
        """End the processes of groups; those that still run after ``timeout_s`` are killed."""
        deadline = time.monotonic() + timeout_s
        living = [group for group in groups if group.process is not None]
        for group in living:
            self._busy.pop(group.connection.fileno(), None)
            self._poll.unregister(group.connection)
            group.ask(_CLOSE, deadline)
        for group in living:
            group.end()

    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        self._wait(for_all=True)
        self._reset_kwargs.update({i: kwargs[i] for i in env_ids if kwargs.get(i)})
        seeds = dict(zip(env_ids, self._seeds.take(env_ids), strict=True))
        rows = list(env_ids)
        self._under_way[rows] = self._lost[rows] = False
        self._episodes.begin(rows)
        for group in dict.fromkeys(self._group_of[env_id] for env_id in env_ids):
            given = {
                env_id: {"seed": seeds[env_id], **(kwargs.get(env_id) or {})}
                for env_id in group.env_ids
                if env_id in seeds
            }
            self._busy[self._ask_reset(group, given)] = group
        self._wait(for_all=True)
        # If a process was lost during the reset, its new envs were reset as well.
        self._lost[rows] = False
        for env_id in env_ids:
            self._infos.pop(env_id, None)

    def _envs_state(self) -> Any:
        # Results of steps that are under way, which `_call` waits for, are part of the state.
        board = self._board
        return {
            "envs": [self._call(env_id, "get_state") for env_id in range(self._env_num)],
            "groups": [[group.failures_in_row] for group in self._groups],
            "obs": map_leaves(np.array, [board.obs, board.final_obs]),
            "results": {name: getattr(board, name).copy() for name in _RESULTS},
        }

    def _set_envs_state(self, state: Any) -> None:
        schema, board = self._spaces[0], self._board
        for env_id, each in enumerate(state["envs"]):
            self._call(env_id, "set_state", each)
            for column, saved in zip((board.obs, board.final_obs), state["obs"], strict=True):
                schema.put(column, env_id, part_of(saved, env_id))
        for name in _RESULTS:
            getattr(board, name)[:] = state["results"][name]
        for group, counts in zip(self._groups, state["groups"], strict=True):
            group.failures_in_row = counts[0]  # earlier versions saved another count

    def _call(self, env_id: int, name: str, *args: Any) -> Any:
        self._check_open()
        self._wait(for_all=True)
        group = self._group_of[env_id]
        deadline = time.monotonic() + self.section.step_timeout
        self._busy[group.ask(_CALL, deadline, (env_id, name, args))] = group
        self._wait(for_all=True)
        called = self._infos.pop(_CALLED, None)
        if called is None:  # the process was lost and replaced
            error = self._infos[env_id][ERROR]
            raise EnvError(f"{error}, when {name} was called", env_id=env_id)
        if isinstance(called, DingError):
            raise called
        value, changed = called
        return changed if value is None else value

    def _ask_reset(self, group: _Group, kwargs: Mapping[int, Any]) -> int:
        self._board.asked[list(kwargs)] = True
        deadline = time.monotonic() + self.section.reset_timeout
        return group.ask(_RESET, deadline, (not self._seeds.is_dynamic, kwargs))

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
        kwargs = {
            # A guarded env uses another name for its own rebuilds.
            i: {
                **self._reset_kwargs.get(i, {}),
                "seed": self._seeds.after_failure(i, self._failure_count, "rebuild_process"),
            }
            for i in group.env_ids
        }
        try:
            self._start([group])
            self._ask_reset(group, kwargs)
            group.answer(wait=True)
        except ProcessLostError as again:
            self._replace(group, again)
        self._board.asked[group.env_ids] = False
        self._board.abnormal[group.env_ids] = True
        self._lost[group.env_ids] = ~self._under_way[group.env_ids]
        info = {ABNORMAL: True, ERROR: error_text(error)}
        self._infos.update({env_id: dict(info) for env_id in group.env_ids})


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
        self._begin(actions)
        timesteps: dict[int, Timestep] = {}
        while self._under_way.any():
            self._wait(for_all=False)
            timesteps |= self._timesteps()
            if self._running().any():
                break
        return timesteps


class ProcessLostError(RuntimeError):
    """The process of a group of envs has ended, or did not answer in time."""


@dataclass(eq=False)
class _Group:
    """The envs of one child process, and the pipe to it."""

    env_ids: list[int]
    process: Any = None
    connection: Connection = None  # type: ignore[assignment]
    deadline: float = 0.0
    failures_in_row: int = 0

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

    def ask(self, command: bytes, deadline: float, more: Any = None) -> int:
        """Send a command; return the file descriptor that the answer comes from."""
        self.deadline = deadline
        # If the process has ended, reading its answer reports it.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(command)
            if more is not None:
                self.connection.send(more)
        return self.connection.fileno()

    def answer(self, *, wait: bool = False) -> Any:
        """Return the data that the process sent with its answer, ``{}`` if there is none.

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
            answer = self.connection.recv() if self.connection.recv_bytes() else {}
        except BlockingIOError:
            raise ProcessLostError(f"{self} stopped in the middle of its answer") from None
        except (EOFError, OSError):
            self.process.join(_CLOSE_TIMEOUT_S)
            code = self.process.exitcode
            check_guarded(code, "env_manager.type")
            raise ProcessLostError(f"{self} died: {how_it_ended(code)}") from None
        if isinstance(answer, DingError):
            answer.add_note(f"In the child process:\n{answer.facts.get('traceback')}")
            raise answer
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


class _Board:
    """Columns with a row for each env, in shared memory.

    Args:
        reward_shape: Number of envs, and if an env has several players, their number.
        memory: Memory for the columns; None to compute only their ``size`` in bytes.
    """

    def __init__(
        self,
        schema: ObservationSchema,
        checker: ActionChecker,
        reward_shape: tuple[int, ...],
        memory: memoryview | None = None,
    ) -> None:
        self._memory = memory
        env_num = reward_shape[0]
        self.size = 0
        self.obs = schema.allocate(env_num, self._column)
        self.final_obs = schema.allocate(env_num, self._column)
        actions = checker.filler(env_num)
        self.actions = self._column(actions.shape, actions.dtype)
        self.reward = self._column(reward_shape, np.dtype(np.float32))
        self.failures = self._column((env_num,), np.dtype(np.int32))
        flags = (self._column((env_num,), np.dtype(np.bool_)) for _ in range(5))
        # The envs to step or to reset, and those that begin another episode after this one.
        self.asked, self.goes_on, *ends = flags
        self.terminated, self.truncated, self.abnormal = ends

    def _column(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        start = math.ceil(self.size / 64) * 64
        self.size = start + max(1, math.prod(shape) * dtype.itemsize)
        if self._memory is None:
            return np.empty(0, dtype)
        return np.ndarray(shape, dtype, self._memory, start)


def _serve(connection: Connection) -> None:
    """Make the envs of a group, and run the manager's commands; runs in the child process."""
    envs: dict[int, GuardedEnv] = {}
    memory = None
    try:
        default_manager().restore(connection.recv())
        env_num, section, env_fns = connection.recv()  # imports the code of the envs
        _answer(connection)
        for env_id, env_fn in env_fns.items():
            envs[env_id] = GuardedEnv(env_fn, env_id, section)
        first = next(iter(envs.values()))
        spaces = (first.observation_space, first.action_space, first.player_num)
        _answer(connection, spaces)
        memory = SharedMemory(connection.recv())
        schema = ObservationSchema(spaces[0])
        shape = (env_num, spaces[2]) if spaces[2] > 1 else (env_num,)
        board = _Board(schema, ActionChecker(spaces[1]), shape, memory.buf)
        while (command := connection.recv_bytes()) != _CLOSE:
            infos: dict[Any, Any] = {}
            if command == _RESET:
                keep_seed, kwargs = connection.recv()
                for env_id, given in kwargs.items():
                    obs, board.failures[env_id] = envs[env_id].restart(keep_seed, given)
                    schema.put(board.obs, env_id, obs)
            elif command == _CALL:
                env_id, name, args = connection.recv()
                infos[_CALLED] = _call(envs[env_id], name, args)
            else:
                # Only its own rows: those of other processes change at the same time.
                for env_id in [env_id for env_id in envs if board.asked[env_id]]:
                    info = _step(envs[env_id], env_id, schema, board)
                    if command == _STEP and EPISODE_INFO in info:
                        infos[env_id] = {EPISODE_INFO: info[EPISODE_INFO]}
                    elif command == _STEP_WITH_INFOS and info:
                        infos[env_id] = info
            _answer(connection, infos)
    except EOFError:
        pass  # the manager's process has ended
    except (Exception, SystemExit) as error:
        text = traceback_text(error)
        if not isinstance(error, DingError):
            error = EnvError(error_text(error), env_id=None)
        error.facts = {"traceback": text, **error.facts}
        with contextlib.suppress(OSError):
            _answer(connection, error)
    finally:
        close_quietly(*envs.values())
        board = None  # type: ignore[assignment]
        if memory is not None:
            memory.close()


def _answer(connection: Connection, answer: Any = None) -> None:
    """Send an empty message, or ``_DATA`` and then an object: infos, a result or an error."""
    if not answer:
        connection.send_bytes(b"")
        return
    connection.send_bytes(_DATA)
    try:
        connection.send(answer)  # which writes nothing if it cannot be pickled
    except OSError:
        raise  # the manager's process has ended
    except Exception as error:
        why = (
            "an env gave a value that cannot be sent to the manager's process "
            f"({message_of(error)}): {answer} ; make it of data and of objects of importable "
            "classes, or use env_manager.type in_process"
        )
        connection.send(EnvError(why, env_id=None, traceback=traceback_text(error)))


def _step(env: GuardedEnv, env_id: int, schema: ObservationSchema, board: _Board) -> dict[str, Any]:
    """Step an env, put the result on the board, and return its info."""
    obs, reward, terminated, truncated, info, following, failures = env.play(
        board.actions[env_id].copy(), board.goes_on[env_id]
    )
    if terminated or truncated:
        schema.put(board.final_obs, env_id, obs)
    schema.put(board.obs, env_id, following)
    board.reward[env_id] = reward
    board.terminated[env_id] = terminated
    board.truncated[env_id] = truncated
    board.abnormal[env_id] = bool(info.get(ABNORMAL))
    board.failures[env_id] = failures
    return info


def _call(env: GuardedEnv, name: str, args: Sequence[Any]) -> tuple[Any, Any] | DingError:
    """Call a method of an env; return its value and its first argument after the call."""
    try:
        return env.call(name, *args), args[0] if args else None
    except DingError as error:
        return error
    except Exception as error:
        why = f"{name} of the env raised {error_text(error)}"
        return EnvError(why, env_id=None, traceback=traceback_text(error))
