"""Reads and writes data sets: the formats, each a part of the kind ``datasets``."""

from __future__ import annotations

import os
import re
import secrets
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dingsdk.data import Dataset, SampleBatch
from dingsdk.data.columns import leaves
from dingsdk.data.dataset import is_followed
from dingsdk.data.pytree import nest
from dingsdk.errors import (
    CheckpointError,
    DatasetError,
    RunFolderError,
    SchemaMismatchError,
    UnknownPluginError,
    listing,
)
from dingsdk.plugins import default_manager
from dingsdk.plugins.discovery import install_extra_command
from dingsdk.plugins.interfaces import check_made
from dingsdk.runtime.files import checked_path

SUFFIXES: Mapping[str, str] = {".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5"}
"""Suffix of a file -> type key of its format. A folder has the format ``buffer``."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.*)", re.DOTALL)


class DatasetFormat(ABC):
    """A format or a collection of data sets, of the kind ``datasets``; made without arguments.

    A plugin registers a subclass under a type key, and users write ``KEY:NAME`` as the path of a
    data set. Nothing that a data set contains may be executed.
    """

    @abstractmethod
    def read(self, name: str) -> Dataset:
        """Return the data set of that name.

        Args:
            name: What follows ``KEY:``; for a format of files, the path of the file.

        Raises:
            DatasetError: there is none, it is damaged, or a column does not fit.
        """

    def write(self, dataset: Dataset, name: str) -> None:
        """Write a data set under a name; what has that name is replaced.

        Raises:
            DatasetError: it cannot be written, or data sets of this kind are only read.
        """
        raise DatasetError(
            f"{name}: data sets of {type(self).__name__} can only be read; write a .npz file",
            source=name,
        )

    def has(self, name: str) -> bool:
        """Return whether there is something under a name that ``write`` would replace.

        Called before data is recorded, which may take hours.

        Raises:
            DatasetError: nothing can be written under that name, whatever it is.
        """
        try:
            Path(name).stat()
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise DatasetError(f"{name} cannot be used: {error}", source=name) from error
        return True


def read_dataset(path: str | os.PathLike[str], digest: str | None = None) -> Dataset:
    """Read a data set and check its columns.

    Args:
        path: A file with the suffix ``.npz``, ``.h5`` or ``.hdf5``, a folder that a replay buffer's
            ``save_data`` wrote, or ``KEY:NAME`` with the type key of a format, such as
            ``minari:NAME`` of a plugin.
        digest: ``Dataset.digest`` that it has to have; None for any.

    Returns:
        The data set; its ``source`` is the path.

    Raises:
        DatasetError: there is none, nothing provides the type key, it is damaged, a column is
            missing or wrong, or it has another digest.
        PluginLoadError: the plugin that provides the type key cannot be loaded.
    """
    found, name = _format_of(path)
    dataset = found.read(name)
    if digest is not None and dataset.digest != digest:
        raise DatasetError(
            f"{path} is not the data that the run began with: its digest is {dataset.digest}, and "
            f"the config has {digest}; put that data back there, or begin a new run without digest",
            source=os.fspath(path),
            expected=digest,
            found=dataset.digest,
        )
    return dataset


def write_dataset(dataset: Dataset, path: str | os.PathLike[str]) -> None:
    """Write a data set in the format that ``path`` names, as for ``read_dataset``.

    A path without suffix is the folder of a buffer. Folders above the file are made.

    Raises:
        DatasetError: it cannot be written, or nothing provides the type key.
        PluginLoadError: the plugin that provides the type key cannot be loaded.
    """
    found, name = _format_of(path)
    found.write(dataset, name)


def has_dataset(path: str | os.PathLike[str]) -> bool:
    """Return whether ``write_dataset`` would replace something at ``path``.

    Raises:
        DatasetError: it could write nothing there, or nothing provides the type key.
        PluginLoadError: the plugin that provides the type key cannot be loaded.
    """
    found, name = _format_of(path)
    return found.has(name)


def _format_of(path: str | os.PathLike[str]) -> tuple[DatasetFormat, str]:
    """Return the format of a data set, and its name there."""
    checked_path(path, "the path of a data set")
    text, manager = os.fspath(path), default_manager()
    suffix = Path(text).suffix.lower()
    scheme = _SCHEME.fullmatch(text)
    if scheme is None or os.path.exists(text):
        key, name = SUFFIXES.get(suffix, "buffer"), text
        if key == "buffer" and suffix and not os.path.isdir(text):
            raise DatasetError(
                f"{text}: no format has the suffix {suffix!r}; known: {listing(SUFFIXES)}, a "
                "folder of a saved buffer, and KEY:NAME",
                source=text,
            )
    else:
        key, name = scheme.groups()
        if not name:
            raise DatasetError(
                f"{text} is no name of a data set: {key}: comes before a name, as in {key}:NAME",
                source=text,
            )
    try:
        cls = manager.get("datasets", key)
    except UnknownPluginError as error:
        why = error.message.removeprefix("type: ")
        raise DatasetError(f"{text}: {why}", source=text) from error
    found: DatasetFormat = cls()
    check_made("datasets", cls, found, text)
    return found, name


class NpzDataset(DatasetFormat):
    """A ``.npz`` file with one array for each column, type key ``npz``.

    Parts of observations of a Dict space are named with a dot: ``obs.image``. An optional array
    ``ends`` marks the ends of pieces, as in ``Dataset``.
    """

    def read(self, name: str) -> Dataset:
        """As ``DatasetFormat.read``; arrays of Python objects are refused."""
        # Opened here, because numpy does not close a file that it cannot read.
        with _reading(name), Path(name).open("rb") as file:
            # allow_pickle: arrays of objects would be programs.
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, and no columns")
            with arrays:
                columns = nest((tuple(key.split(".")), arrays[key]) for key in arrays.files)
        ends = columns.pop("ends", None)
        return Dataset(columns, ends, source=name)

    def write(self, dataset: Dataset, name: str) -> None:
        """As ``DatasetFormat.write``; the file is not compressed."""
        # Opened here, because numpy appends .npz to the names that it opens.
        with _writing(name) as path, path.open("wb") as file:
            np.savez(file, **dict(leaves(dataset.columns)))  # type: ignore[arg-type]


class HDF5Dataset(DatasetFormat):
    """A HDF5 file with the names of D4RL, type key ``hdf5``; it needs the extra ``hdf5``.

    Parts of observations of a Dict space are in groups, such as ``observations/image``. Other
    names, such as ``infos`` and ``metadata``, are not read.

    Source: D4RL (Fu et al. 2020, arXiv:2004.07219), whose files have these names.
    """

    NAMES: Mapping[str, str] = {
        "obs": "observations",
        "action": "actions",
        "reward": "rewards",
        "terminated": "terminals",
        "truncated": "timeouts",
        "next_obs": "next_observations",
    }
    """Column -> its name in the file."""

    def read(self, name: str) -> Dataset:
        """As ``DatasetFormat.read``."""
        h5py = _h5py(name)
        with _reading(name), h5py.File(name, "r") as file:
            columns = {
                column: _read_group(h5py, file, own)
                for column, own in self.NAMES.items()
                if own in file
            }
        return Dataset(columns, source=name)

    def write(self, dataset: Dataset, name: str) -> None:
        """As ``DatasetFormat.write``."""
        h5py = _h5py(name)
        with _writing(name) as path, h5py.File(path, "w") as file:
            for column, own in self.NAMES.items():
                for part, leaf in leaves({own: dataset.columns[column]}):
                    file[part.replace(".", "/")] = leaf

    def has(self, name: str) -> bool:
        """As ``DatasetFormat.has``."""
        _h5py(name)
        return super().has(name)


class BufferDataset(DatasetFormat):
    """A folder that a replay buffer's ``save_data`` wrote, type key ``buffer``.

    Its rows have the columns of transitions, or those of one-step samples, whose ``discount`` is 0
    where the task ended. A piece ends where a row is ``done``, and where the next row does not
    begin with its ``next_obs``. Columns that are not those of a data set are left out.
    """

    def read(self, name: str) -> Dataset:
        """As ``DatasetFormat.read``; rows that had left early are left out."""
        from dingsdk.worker.replay_buffer.persistence import SavedRows

        try:
            pieces = [rows for rows, _ in SavedRows(name)]
            batches = [
                rows if isinstance(rows, SampleBatch) else SampleBatch.from_rows(rows)
                for rows in pieces
            ]
            if not batches:
                raise DatasetError(f"{name}: the saved buffer has no rows", source=name)
            columns = SampleBatch.concat(batches).columns
        except (CheckpointError, RunFolderError) as error:
            raise DatasetError(f"{name}: {_first_line(error)}", source=name) from error
        except SchemaMismatchError as error:
            raise DatasetError(
                f"{name}: its rows have no columns of equal shapes: {_first_line(error)}",
                source=name,
                column=str(error.key),
            ) from error
        wanted = ("obs", "action", "reward", "next_obs", "terminated")
        made = {key: columns[key] for key in wanted if key in columns}
        done = columns.get("done")
        if "terminated" not in made and "discount" in columns:
            made["terminated"] = self._terminated(columns["discount"], done, name)
        if done is not None:
            made["truncated"] = done
        found = Dataset(made, source=name)
        # Pieces of several envs follow each other, and those that were cut are not marked.
        cuts = np.flatnonzero(~is_followed(found.columns["obs"], found.columns["next_obs"])) + 1
        return Dataset(found.columns, cuts, source=name)

    def write(self, dataset: Dataset, name: str) -> None:
        """As ``DatasetFormat.write``; writes a folder that ``load_data`` of a buffer reads, too."""
        from dingsdk.worker.replay_buffer import NaiveReplayBuffer

        self.has(name)
        columns = dict(dataset.columns)
        columns["done"] = columns["terminated"] | columns.pop("truncated")
        buffer = NaiveReplayBuffer({"replay_buffer_size": len(dataset)})
        try:
            buffer.push(SampleBatch(columns), 0)
            buffer.save_data(name)
        except OSError as error:
            raise DatasetError(f"{name}: {_first_line(error)}", source=name) from error
        finally:
            buffer.close()

    def has(self, name: str) -> bool:
        """As ``DatasetFormat.has``; only an empty folder or a saved buffer is ever replaced."""
        from dingsdk.worker.replay_buffer.persistence import SavedRows

        if not super().has(name):
            return False
        try:
            if not os.path.isdir(name) or any(Path(name).iterdir()):
                SavedRows(name)
        except (CheckpointError, OSError) as error:
            text = f"{name} is not replaced, choose another name: {_first_line(error)}"
            raise DatasetError(text, source=name) from error
        return True

    def _terminated(self, discount: Any, done: Any, name: str) -> Any:
        """Return where one-step samples are terminated; refuse samples of several steps."""
        terminated = discount == 0
        factors = np.unique(discount[~terminated])
        if len(factors) > 1 or (done is not None and (terminated & ~np.asarray(done, bool)).any()):
            raise DatasetError(
                f"{name}: column 'discount' is of samples of several steps; save the buffer of a "
                "policy with nstep 1, or record transitions",
                source=name,
                column="discount",
            )
        return terminated


def _read_group(h5py: Any, file: Any, name: str) -> Any:
    """Return an array, or a nested dict of the arrays of a group."""
    # A link could name any other file of this computer.
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name!r} is a link to another place")
    found = file[name]
    if isinstance(found, h5py.Group):
        return {key: _read_group(h5py, found, key) for key in found}
    if getattr(found, "external", None):
        raise ValueError(f"the values of {name!r} are in another file")
    return found[()]


def _h5py(name: str) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise DatasetError(
            f"{name}: a HDF5 file needs the extra 'hdf5': {install_extra_command('hdf5')}",
            source=name,
        ) from error
    return h5py


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn errors of a file into errors about a data set."""
    if not os.path.isfile(name):
        found = "is no file" if os.path.exists(name) else "does not exist"
        raise DatasetError(f"{name} {found}", source=name)
    try:
        yield
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise DatasetError(
            f"{name} cannot be read: {_first_line(error)}; is it truncated, or in another format?",
            source=name,
        ) from error


@contextmanager
def _writing(name: str) -> Iterator[Path]:
    """Give the path to write to; rename it when it is complete, and turn errors of files."""
    path = Path(name)
    made = path.with_name(f".tmp-{secrets.token_hex(8)}")  # not longer than most names
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield made
        made.replace(path)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{name} cannot be written: {error}", source=name) from error
    finally:
        with suppress(OSError, ValueError):
            made.unlink()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
