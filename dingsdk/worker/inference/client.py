"""The collector's side: asks a server for actions, and acts locally if it does not answer."""

from __future__ import annotations

import logging
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dingsdk.data.channel import Channel, Head, decode_value, encode_value
from dingsdk.errors import DingError
from dingsdk.runtime.files import PrivateDir
from dingsdk.runtime.secret import find_secret

FOLDER = "inference"
"""Folder of a run with the secret, and one file ``<server>.address`` per server."""
SUFFIX = ".address"
MAX_BYTES = 256 << 20
"""Largest observations or actions in one message."""
KIND = "inference"
ANSWER_S = 1.0
"""How long a server may take before the collector acts locally."""
RETRY_S = 1.0
"""Pause before a server that did not answer is asked again."""

_log = logging.getLogger(__name__)

Acting = Callable[..., dict[str, Any]]


class Act(Head, frozen=True):
    """A request of a collector for actions on the observations in the frame.

    With ``is_exact`` the actions must be of this version of the policy; otherwise a newer version
    is allowed.
    """

    policy_id: str
    version: int
    is_exact: bool


class Acted(Head, frozen=True):
    """The answer with the actions in the frame, of this version of the policy."""

    version: int


class NotActed(Head, frozen=True):
    """The server lacks the policy, or the policy raised: the collector must act locally."""

    text: str


class InferenceClient:
    """Asks an inference server of the run. Not safe for use from several threads.

    Every call has a deadline. While no server answers, the collector's own policy acts; a server
    that comes back is used again within ``RETRY_S``.

    Args:
        run_dir: Folder of the run.
        name: Name of the collector; if there are several servers, it selects one.

    Attributes:
        version: Version of the policy that gave the last actions.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self._run_dir, self._name = run_dir, name
        self._id = secrets.token_hex(16)
        self._channel: Channel | None = None
        self._retry_at = 0.0
        self._has_answered = False
        self.version = 0

    def acting(self, act: Acting, asked: Callable[[], tuple[str, int, bool]]) -> Acting:
        """Return a function like ``BasePolicy.act`` that asks a server if there is one.

        Args:
            act: The collector's own ``act``, which explores.
            asked: Returns the id of the policy, the version that ``act`` uses, and whether the
                actions must be of exactly that version; otherwise a newer version is allowed.
        """

        def remote_act(
            obs: Any, env_ids: Sequence[int] | None = None, **setting: Any
        ) -> dict[str, Any]:
            policy_id, version, is_exact = asked()
            given = {key: value for key, value in setting.items() if key != "explore"}
            found = self._ask(Act(policy_id, version, is_exact), obs, given)
            if found is not None:
                return found
            self.version = version
            return act(obs, env_ids, **setting)

        return remote_act

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ask(self, head: Act, obs: Any, setting: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the server's output; None if the collector must act locally."""
        if not self._is_connected():
            return None
        assert self._channel is not None
        try:
            frame = encode_value(KIND, {"obs": obs, "setting": dict(setting)})
            self._channel.send(head, frame, timeout_s=ANSWER_S)
            answer, body = self._channel.receive(Acted | NotActed, ANSWER_S)
            if isinstance(answer, NotActed):
                _log.debug("the inference server did not act: %s", answer.text)
                return None
            output = decode_value(KIND, body)
        except (OSError, DingError) as error:
            self._hang_up(error)
            return None
        self.version = answer.version
        return dict(output)

    def _is_connected(self) -> bool:
        if self._channel is not None:
            return True
        if time.monotonic() < self._retry_at:
            return False
        with suppress(OSError, DingError):
            self._channel = self._connected()
        if self._channel is None:
            self._retry_at = time.monotonic() + RETRY_S
            return False
        self._has_answered = True
        _log.info("%s acts through an inference server", self._name)
        return True

    def _connected(self) -> Channel | None:
        with PrivateDir(self._run_dir / FOLDER) as folder:
            names = sorted(name for name in folder.names() if name.endswith(SUFFIX))
            secret = find_secret(folder)
            if not names or secret is None:
                return None
            name = names[zlib.crc32(self._name.encode()) % len(names)]
            address = folder.read(name, 100).decode()
        return Channel.to_server(address, secret, self._id, MAX_BYTES, ANSWER_S)

    def _hang_up(self, error: Exception) -> None:
        if self._has_answered:
            _log.warning("%s acts by itself: the inference server does not (%s)", self._name, error)
            self._has_answered = False
        self.close()
        self._retry_at = time.monotonic() + RETRY_S
