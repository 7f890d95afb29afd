"""Ids that come from elsewhere and name files here."""

from __future__ import annotations

import re

from dingsdk.errors import ProtocolError

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DEVICE = re.compile(r"CON|PRN|AUX|NUL|COM[0-9]|LPT[0-9]", re.IGNORECASE)


def check_id(text: object, what: str = "id") -> str:
    """Return an id received from elsewhere, if it can be part of a file name.

    Raises:
        ProtocolError: it is no ``[A-Za-z0-9_-]{1,64}``, or some file server takes it for a
            device; ``where`` is ``what``.
    """
    if isinstance(text, str) and _ID.fullmatch(text) and not _DEVICE.fullmatch(text):
        return text
    raise ProtocolError(f"{what} {text!r:.80} is no id: 1 to 64 of A-Z a-z 0-9 _ -", where=what)
