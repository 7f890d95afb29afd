"""The server: joins the requests of many collectors, and calls the policy once for them."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.data.channel import Channel, decode_value, encode_value
from dingsdk.data.pytree import flatten
from dingsdk.errors import ProtocolError, error_text
from dingsdk.policy import create_policy
from dingsdk.policy.threads import isolated
from dingsdk.runtime import Connections, PrivateDir, create_secret, format_address
from dingsdk.worker.comm.transport import PolicyStore
from dingsdk.worker.inference.client import FOLDER, KIND, MAX_BYTES, SUFFIX, Act, Acted, NotActed

POLL_S = 0.2
"""Longest wait for observations between two checks whether the server is to end."""
MESSAGE_S = 5.0
"""How long a message may take, once it has begun."""
IDLE_S = 3600.0
"""How long a collector may send nothing before its connection is closed."""
LOOK_S = 0.02
"""Pause between two checks for a newer policy."""
KEPT_VERSIONS = 4
"""Number of policy versions to keep, for collectors that still use an older version."""
CLOSE_S = 5.0
"""How long the connections may take to end."""
MOST_COLLECTORS = 4096
"""Most connections at the same time."""
_STATE = "state"


class _Request(NamedTuple):
    channel: Channel
    head: Act
    obs: Any
    setting: dict[str, Any]
    """Keyword arguments of ``act``; a recurrent policy's ``state`` has one row per observation."""
    rows: int


