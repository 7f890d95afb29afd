"""Removing the files of a run: those that this transport made, and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from dingsdk.data import PrivateDir
from dingsdk.errors import DataMissingError
from dingsdk_flask_fs import run_state, secret

FOLDERS = re.compile(r"data|quarantine|policy|spare(-[a-z]+)?")
FILES = (run_state.FILE_NAME, secret.FILE_NAME)


def remove_leavings(path: Path) -> None:
    """Remove what a run left in the folder that its workers shared, and the folder if empty.

    Files that others put there stay, and so does a secret that the user named.

    Raises:
        RunFolderError: something cannot be removed, or the folder is not ours.
    """
    if not path.is_dir():
        return
    with PrivateDir(path, create=False) as root:
        for name in root.names():
            if FOLDERS.fullmatch(name):
                _remove_tree(root, name)
        for name in FILES:
            if not _is_named_secret(path / name):
                root.unlink(name)
        for name in root.names():
            if name.startswith("."):  # a half-written file; a writer was killed
                root.unlink(name)
    with contextlib.suppress(OSError):  # not empty: it is somebody else's as well
        path.rmdir()


def _remove_tree(parent: PrivateDir, name: str) -> None:
    try:
        with parent.sub(name, create=False) as folder:
            for entry in folder.names():
                if "." in entry:  # our files have endings, our folders have none
                    folder.unlink(entry)
                else:
                    _remove_tree(folder, entry)
    except DataMissingError:
        return
    parent.remove_sub(name)


def _is_named_secret(path: Path) -> bool:
    named = os.environ.get(secret.FILE_VARIABLE)
    return named is not None and path.exists() and Path(named).exists() and path.samefile(named)
