"""Finds the secret that all processes of a run share.

It is read from the first of these that exists: the file that ``DINGSDK_SECRET_FILE`` names, the
variable ``DINGSDK_SECRET``, and a file in the run's folder, which the master writes. If an
environment variable is set, but its secret cannot be used, that is an error; no other secret is
used in its place.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from dingsdk.errors import AuthError, InsecureBindError
from dingsdk.runtime.files import PrivateDir, open_private

_log = logging.getLogger(__name__)

FILE_VARIABLE = "DINGSDK_SECRET_FILE"
VARIABLE = "DINGSDK_SECRET"
FILE_NAME = "secret"
MIN_BYTES = 16
"""Shortest secret: 128 bits."""
MAX_BYTES = 4096
"""Longest secret."""


class Secret:
    """The bytes of a secret, and their source; ``repr`` does not show the bytes.

    Attributes:
        source: The file or environment variable that the secret was read from.
        is_explicit: Whether the user chose the secret (by an environment variable).
    """

    __slots__ = ("_value", "is_explicit", "source")

    def __init__(self, value: bytes, *, source: str, is_explicit: bool) -> None:
        if len(value) < MIN_BYTES:
            raise AuthError(
                f"the secret in {source} has {len(value)} bytes; at least {MIN_BYTES} are needed: "
                'python -c "import secrets; print(secrets.token_hex(32))" prints a good one',
                reason="short",
            )
        self._value = value
        self.source = source
        self.is_explicit = is_explicit

    def reveal(self) -> bytes:
        """Return the bytes of the secret."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(<redacted>)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret is not copied into messages or files")


def named_secret(environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Return the secret that the environment names, or None.

    Raises:
        AuthError: that secret is missing, empty or too short, or others can read its file.
    """
    if FILE_VARIABLE in environ:
        return read_secret(Path(environ[FILE_VARIABLE]), is_explicit=True)
    if VARIABLE in environ:
        return Secret(os.fsencode(environ[VARIABLE].strip()), source=VARIABLE, is_explicit=True)
    return None


def create_secret(folder: PrivateDir, environ: Mapping[str, str] = os.environ) -> Secret:
    """Return the secret for a master: from the environment, else from the run's folder.

    If neither has one, a new secret is written to the folder.

    Raises:
        AuthError: as ``named_secret``, or the file in the folder cannot be used.
        RunFolderError, StorageFullError: the file cannot be written.
    """
    found = find_secret(folder, environ)
    if found is not None:
        return found
    folder.write_atomic(FILE_NAME, [secrets.token_hex(32).encode()], durable=True)
    return read_secret(folder.path / FILE_NAME)


def find_secret(folder: PrivateDir, environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Return the secret for a worker: from the environment, else from the run's folder.

    Returns None if the folder does not have one yet.

    Raises:
        AuthError: as ``create_secret``.
    """
    found = named_secret(environ)
    if found is None and folder.stat(FILE_NAME) is not None:
        found = read_secret(folder.path / FILE_NAME)
    return found


def check_reach(host: str, secret: Secret | None, path: str) -> None:
    """Check that the user chose the secret if other hosts can reach the address.

    Args:
        host: Name or IP address to listen on.
        secret: The secret that peers must have; None: one that is not chosen by the user.
        path: Config key of the host.

    Raises:
        InsecureBindError: the user did not choose the secret.
    """
    if is_loopback(host):
        return
    if secret is None or not secret.is_explicit:
        raise InsecureBindError(
            f"{path} is {host!r}, which other hosts can reach: choose a secret for all of them "
            f"({FILE_VARIABLE} or {VARIABLE}), or listen on 127.0.0.1",
            path=path,
            host=host,
        )
    _log.warning(
        "listening on %s: peers must know the secret, but messages are not encrypted; use a "
        "private network, or a tunnel that encrypts",
        host,
    )


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an address; False for names other than ``localhost``."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_secret(path: Path, is_explicit: bool = False) -> Secret:
    """Return the stripped content of a file that only this user can read.

    Raises:
        AuthError: it cannot be read, others may read it, or its content is too short.
    """
    try:
        # Not blocking: the path may name a pipe.
        descriptor = open_private(str(path), os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        text = f"cannot read the secret file {path}: {error.strerror}"
        raise AuthError(text, reason="unreadable") from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise AuthError(f"the secret file {path} belongs to another user", reason="owner")
        if found.st_mode & 0o077:
            text = f"others may read the secret file {path}: chmod 600 {path}"
            raise AuthError(text, reason="mode")
        value = os.read(descriptor, MAX_BYTES).strip()
    finally:
        os.close(descriptor)
    return Secret(value, source=str(path), is_explicit=is_explicit)
