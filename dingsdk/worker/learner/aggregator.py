"""Data-parallel training of one policy by several processes, the ranks."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from dingsdk.config.plain import to_plain
from dingsdk.data import SampleBatch
from dingsdk.data.channel import Channel, Head, decode_value, encode_value
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import (
    ConfigError,
    ProtocolError,
    WorkerCrashedError,
    error_text,
    traceback_text,
)
from dingsdk.plugins import Snapshot, default_manager
from dingsdk.policy import LearnMode, create_policy
from dingsdk.policy.threads import policy_threads, torch_threads
from dingsdk.runtime.deadline import Closing
from dingsdk.runtime.files import guarded, guarded_folders
from dingsdk.runtime.spawn import check_guarded, how_it_ended, signals_blocked, spawn_context
from dingsdk.worker.learner.remote_ranks import (
    JOIN_S,
    MAX_BYTES,
    Over,
    RankPlace,
    RemoteRanks,
    dial,
    rank_lost,
    torch_distributed,
)

RANK_S = 60.0
"""How long a rank waits for the others within an update; then one of them is taken as hung."""
NOTICE_S = 2.0
"""How long the other ranks may take at least to notice that one was lost."""
CLOSE_S = 5.0
"""How long the ranks may take to end; then they are killed."""
_KIND = "rank-message"
_BEGIN = "begin"
_ACTING_STATE = "acting_state"
_OF_FIRST_RANK = frozenset({"learner_step", "buffer_id", "task_id", "learner_done"})
_NOT_LEARNED = {"collect", "eval", "other"}
"""Parts of section ``policy`` that only other workers use."""
MESSAGE_S = 600.0
"""How long a message may take that a rank reads or writes."""
_NOTICE_STOP_S = 0.5
"""How often a rank without work checks whether it has to stop."""
_CLOSED = WorkerCrashedError("they were closed", worker_id="")

_log = logging.getLogger(__name__)


class Call(Head, frozen=True):
    """Rank 0 asks for a method of the policy, or for another group; the frame has its arguments."""

    name: str


class Done(Head, frozen=True):
    """The answer; the frame has what the method returned."""


class Failed(Head, frozen=True):
    """The method raised an exception; without a traceback, another rank was lost."""

    text: str
    traceback: str = ""


class LearnerAggregator(Closing):
    """Trains one policy on several processes, behind the interface of a learn mode.

    The caller's process is rank 0; rank 0 starts the other ranks, unless they are ``remote``. Each
    rank has the policy's weights and takes an equal, consecutive part of every batch. Their
    gradients are averaged before each step, over ``torch.distributed``, so that all ranks keep the
    weights that one learner would have with the whole batch. Rank 0 alone saves, publishes and
    logs. Each rank has its own random numbers; the attribute ``acting_state`` is a list with those
    of all.

    Use as a context manager, or close it. Not safe for use from several threads. After an error in
    any rank, rank 0 included, the aggregator refuses batches until ``start`` is called.

    Args:
        learn_mode: Learn mode of a policy whose class ``is_data_parallel``: rank 0's.
        policy_cfg: The config's ``policy`` section, to create the policies of the other ranks.
        world_size: Number of ranks, >= 1.
        rank_s: Seconds that a rank may wait for the others within an update.
        remote: Ranks that were started by others; they keep running when this object is closed.
        seed: Seed of rank 0's policy, from which those of the others are derived; None for random
            ones.

    Attributes:
        learn_mode: Learn mode for the learner, instead of the policy's own. Its ``forward`` takes
            batches whose length is a multiple of ``world_size``. Logged numbers are averaged over
            the ranks, sequences such as ``priority`` are joined in the order of the batch.

    Raises:
        WorkerCrashedError: a rank cannot start.
        ConfigError: the policy does not average its gradients.
    """

    def __init__(
        self,
        learn_mode: LearnMode,
        policy_cfg: Mapping[str, Any],
        world_size: int,
        rank_s: float = RANK_S,
        remote: RemoteRanks | None = None,
        seed: int | None = None,
    ) -> None:
        self._policy, self._policy_cfg = learn_mode, policy_cfg
        self._world_size, self._rank_s = world_size, rank_s
        self._remote, self._seed = remote, seed
        self._ranks: list[_Rank] = []
        self._env_steps: int | None = None  # for the schedules of ranks that start again
        self._failure: BaseException | None = None
        """Why the ranks may not be at the same update; None while they are."""
        self.learn_mode = learn_mode._replace(
            forward=self._train,
            reset=lambda ids=None: self._call("reset", ids),
            get_attribute=self._get_attribute,
            set_attribute=self._set_attribute,
            load_state_dict=lambda state: self._call("load_state_dict", state),
            observe=None if learn_mode.observe is None else self._observe,
        )
        self._start()

    def start(self) -> None:
        """Start the other ranks again, with rank 0's weights; does nothing unless one has failed.

        Raises:
            WorkerCrashedError: a rank cannot start.
        """
        if self._failure is not None:
            self.close()
            self._start()

    def _start(self) -> None:
        self._failure = None
        with tempfile.TemporaryDirectory(prefix="dingsdk-ranks-") as folder:
            try:
                with self._exchange():
                    self._connect(Path(folder))
                self._call("load_state_dict", self._policy.state_dict())
                if self._env_steps is not None:
                    self._call("set_attribute", "env_steps", self._env_steps)
            except BaseException:
                self.close()
                raise

    def _connect(self, folder: Path) -> None:
        remote, rank_s, world_size = self._remote, self._rank_s, self._world_size
        if remote is None:
            place, group = RankPlace(0, world_size, "", 0, folder=folder), 1
            store = place.group_store(group)
            for rank in range(1, world_size):
                other = replace(place, rank=rank, local_rank=rank)
                self._ranks.append(_started(other, self._policy_cfg, rank_s))
        else:
            store, place, group = remote.new_group(), remote.place, remote.groups
            self._ranks += [_Rank(rank, link, rank_s) for rank, link in remote.links().items()]
        begin = [group, rank_s, to_plain(self._policy_cfg)]
        for each in self._ranks:
            seed = None if self._seed is None else derive_seed(self._seed, "rank", each.number)
            each.send(_BEGIN, [*begin, seed])
        deadline = time.monotonic() + JOIN_S
        for each in self._ranks:
            each.answer(deadline)
        try:
            join_ranks(self._policy, store, 0, world_size, rank_s, place.own_address())
        except ConnectionError as error:
            raise self._find_lost(error) from error

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Refuse further batches after an error in the block: a late answer would be taken for
        that of the next batch.

        Raises:
            WorkerCrashedError: there was such an error, or the ranks were ended.
        """
        self._check_running()
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _check_running(self) -> None:
        if self._failure is not None:
            text = f"the ranks of the learner have stopped ({self._failure})"
            raise rank_lost(0, f"{text}; call start() to train on") from self._failure

    def close(self) -> None:
        """End the other ranks; remote ones only leave the group. Idempotent, from any thread."""
        if self._remote is not None and self._failure not in (None, _CLOSED):
            self._remote.hang_up()
        self._failure = self._failure or _CLOSED
        deadline = time.monotonic() + CLOSE_S
        for rank in self._ranks:
            rank.end()
        while self._ranks:
            self._ranks.pop().join(deadline)

    @staticmethod
    def merge_info(infos: list[Any]) -> Any:
        """Merge one value of each rank: numbers and texts into a list, lists into one list.

        Dicts are merged by key; ``learner_step``, ``buffer_id``, ``task_id`` and ``learner_done``
        are those of the first rank. The name and the rules are DI-engine's.

        Raises:
            TypeError: the values are of another type.
        """
        first = infos[0]
        if first is None or isinstance(first, int | float | str):
            return infos
        if isinstance(first, list | tuple):
            return [item for info in infos for item in info]
        if not isinstance(first, Mapping):
            raise TypeError(f"infos of type {type(first).__name__} cannot be merged")
        return {
            key: value
            if key in _OF_FIRST_RANK
            else LearnerAggregator.merge_info([info[key] for info in infos])
            for key, value in first.items()
        }

    def _train(self, data: Any, **kwargs: Any) -> dict[str, Any] | list[dict[str, Any]]:
        batch = data if isinstance(data, SampleBatch) else SampleBatch.from_rows(data)
        parts = split_batch(batch, len(self._ranks) + 1)
        with self._exchange():
            self._send("forward", [[part] for part in parts[1:]])
            try:
                found = [self._policy.forward(parts[0], **kwargs)]
            except ConnectionError as error:
                raise self._find_lost(error) from error
            found += self._answers()
        return cast(dict[str, Any] | list[dict[str, Any]], merge_logs(found))

    def _observe(self, samples: Any) -> None:
        """Update the statistics of this rank, and send them, which are few, to the others."""
        observe: Any = self._policy.observe
        observe(samples)
        self._call("set_attribute", "statistics", self._policy.get_attribute("statistics"))

    def _find_lost(self, cause: Exception) -> WorkerCrashedError:
        """Return an error that names the lost rank that the others waited for."""
        silent: WorkerCrashedError | None = None
        # A rank that noticed nothing yet may still wait for the one that was lost.
        deadline = time.monotonic() + max(NOTICE_S, self._rank_s)
        for rank in self._ranks:
            try:
                rank.answer(deadline)
            except WorkerCrashedError as error:
                if error.facts["traceback"] or error.exit_code or rank.has_hung_up:
                    return error
                if error.exit_code is None:  # 0: it has noticed the loss of another one
                    silent = silent or error
        # If all ranks are alive, only the connection between two of them was lost.
        return silent or rank_lost(0, str(cause))

    def _get_attribute(self, key: str) -> Any:
        if key != _ACTING_STATE:
            return self._policy.get_attribute(key)
        return self._call_each("get_attribute", [[key]] * (len(self._ranks) + 1))

    def _set_attribute(self, key: str, value: Any) -> Any:
        if key != _ACTING_STATE:
            if key == "env_steps":
                self._env_steps = value
            return self._call("set_attribute", key, value)
        if len(value) != len(self._ranks) + 1:
            raise ConfigError(
                f"the random numbers of {len(value)} learners do not fit {len(self._ranks) + 1}",
                path="system.learner_num",
                expected=len(self._ranks) + 1,
                found=len(value),
            )
        return self._call_each("set_attribute", [[key, each] for each in value])[0]

    def _call(self, name: str, *args: Any) -> Any:
        """Call a method on all ranks, and return this rank's answer."""
        return self._call_each(name, [list(args)] * (len(self._ranks) + 1))[0]

    def _call_each(self, name: str, args: Sequence[list[Any]]) -> list[Any]:
        """Call a method on all ranks with the arguments for each, and return all answers.

        This rank is the first, and raises if the call is invalid.
        """
        self._check_running()  # before this rank differs from the others
        answers = [getattr(self._policy, name)(*args[0])]
        with self._exchange():
            self._send(name, args[1:])
            return answers + self._answers()

    def _send(self, name: str, args: Sequence[list[Any]]) -> None:
        for rank, each in zip(self._ranks, args, strict=True):
            rank.send(name, each)

    def _answers(self) -> list[Any]:
        deadline = time.monotonic() + self._rank_s
        return [rank.answer(deadline) for rank in self._ranks]


