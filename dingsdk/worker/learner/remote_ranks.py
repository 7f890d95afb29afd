"""Learner processes that the user or ``torchrun`` starts, here or on other hosts."""

from __future__ import annotations

import contextlib
import importlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from dingsdk.data.channel import Channel, Head
from dingsdk.errors import (
    AuthError,
    ConfigError,
    ProtocolError,
    WorkerCrashedError,
    error_text,
)
from dingsdk.runtime.connections import Connections, format_address, ip_of, listen
from dingsdk.runtime.secret import Secret

JOIN_S = 120.0
"""How long ranks may take to start, and to find each other."""
RETRY_S = 0.5
"""Pause before ranks that did not find each other try again."""
HANDSHAKE_S = 5.0
"""How long the handshake with a rank on another host may take."""
MAX_BYTES = 4 << 30
"""Largest message between a rank and the aggregator."""
_FRONT = "front"


class Ready(Head, frozen=True):
    """The first message of another rank; rank 0 sends nothing before it."""


class Over(Head, frozen=True):
    """The last message of rank 0."""


def torch_distributed() -> Any:
    """Import and return the module, which is untyped here; its import is slow."""
    return importlib.import_module("torch.distributed")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a process among the ranks of a learner, as set by torchrun.

    Attributes:
        rank: Number of this process, 0 for the one that joins the run.
        world_size: Number of ranks, >= 2.
        host: A name or address of rank 0's host.
        port: Port of the store through which the ranks find each other.
        has_agent: Whether torchrun runs that store; else rank 0 does.
        attempt: How often torchrun has started the ranks again.
        local_rank: Number of this process on its host, and of the GPU that it uses.
        folder: Folder in which ranks that rank 0 has started on its own host find each other; None
            if they use the store at ``host`` and ``port``.
    """

    rank: int
    world_size: int
    host: str
    port: int
    has_agent: bool = False
    attempt: str = "0"
    local_rank: int = 0
    folder: Path | None = None

    @classmethod
    def of(cls, env: Mapping[str, str]) -> RankPlace | None:
        """Read ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``; None for one rank.

        ``LOCAL_RANK`` defaults to ``RANK``.

        Raises:
            ConfigError: some of them are missing or no numbers.
        """
        if env.get("WORLD_SIZE", "1") == "1":
            return None
        try:
            place = cls(
                rank=int(env["RANK"]),
                world_size=int(env["WORLD_SIZE"]),
                host=env["MASTER_ADDR"],
                port=int(env["MASTER_PORT"]),
                has_agent=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                attempt=env.get("TORCHELASTIC_RESTART_COUNT", "0"),
                local_rank=int(env.get("LOCAL_RANK", env["RANK"])),
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"WORLD_SIZE is {env['WORLD_SIZE']}, so this is one of several learners, but its "
                f"environment does not say which ({error_text(error)}); start it with torchrun, "
                "or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                path="system.learner_num",
            ) from error
        if not 0 <= place.rank < place.world_size:
            raise ConfigError(
                f"RANK is {place.rank}, with WORLD_SIZE {place.world_size} it is 0 to "
                f"{place.world_size - 1}",
                path="system.learner_num",
                found=place.rank,
            )
        return place

    def check(self, learner_num: int) -> None:
        """Raise ConfigError unless the config has the same number of learners."""
        if learner_num != self.world_size:
            raise ConfigError(
                f"system.learner_num is {learner_num}, but WORLD_SIZE is {self.world_size}: the "
                "coordinator and all learners need the same number",
                path="system.learner_num",
                expected=self.world_size,
                found=learner_num,
            )

    def own_address(self) -> str:
        """Return the address of this host that it uses to reach rank 0."""
        if self.folder is not None:
            return "127.0.0.1"
        family, address = ip_of(self.host, self.port, socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])

    def store(self, timeout_s: float) -> Any:
        """Return the store of all ranks.

        Raises:
            RuntimeError: it cannot be reached in time (``torch.distributed``'s own error).
        """
        is_master = self.rank == 0 and not self.has_agent
        timeout = timedelta(seconds=max(1.0, timeout_s))
        options: dict[str, Any] = {"wait_for_workers": False}
        if is_master:
            # By default the store would listen on all addresses.
            options["master_listen_fd"] = listen(self.own_address(), self.port).detach()
        made = torch_distributed().TCPStore(
            self.host, self.port, None, is_master, timeout, **options
        )
        return torch_distributed().PrefixStore(f"dingsdk-{self.attempt}", made)

    def group_store(self, group: int) -> Any:
        """Return the store of a group of ranks; errors as ``store``."""
        if self.folder is not None:
            return torch_distributed().FileStore(str(self.folder / str(group)), self.world_size)
        return torch_distributed().PrefixStore(str(group), self.store(JOIN_S))


class RemoteRanks:
    """Rank 0's links to the other ranks, which connect to it; close it after use."""

    def __init__(self, place: RankPlace) -> None:
        self.place = place
        self.store = place.store(JOIN_S)
        self.groups = 0
        """Number of groups that were formed; each has its own name in the store."""
        self._links: dict[int, Channel] = {}
        self._is_closed = False
        self._changed = threading.Condition()
        key = secrets.token_hex(32)
        secret = _secret(key)
        self._server = listen(place.own_address(), 0)
        address = format_address(*self._server.getsockname()[:2])
        self.store.set(_FRONT, json.dumps({"address": address, "key": key}))
        self._connections = Connections(
            self._server,
            lambda sock: Channel(sock, MAX_BYTES),
            lambda link: int(link.welcome(secret), 16),
            self._take,
            most=2 * place.world_size,  # a rank may come again before its old link is closed
            name="learner-ranks",
        )

    def new_group(self) -> Any:
        """Begin another group and return its store."""
        self.groups += 1
        return torch_distributed().PrefixStore(str(self.groups), self.store)

    def links(self) -> dict[int, Channel]:
        """Return the links to all other ranks, waiting for those that are missing.

        Raises:
            WorkerCrashedError: some do not connect in time.
        """
        wanted = set(range(1, self.place.world_size))
        with self._changed:
            self._changed.wait_for(lambda: wanted <= self._links.keys(), JOIN_S)
            if missing := sorted(wanted - self._links.keys()):
                ranks = ", ".join(map(str, missing))
                text = f"rank {ranks} of the learner did not come within {JOIN_S:.0f} s"
                raise rank_lost(missing[0], text)
            return dict(self._links)

    def hang_up(self) -> None:
        """Close all links. Ranks that are alive connect again."""
        with self._changed:
            for link in self._links.values():
                link.shut_down()
            self._links.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End the other ranks; idempotent."""
        with self._changed:
            self._is_closed = True
            for link in self._links.values():
                with contextlib.suppress(OSError):
                    link.send(Over(), timeout_s=HANDSHAKE_S)
        self.hang_up()
        self._connections.close(HANDSHAKE_S + 1)

    def _take(self, link: Channel, rank: int) -> None:
        """Use a link for a rank until ``hang_up``, or until the rank connects again."""
        if not 0 < rank < self.place.world_size:
            return
        link.receive(Ready, HANDSHAKE_S)
        with self._changed:
            if self._is_closed:  # while the rank connected, so nobody would hang up
                link.send(Over(), timeout_s=HANDSHAKE_S)
                return
            if (old := self._links.get(rank)) is not None:
                old.shut_down()
            self._links[rank] = link
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._links.get(rank) is not link)


def _secret(key: str) -> Secret:
    return Secret(key.encode(), source="the store of the ranks", is_explicit=False)


def rank_lost(
    number: int, text: str, code: int | None = None, trace: str = ""
) -> WorkerCrashedError:
    """Return the error for a rank that is gone, or does not answer."""
    return WorkerCrashedError(text, worker_id=f"rank-{number}", exit_code=code, traceback=trace)


def dial(place: RankPlace, stop: threading.Event) -> Channel | None:
    """Connect this rank with rank 0; returns None if ``stop`` is set before that.

    Raises:
        WorkerCrashedError: rank 0 does not answer in time.
    """
    deadline = time.monotonic() + JOIN_S
    while not stop.is_set():
        try:
            front = json.loads(place.store(HANDSHAKE_S).get(_FRONT))
            secret, name = _secret(front["key"]), f"{place.rank:032x}"
            link = Channel.to_server(front["address"], secret, name, MAX_BYTES, HANDSHAKE_S)
            link.send(Ready(), timeout_s=HANDSHAKE_S)
            return link
        except (OSError, RuntimeError, AuthError, ProtocolError) as error:
            if time.monotonic() > deadline:
                text = f"did not answer within {JOIN_S:.0f} s: {error}"
                at = format_address(place.host, place.port)
                raise rank_lost(0, f"rank 0 of the learner, at {at}, {text}") from error
            stop.wait(RETRY_S)
    return None
