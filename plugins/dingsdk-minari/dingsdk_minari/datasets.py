"""Data sets of Minari: one folder for each, below ``MINARI_DATASETS_PATH``."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from dingsdk.data import Dataset, SampleBatch, part_of
from dingsdk.errors import DatasetError
from dingsdk.worker import DatasetFormat

# As Minari has it, but with a version, which its own functions need.
_NAME = re.compile(r"(?P<namespace>[-\w][-\w/]*[-\w]/)?(?P<rest>[-\w]+-v\d+)", re.ASCII)
_EXPECTED = "expected NAME-v0 or NAMESPACE/NAME-v0, where a namespace has at least 2 characters"
_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, AssertionError, RuntimeError),
    ImportError,  # of a package for another file format
)


class MinariDatasets(DatasetFormat):
    """The data sets of Minari on this computer, type key ``minari``; nothing is downloaded.

    A name is ``NAMESPACE/NAME-vVERSION``, with or without a namespace. A data set that has no
    spaces in its metadata is refused: to find them, Minari would make the env that it names, which
    may be any code.

    Written data sets have no env. Their spaces are made from the data: integers are ``Discrete`` up
    to the largest one that occurs, and floats are unbounded. Images are stored as they are, where
    Minari would make JPEG files of them.
    """

    def read(self, name: str) -> Dataset:
        """As ``DatasetFormat.read``; infos are left out.

        Raises:
            DatasetError: there is no such data set, it is damaged, or it has observations or
                actions that columns cannot hold, such as those of a Tuple space.
        """
        import minari

        place = _place(name)
        with _named(name, "cannot be read"):
            # Misconfigured data sets are only warned about.
            with warnings.catch_warnings(action="ignore"):
                known = minari.list_local_datasets(prefix=name)
            if name not in known:
                wrong = "is damaged" if (place / "data").exists() else "does not exist"
                raise _wrong(name, f"{wrong}; data sets are looked for in {place}")
            for space in ("observation_space", "action_space"):
                if space not in known[name]:
                    raise _wrong(name, f"has no {space} in its metadata")
            found = minari.load_dataset(name)
            episodes = [_columns_of(each) for each in found.iterate_episodes() if len(each)]
            batch = SampleBatch.concat(map(SampleBatch, episodes))
            ends = np.cumsum([len(each["reward"]) for each in episodes])
        return Dataset(batch.columns, ends, source=f"minari:{name}")

    def write(self, dataset: Dataset, name: str) -> None:
        """As ``DatasetFormat.write``; if it fails, an older data set of that name stays.

        Raises:
            DatasetError: the name is no name of Minari, the rows of a piece do not follow each
                other, or the folder cannot be written.
        """
        import minari

        place, columns = _place(name), dataset.columns
        buffers = list(_episodes(name, dataset))
        # Minari does not replace a data set. It leaves hidden folders out.
        kept = place.with_name(f".{place.name}-{os.getpid()}")
        with _named(name, "cannot be written"):
            if self.has(name):
                place.rename(kept)
            try:
                # It warns about each fact of a published data set that is not given.
                with warnings.catch_warnings(action="ignore"):
                    minari.create_dataset_from_buffers(
                        name,
                        buffers,
                        observation_space=_space(columns["obs"]),
                        action_space=_space(columns["action"]),
                        description=f"Recorded by dingsdk from {dataset.source}.",
                        jpeg_encoding=False,
                    )
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                if kept.exists():
                    kept.rename(place)
                raise
            shutil.rmtree(kept, ignore_errors=True)

    def has(self, name: str) -> bool:
        """As ``DatasetFormat.has``; a folder without a data set is not replaced."""
        place = _place(name)
        if place.exists() and not (place / "data").is_dir():
            raise _wrong(name, f"is not replaced: {place} is no data set of Minari")
        return super().has(str(place))


def _place(name: str) -> Path:
    """Return the folder of a data set, which need not exist.

    Raises:
        DatasetError: the name is no name of Minari.
    """
    from minari.storage import get_dataset_path

    if _NAME.fullmatch(name) is None or "//" in name:
        raise _wrong(name, f"is no name of Minari: {_EXPECTED}")
    with _named(name, "cannot be used"):
        found: Path = get_dataset_path(name)
    return found


def _columns_of(episode: Any) -> dict[str, Any]:
    """Return the columns of an episode, which has one more observation than actions."""
    return {
        "obs": part_of(episode.observations, slice(None, -1)),
        "action": episode.actions,
        "reward": episode.rewards.astype(np.float32),
        "next_obs": part_of(episode.observations, slice(1, None)),
        "terminated": episode.terminations.astype(np.bool_),
        "truncated": episode.truncations.astype(np.bool_),
    }


def _episodes(name: str, dataset: Dataset) -> Iterator[Any]:
    """Yield each piece as Minari takes it: all observations, with the last one.

    Raises:
        DatasetError: the rows of a piece do not follow each other.
    """
    from minari.data_collector import EpisodeBuffer

    columns, start = dataset.columns, 0
    for index, stop in enumerate(dataset.ends.tolist()):
        rows = part_of(columns, slice(start, stop))
        obs, after = (SampleBatch({"obs": rows[key]}) for key in ("obs", "next_obs"))
        if obs[1:] != after[:-1]:
            raise DatasetError(
                f"{dataset.source}: the rows {start} to {stop - 1} are a piece, and do not follow "
                f"each other: the next_obs of one is not the obs of the next; minari:{name} would "
                "store other observations",
                source=dataset.source,
                column="next_obs",
            )
        yield EpisodeBuffer(
            id=index,
            observations=SampleBatch.concat([obs, after[-1:]]).columns["obs"],
            actions=rows["action"],
            rewards=rows["reward"],
            terminations=rows["terminated"],
            truncations=rows["truncated"],
        )
        start = stop


def _space(column: Any) -> spaces.Space[Any]:
    """Return a space that holds the rows of a column."""
    if isinstance(column, Mapping):
        return spaces.Dict({key: _space(value) for key, value in column.items()})
    kind, shape = column.dtype.kind, column.shape[1:]
    if kind == "b":
        return spaces.MultiBinary(shape) if shape else spaces.Discrete(2)
    if kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, column.dtype)
    if not shape:
        start = min(0, int(column.min()))
        return spaces.Discrete(int(column.max()) - start + 1, start=start)
    limits = np.iinfo(column.dtype)
    return spaces.Box(limits.min, limits.max, shape, column.dtype)


@contextmanager
def _named(name: str, what: str) -> Iterator[None]:
    """Turn errors of Minari and of files into errors about a data set."""
    try:
        yield
    except DatasetError:
        raise
    except _ERRORS as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise _wrong(name, f"{what}: {text}") from error


def _wrong(name: str, what: str) -> DatasetError:
    return DatasetError(f"minari:{name} {what}", source=f"minari:{name}")