class _Rank:
    """The link to another rank, for which a message may take ``rank_s``.

    Args:
        process: The rank's process, if rank 0 has started it.
    """

    def __init__(
        self, number: int, link: Channel, rank_s: float, process: BaseProcess | None = None
    ) -> None:
        self.number = number
        self._link, self._rank_s, self._process = link, rank_s, process
        self.has_hung_up = False
        """Whether it closed the link without a message, as if its process was killed."""

    def send(self, name: str, args: list[Any]) -> None:
        """Call a method; if the rank has ended, ``answer`` raises the error.

        Raises:
            WorkerCrashedError: the rank does not read the message.
        """
        try:
            self._link.send(Call(name), encode_value(_KIND, args), timeout_s=self._rank_s)
        except TimeoutError as error:
            raise self._lost("takes no message") from error
        except OSError:
            pass

    def answer(self, deadline: float) -> Any:
        """Return the rank's answer; raises WorkerCrashedError if there is none."""
        why, trace, code = "did not answer in time", "", None
        try:
            left_s = max(1e-3, deadline - time.monotonic())
            found, frame = self._link.receive(Done | Failed, self._rank_s, left_s)
            if isinstance(found, Done):
                return decode_value(_KIND, frame)
            why, trace, code = found.text, found.traceback, None if found.traceback else 0
        except TimeoutError:
            pass
        except (OSError, ProtocolError):
            why, self.has_hung_up = "is gone", True
        if not trace and (ended := self._exit_code()) is not None:
            check_guarded(ended, "system.learner_num")
            why, code = f"died: {how_it_ended(ended)}", ended
        raise self._lost(why, code, trace)

    def end(self) -> None:
        """End the process of the rank, if rank 0 has started it."""
        if self._process is not None:
            self._link.close()

    def join(self, deadline: float) -> None:
        """Wait for the rank's process, if rank 0 has started it; kill it at the deadline."""
        if self._process is None:
            return
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()

    def _exit_code(self) -> int | None:
        if self._process is None:
            return None
        # A process that ends closes its link shortly before it has an exit code.
        if self.has_hung_up:
            self._process.join(CLOSE_S)
            self.has_hung_up = False  # its exit code says more
        return self._process.exitcode

    def _lost(self, why: str, code: int | None = None, trace: str = "") -> WorkerCrashedError:
        return rank_lost(self.number, f"rank {self.number} of the learner {why}", code, trace)


