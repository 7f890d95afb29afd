"""Base class of parallel collectors: load a policy, collect until the end, report."""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dingsdk.config import Configurable, Count, PartSection, fields_of
from dingsdk.data import SampleBatch
from dingsdk.errors import ClosedError, NotSetError
from dingsdk.worker.collector.env_pool import EnvKind, EnvPool, Unfinished
from dingsdk.worker.run_logger import build_logger


def _not_attached(*args: Any) -> Any:
    raise NotSetError(
        "a parallel collector needs send_metadata, send_stepdata and get_policy_update_info "
        "attached before start()",
        what="send_metadata",
    )


class BaseParallelCollector(Configurable, ABC):
    """A collector that a comm collector starts for one task; it is used only once.

    The owner sets these functions as attributes before ``start()``: ``send_metadata(meta)`` and
    ``send_stepdata(data_id, batch)``, which may block; ``get_policy_update_info(path)``, which must
    not block; ``await_steps(env_steps)``, called when all env steps are taken that the task may
    take, which returns the next limit and, on-policy, the train iteration of the policy to take
    them with; ``yield_turn()``, called once per round; and ``clock()``, which returns seconds and
    measures the time between two policy updates.

    ``start`` runs in one thread; ``close`` and ``get_finish_info`` may be called from any thread.
    Unlike in DI-engine, ``close`` only sets a flag, and there are no helper threads. ``start``
    returns at once if ``close`` was called before, and it raises exceptions instead of losing them
    in a thread.

    Args:
        cfg: ``eval_flag``, ``exp_name`` and the keys of the class's ``config``. Optional keys:
            ``instance_name`` is the name of the log file and the source of reported episodes;
            ``env_pool`` may hold the envs of the previous task; ``inference`` is an
            ``InferenceClient`` that acts for the collector, if the collector supports it.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.collect.parallel_collector``.

        Attributes:
            print_freq: Rounds of env steps between two logs.
        """

        print_freq: Count = 5

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._cfg = cfg
        self._eval_flag = bool(cfg["eval_flag"])
        self._exp_name = str(cfg["exp_name"])
        # The config of a task has more keys than the section that the class declares.
        own = {key: cfg[key] for key in fields_of(self.Config) if key in cfg}
        self._section: BaseParallelCollector.Config = self.read(own)
        self._print_freq = self._section.print_freq
        self._uid = uuid.uuid4().hex[:12]
        self._instance_name = str(cfg.get("instance_name") or self._uid)
        self._close_flag = threading.Event()
        self._ends_soon = False
        self._has_started = False
        self._env_pool: EnvPool | None = cfg.get("env_pool")
        self._are_envs_usable = self._is_released = False
        self._release_lock = threading.Lock()
        self._left: Unfinished | None = None
        """Unfinished episodes for the next task; None if it must start new ones."""
        self.policy: Any = None
        """The collect or eval mode in use."""
        self.env_manager: Any = None
        """The manager in use."""
        self.send_metadata: Callable[[dict[str, Any]], None] = _not_attached
        self.send_stepdata: Callable[[str, SampleBatch], None] = _not_attached
        self.get_policy_update_info: Callable[[str], dict[str, Any] | None] = _not_attached
        self.await_steps: Callable[[int], tuple[float, int]] = lambda taken: (math.inf, 0)
        self.yield_turn: Callable[[], None] = lambda: None  # nothing else runs on this thread
        self.collect_setting: Mapping[str, Any] = {}
        """Keyword arguments of the collect policy; replaced while the task runs."""
        self.clock: Callable[[], float] = time.monotonic
        self._setup_timer()
        self._setup_logger()

    def start(self) -> None:
        """Collect until ``close()`` or until all episodes are played; blocks.

        Raises:
            DingError: an error of the policy, the envs or the attached functions.
        """
        self._has_started = True
        self._start_time = time.time()
        started = time.perf_counter()
        try:
            if not self._is_closed:
                self._update_policy()
            self._start_thread()
            while not (self._is_closed or self._ends_soon or self._is_done()):
                self.yield_turn()
                if not self._may_go_on():
                    break
                began = time.perf_counter()
                obs = self._observe()
                output = self._policy_inference(obs)
                inferred = time.perf_counter()
                step = self._env_step(output)
                stepped = time.perf_counter()
                self._process_timestep(obs, output, step)
                self._monitor.append((inferred - began, stepped - inferred))
                self._iter_after_hook()
            self._finish_task()
            self._are_envs_usable = True
        except ClosedError:
            # The comm layer closes first, and wakes calls that wait in it with this error.
            if not self._is_closed:
                raise
        finally:
            self._duration_s = time.perf_counter() - started
            self._join_thread()
            self._release_once()

    def close(self) -> None:
        """Ask ``start`` to return after the current round; does not wait, idempotent.

        A collector that was never started closes its envs here.
        """
        self._close_flag.set()
        if not self._has_started:
            self._release_once()

    def end_soon(self) -> None:
        """Let ``start`` end the task after the current round, as if it were the last one."""
        self._ends_soon = True

    def _release_once(self) -> None:
        # `start` may begin in the moment in which another thread calls `close`.
        with self._release_lock:
            was_released, self._is_released = self._is_released, True
        if not was_released:
            self._release()

    def _release(self) -> None:
        if self.env_manager is not None:
            self.env_manager.meanwhile = None
            (self._env_pool or EnvPool()).give_back(
                self.env_manager, is_usable=self._are_envs_usable, left=self._left
            )
        self._logger.close()

    def _take_envs(self, kind: EnvKind, policy_cfg: Any = None) -> Any:
        """Launch envs, or take the envs of the previous task if its config was the same.

        With ``policy_cfg``, these may be in the middle of episodes. Then the parts that the
        previous task left for them are returned, else None.
        """
        # Quotas limit the episodes; a limit of the manager would be used up by the first task.
        manager_cfg = {**self._cfg["env_manager"], "episode_num": math.inf}
        pool, env_cfg = self._env_pool or EnvPool(), self._cfg["env"]
        self.env_manager, begun = pool.take(
            kind, manager_cfg, env_cfg, self._cfg.get("seed"), policy_cfg
        )
        return begun

    @property
    def _is_closed(self) -> bool:
        return self._close_flag.is_set()

    @property
    def monitor(self) -> dict[str, float]:
        """Means over the last ``2 * print_freq`` rounds: ``policy_time``, ``env_time`` in s."""
        rounds = list(self._monitor) or [(0.0, 0.0)]
        return {
            "policy_time": sum(each[0] for each in rounds) / len(rounds),
            "env_time": sum(each[1] for each in rounds) / len(rounds),
        }

    def info(self, text: str) -> None:
        """Write to the log of this collector."""
        self._logger.info("[%s] %s", self, text)

    def debug(self, text: str) -> None:
        """Write to the log of this collector."""
        self._logger.debug("[%s] %s", self, text)

    def error(self, text: str) -> None:
        """Write to the log of this collector."""
        self._logger.error("[%s] %s", self, text)

    @abstractmethod
    def get_finish_info(self) -> dict[str, Any]:
        """Return the result of the task so far; all keys exist even before the first step."""

    @abstractmethod
    def __repr__(self) -> str: ...

    @abstractmethod
    def _observe(self) -> Any:
        """Return the observations of the envs that wait for an action."""

    @abstractmethod
    def _policy_inference(self, obs: Any) -> Any:
        """Call the policy."""

    @abstractmethod
    def _env_step(self, policy_output: Any) -> Any:
        """Step the envs."""

    @abstractmethod
    def _process_timestep(self, obs: Any, policy_output: Any, step: Any) -> None:
        """Record one round, and send the samples that are ready."""

    @abstractmethod
    def _update_policy(self) -> None:
        """Wait for the first policy and load it; return early if the collector is closed."""

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether the task's episodes are all played."""

    def _setup_timer(self) -> None:
        self._monitor: deque[tuple[float, float]] = deque(maxlen=2 * self._print_freq)
        self._start_time = time.time()
        self._duration_s = 0.0

    def _setup_logger(self) -> None:
        folder = Path(self._exp_name) / "log" / ("evaluator" if self._eval_flag else "collector")
        self._logger, _ = build_logger(str(folder), self._instance_name, need_tb=False)
        self._logger.log(logging.DEBUG, "cfg: %s", self._cfg)

    def _may_go_on(self) -> bool:
        """Called before each round; may wait. False: end the task."""
        return True

    def _iter_after_hook(self) -> None:
        """Called after each round."""

    def _finish_task(self) -> None:
        """Called once after the last round, also when closed."""

    def _start_thread(self) -> None:
        """For subclasses with helper threads; called after the first policy was loaded."""

    def _join_thread(self) -> None:
        """For subclasses with helper threads; called at the end of ``start``, also after errors."""