class InferenceServer:
    """Computes actions for collectors on this host.

    All requests that arrive while the policy computes are handled next. Requests for the same
    version of a policy with the same settings are joined into one batch.

    Args:
        policy_cfg: The config's ``policy`` section.
        store: Store in which the versions of the policy are published.
        run_dir: Folder of the run; its folder ``inference`` gets the secret and the address of
            this server.
        name: Name of this server, unique in the run.
        seed: Seed of exploration; None uses system entropy.

    Attributes:
        request_count: Number of requests that were answered with actions.
        batch_count: Number of policy calls for these requests.

    Raises:
        AuthError: the secret cannot be used.
        RunFolderError, StorageFullError: the folder cannot be written.
    """

    def __init__(
        self,
        policy_cfg: Mapping[str, Any],
        store: PolicyStore,
        run_dir: Path,
        name: str,
        seed: int | None = None,
    ) -> None:
        self._policy_cfg, self._store, self._seed = policy_cfg, store, seed
        self._policies: dict[tuple[str, int], Any] = {}
        """Recently used policies by id and version; the last used one is at the end."""
        self._newest: dict[str, int] = {}
        self._looked_at: dict[str, float] = {}
        self.request_count = self.batch_count = 0
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._is_closed = False
        self._folder = PrivateDir(run_dir / FOLDER)
        self._file = f"{name}{SUFFIX}"
        self._secret = create_secret(self._folder)
        listener = socket.create_server(("127.0.0.1", 0))
        address = format_address(*listener.getsockname())
        self._connections = Connections(
            listener,
            lambda sock: Channel(sock, MAX_BYTES),
            lambda channel: channel.welcome(self._secret),
            self._read,
            most=MOST_COLLECTORS,
            name="inference",
        )
        self._folder.write_atomic(self._file, [address.encode()])

    def run(self, advance: Callable[[], None] = lambda: None) -> None:
        """Answer requests until ``stop``; ``advance`` is called often."""
        while not self._stop.is_set():
            advance()
            requests = self._take()
            for group in _groups(requests):
                self._answer(group)

    def stop(self) -> None:
        """Let ``run`` return soon; may be called from any thread."""
        self._stop.set()

    def close(self) -> None:
        """End all connections; idempotent. Collectors act locally from then on."""
        self._stop.set()
        if self._is_closed:
            return
        self._is_closed = True
        self._connections.close(CLOSE_S)
        self._folder.unlink(self._file)
        self._folder.close()

    def _read(self, channel: Channel, client: str) -> None:
        while not self._stop.is_set():
            head, frame = channel.receive(Act, MESSAGE_S, IDLE_S)
            asked = decode_value(KIND, frame)
            obs, setting = asked["obs"], asked["setting"]
            rows = len(flatten(obs)[0][1])
            self._requests.put(_Request(channel, head, obs, setting, rows))

    def _take(self) -> list[_Request]:
        """Return all waiting requests; wait up to ``POLL_S`` for the first one."""
        found: list[_Request] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._requests.get(timeout=POLL_S))
            while True:
                found.append(self._requests.get_nowait())
        return found

    def _answer(self, group: Sequence[_Request]) -> None:
        head = group[0].head
        try:
            version, policy = self._policy(head)
            joined = _joined(group)
            obs, setting = joined.pop("obs"), {**group[0].setting, **joined}
            count = sum(each.rows for each in group)
            output = isolated(policy.act)(obs, range(count), explore=True, **setting)
            ends = np.cumsum([each.rows for each in group])[:-1]
            parts: list[dict[str, Any]] = [{} for _ in group]
            for name, column in output.items():
                for part, rows in zip(parts, np.split(column, ends), strict=True):
                    part[name] = rows
            answers: list[Any] = [Acted(version)] * len(group)
            frames = [encode_value(KIND, part) for part in parts]
            self.request_count += len(group)
            self.batch_count += 1
        except Exception as error:
            # Each collector then calls its own policy, and reports its own error.
            answers = [NotActed(error_text(error)[:500])] * len(group)
            frames = [[]] * len(group)
        for each, answer, frame in zip(group, answers, frames, strict=True):
            try:
                each.channel.send(answer, frame, timeout_s=MESSAGE_S)
            except OSError:
                each.channel.shut_down()  # its thread closes it

    def _policy(self, head: Act) -> tuple[int, Any]:
        """Return the version and the policy that serve a request."""
        key = (head.policy_id, head.version)
        if not head.is_exact or key not in self._policies:
            self._look(head.policy_id, head.version)
        if not head.is_exact:
            newest = self._newest.get(head.policy_id, head.version)
            key = (head.policy_id, max(head.version, newest))
        policy = self._policies.pop(key, None)
        if policy is None:
            raise ProtocolError(f"version {head.version} of {head.policy_id} is not here", where="")
        self._policies[key] = policy
        return key[1], policy

    def _look(self, policy_id: str, version: int) -> None:
        """Load the newest version of a policy, if it is not loaded yet.

        The store is read at most every ``LOOK_S``, but always if ``version`` is not loaded.
        """
        now, newest = time.monotonic(), self._newest.get(policy_id)
        is_behind = newest is None or newest < version
        if not is_behind and now - self._looked_at[policy_id] < LOOK_S:
            return
        self._looked_at[policy_id] = now
        found = self._store.newest(policy_id, newest)
        if found is None:
            return
        version, model = found
        if len(self._policies) < KEPT_VERSIONS:
            seed = None if self._seed is None else self._seed + len(self._policies)
            policy: Any = create_policy(self._policy_cfg, enable_field=["collect"], seed=seed)
        else:
            policy = self._policies.pop(next(iter(self._policies)))
        policy.collect_mode.load_state_dict({"model": model})
        self._newest[policy_id] = version
        self._policies[policy_id, version] = policy


def _groups(requests: Sequence[_Request]) -> list[list[_Request]]:
    """Group requests so that one policy call can serve each group."""

    def key(request: _Request) -> str:
        head = request.head
        plain = {name: value for name, value in request.setting.items() if name != _STATE}
        shapes = [(path, leaf.shape[1:], leaf.dtype.str) for path, leaf in flatten(request.obs)]
        return repr((head.policy_id, head.is_exact and head.version, sorted(plain.items()), shapes))

    found = sorted(requests, key=key)
    return [list(group) for _, group in itertools.groupby(found, key)]


def _joined(group: Sequence[_Request]) -> dict[str, Any]:
    """Return the concatenated observations of requests, and the states of a recurrent policy."""
    columns = [
        {"obs": each.obs} | ({_STATE: each.setting[_STATE]} if _STATE in each.setting else {})
        for each in group
    ]
    if len(columns) == 1:
        return columns[0]
    return SampleBatch.concat([SampleBatch(each) for each in columns]).columns