def _started(place: RankPlace, policy_cfg: Mapping[str, Any], rank_s: float) -> _Rank:
    """Start a rank in a child process."""
    context = spawn_context("system.learner_num")
    link, theirs = socket.socketpair()
    settings = policy_threads(), default_manager().snapshot(), guarded_folders()
    process = context.Process(
        target=rank_main,
        args=(place, policy_cfg, *settings, theirs),
        name=f"learner-rank-{place.rank}",
        daemon=True,
    )
    with signals_blocked():
        process.start()
    theirs.close()
    return _Rank(place.rank, Channel.within_host(link, MAX_BYTES), rank_s, process)


def rank_main(
    place: RankPlace,
    policy_cfg: Mapping[str, Any],
    threads: int,
    snapshot: Snapshot,
    folders: Sequence[Path],
    sock: socket.socket,
) -> None:
    """Run a rank until rank 0 closes the link; never returns."""
    link = Channel.within_host(sock, MAX_BYTES)
    # Rank 0 handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 0
    try:
        with torch_threads(threads), contextlib.ExitStack() as stack:
            for folder in folders:
                stack.enter_context(guarded(folder))
            default_manager().restore(snapshot)
            _serve_group(place, policy_cfg, threading.Event(), link)
    except ConnectionError:
        pass  # rank 0 has closed the link or has died, or another rank was lost
    except BaseException as error:
        code = 1
        with contextlib.suppress(OSError):
            _tell_failure(link, error)
    # Exit at once: other ranks in the middle of an update notice that the connection is closed.
    os._exit(code)


