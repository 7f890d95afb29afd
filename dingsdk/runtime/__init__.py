"""What an operating system gives: files, locks, sockets, secrets, processes and deadlines.

Nothing here knows about training; torch is never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.runtime.connections import BACKLOG as BACKLOG
    from dingsdk.runtime.connections import Connections as Connections
    from dingsdk.runtime.connections import RareLog as RareLog
    from dingsdk.runtime.connections import format_address as format_address
    from dingsdk.runtime.connections import listen as listen
    from dingsdk.runtime.connections import url_host as url_host
    from dingsdk.runtime.connections import why_not_bound as why_not_bound
    from dingsdk.runtime.deadline import checked_timeout as checked_timeout
    from dingsdk.runtime.files import Buffer as Buffer
    from dingsdk.runtime.files import Folder as Folder
    from dingsdk.runtime.files import PrivateDir as PrivateDir
    from dingsdk.runtime.files import check_id as check_id
    from dingsdk.runtime.files import guarded as guarded
    from dingsdk.runtime.files import is_locked as is_locked
    from dingsdk.runtime.files import locked_folder as locked_folder
    from dingsdk.runtime.files import open_private as open_private
    from dingsdk.runtime.http_guard import HttpGuard as HttpGuard
    from dingsdk.runtime.http_guard import Refusal as Refusal
    from dingsdk.runtime.http_guard import ip_address_of as ip_address_of
    from dingsdk.runtime.http_guard import target_of as target_of
    from dingsdk.runtime.secret import Secret as Secret
    from dingsdk.runtime.secret import check_reach as check_reach
    from dingsdk.runtime.secret import create_secret as create_secret
    from dingsdk.runtime.secret import find_secret as find_secret
    from dingsdk.runtime.secret import is_loopback as is_loopback
    from dingsdk.runtime.secret import named_secret as named_secret
    from dingsdk.runtime.secret import read_secret as read_secret
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