def serve_remote(place: RankPlace, policy_cfg: Mapping[str, Any], stop: threading.Event) -> None:
    """Train as a rank that rank 0 has not started, until the run is over or ``stop`` is set.

    If another rank is lost, this one waits for rank 0 to form a new group. ``policy_cfg`` is
    section ``policy`` of this rank's own config.

    Raises:
        ConfigError: rank 0 has another ``policy`` section.
        WorkerCrashedError: rank 0 cannot be reached.
    """
    while (link := dial(place, stop)) is not None:
        try:
            with contextlib.closing(link):
                _serve_group(place, policy_cfg, stop, link)
            return
        except OSError as error:
            _log.warning("rank %d waits for a new group: %s", place.rank, error)


def _serve_group(
    place: RankPlace,
    policy_cfg: Mapping[str, Any],
    stop: threading.Event,
    link: Channel,
) -> None:
    policy: LearnMode | None = None
    while not stop.is_set():
        if not link.has_message(_NOTICE_STOP_S):
            continue
        call, frame = link.receive(Call | Over, MESSAGE_S)
        if isinstance(call, Over):
            return
        try:
            args = decode_value(_KIND, frame)
            if call.name == _BEGIN:
                policy = _begin(place, policy_cfg, link, *args)
            else:
                _answer(link, getattr(policy, call.name)(*args))
        except ConnectionError:
            link.send(Failed("has lost another rank"), timeout_s=MESSAGE_S)
            raise
        except Exception as error:
            _tell_failure(link, error)
            raise


def _begin(
    place: RankPlace,
    policy_cfg: Mapping[str, Any],
    link: Channel,
    group: int,
    rank_s: float,
    policy_of_rank_0: Mapping[str, Any],
    seed: int | None,
) -> LearnMode:
    own = to_plain(policy_cfg)
    for key in sorted((own.keys() | policy_of_rank_0.keys()) - _NOT_LEARNED):
        if own.get(key) != policy_of_rank_0.get(key):
            raise ConfigError(
                f"policy.{key} of rank {place.rank} is {own.get(key)}, that of rank 0 is "
                f"{policy_of_rank_0.get(key)}; start all learners with the same config",
                path=f"policy.{key}",
            )
    if own.get("cuda"):
        torch.cuda.set_device(place.local_rank)
    policy = create_policy(own, enable_field=["learn"], seed=seed).learn_mode
    store = place.group_store(group)
    _answer(link, None)
    join_ranks(policy, store, place.rank, place.world_size, rank_s, place.own_address())
    return policy


def join_ranks(
    policy: LearnMode, store: Any, rank: int, world_size: int, timeout_s: float, address: str
) -> None:
    """Connect a policy with those of the other ranks, which must call this too.

    Args:
        store: A store of ``torch.distributed`` that all ranks share.
        timeout_s: How long a rank may wait for the others.
        address: Address to listen on.

    Raises:
        ConfigError: the policy has no optimizer that averages its gradients.
        ConnectionError: a rank was lost before all were connected.
    """
    if world_size == 1:
        return
    timeout = timedelta(seconds=timeout_s)
    group: Any = None

    def average(tensor: torch.Tensor) -> None:
        try:
            # With a timeout nccl waits here too, and not only when the result is used.
            group.allreduce([tensor]).wait(timeout)
        except RuntimeError as error:
            raise ConnectionError(f"a rank was lost: {error}") from error
        tensor /= world_size

    # Before the ranks connect: the others would only see that a refused rank has ended.
    try:
        policy.set_attribute("average_over_ranks", average)
    except NotImplementedError as error:
        raise ConfigError(
            f"this policy cannot train on {world_size} ranks: {error}", path="system.learner_num"
        ) from error
    device, dist = policy.get_attribute("device"), torch_distributed()
    try:
        group = process_group(dist, device, store, rank, world_size, timeout, address)
    except RuntimeError as error:
        raise ConnectionError(f"a rank was lost while the ranks connected: {error}") from error


def process_group(
    dist: Any, device: str, store: Any, rank: int, world_size: int, timeout: timedelta, address: str
) -> Any:
    """Return the group that averages gradients, with nccl on GPUs and gloo on the CPU."""
    # These constructors do not change the default group of the process, which is the user's.
    if device.startswith("cuda"):
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, world_size, options)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # By default gloo would listen on the address of the host's name.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, world_size, options)


def split_batch(batch: SampleBatch, count: int) -> list[SampleBatch]:
    """Return equal, consecutive parts of a batch, as views.

    Raises:
        ConfigError: the batch cannot be split into equal parts.
    """
    size, rest = divmod(len(batch), count)
    if rest:
        raise ConfigError(
            f"a batch of {len(batch)} samples cannot be split among {count} learners; let "
            "policy.learn.batch_size be a multiple of system.learner_num",
            path="policy.learn.batch_size",
        )
    return [batch[start : start + size] for start in range(0, len(batch), size)]


def merge_logs(logs: Sequence[Any]) -> Any:
    """Merge the logs of all ranks: average numbers, join sequences, and merge dicts by key."""
    first = logs[0]
    if isinstance(first, Mapping):
        return {key: merge_logs([log[key] for log in logs]) for key in first}
    if isinstance(first, list) and first and isinstance(first[0], Mapping):
        return [merge_logs(each) for each in zip(*logs, strict=True)]
    if isinstance(first, (list, tuple)):
        return [item for log in logs for item in log]
    if isinstance(first, np.ndarray) and first.ndim:
        return np.concatenate(logs)
    if isinstance(first, (str, bool)) or first is None:
        return first
    return sum(float(log) for log in logs) / len(logs)


def _answer(link: Channel, value: Any) -> None:
    link.send(Done(), encode_value(_KIND, value), timeout_s=MESSAGE_S)


def _tell_failure(link: Channel, error: BaseException) -> None:
    text = f"failed: {error_text(error)}"[:2000]
    link.send(Failed(text, traceback_text(error)[-8000:]), timeout_s=MESSAGE_S)
