"""Facts that a table stores about its rows: ids, uses, learner iteration of the policy."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import is_tensor, mismatch, torch_to_numpy
from dingsdk.errors import CheckpointCorruptError, InvalidPriorityError, SchemaMismatchError
from dingsdk.worker.replay_buffer.interface import KEPT
from dingsdk.worker.replay_buffer.kernels import Floats, Ints, compiled
from dingsdk.worker.replay_buffer.storage import Rows, Where, one_by_one

NO_ROW = -1
"""The id at a position whose row has left, or that was never used."""
UNKNOWN_ITER = np.iinfo(np.int64).min
"""The ``collect_iter`` of a row that was pushed without one."""
ADDED = ("replay_unique_id", "replay_buffer_idx", "IS", "priority", "use", "staleness")
"""The keys that prioritized sampling adds; stored rows do not have them."""
_ADDED = frozenset(ADDED)
_UNKNOWN = np.array([UNKNOWN_ITER])
_LARGEST = 1 << 63
_ID, _ITER, _USE, _WIDTH = 0, 1, 2, 4
_KEYS = ("replay_unique_id", "collect_iter", "use")


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Facts about pushed rows that are stored outside of them.

    Attributes:
        priorities: float64[n], NaN for a row without a priority; None if no row has one.
        iters: int64[n], the learner iteration of the policy that collected each row, or int64[1]
            for all rows; ``UNKNOWN_ITER`` if it is not known.
    """

    priorities: NDArray[np.float64] | None
    iters: NDArray[np.int64]


class RowMetadata:
    """Id, ``collect_iter`` and number of uses of the row at each position.

    All facts are in one array, 32 bytes a position, so reading a row's facts costs one cache miss.

    Args:
        capacity: Number of positions.
        max_use: Times that a row is sampled before it leaves; may be infinite.
        max_staleness: Age in learner iterations at which a row leaves; may be infinite.

    Attributes:
        next_id: The id of the next row; ids are never reused.
        live: How many rows have not left.
    """

    def __init__(
        self, capacity: int, max_use: float = math.inf, max_staleness: float = math.inf
    ) -> None:
        self._capacity = capacity
        self._max_use, self._max_staleness = max_use, max_staleness
        self._facts = np.full((capacity, _WIDTH), NO_ROW, np.int64)
        self._queue = _StalenessQueue(self._facts) if max_staleness < math.inf else None
        self.next_id = 0
        self.live = 0

    def prepare(self, rows: Rows) -> tuple[Rows, RowFacts]:
        """Return the rows without the keys that sampling adds, and the facts about them.

        The learner iteration of a row is read from ``collect_iter``, or from ``policy_iter`` if
        that is missing. If a row has several values (a sequence), the least is used.

        Raises:
            SchemaMismatchError, InvalidPriorityError: the rows cannot be pushed.
        """
        if not isinstance(rows, SampleBatch):
            return _facts_of_dicts(rows)
        columns = rows.columns
        priority = columns.get("priority")
        priorities = None if priority is None else read_priorities(priority)
        iters = columns.get("collect_iter", columns.get("policy_iter"))
        if iters is None:
            iters = _UNKNOWN
        elif isinstance(iters, dict) or iters.dtype.kind not in "iu" or iters.size < len(rows):
            raise _wrong_iter("the column of collect_iter", None, iters)
        else:
            if iters.ndim > 1:
                iters = iters.reshape(len(rows), -1).min(axis=1)
            iters = np.array(iters, np.int64)
        if not _ADDED.isdisjoint(columns):
            columns = {key: column for key, column in columns.items() if key not in _ADDED}
            if not columns:
                raise _empty_row(0)
            rows = SampleBatch.trusted(columns, len(rows))
        return rows, RowFacts(priorities, iters)

    def with_facts(self, rows: Rows, facts: Mapping[str, NDArray[Any]]) -> Rows:
        """Return loaded rows with those of their saved facts that :meth:`prepare` reads."""
        if "priority" not in facts:
            return rows
        if isinstance(rows, SampleBatch):
            return rows.with_columns(priority=facts["priority"])
        pairs = zip(rows, facts["priority"].tolist(), strict=True)
        return [{**row, "priority": priority} for row, priority in pairs]

    def insert(self, where: Where, facts: RowFacts) -> None:
        """Add rows that were stored at positions; they replace any earlier rows there."""
        first, replaced = self.next_id, self._facts[where, _ID] != NO_ROW
        n = len(replaced)
        self._facts[where, _ID] = np.arange(first, first + n)
        self._facts[where, _ITER] = facts.iters
        self._facts[where, _USE] = 0
        self.next_id += n
        self.live += n - int(np.count_nonzero(replaced))
        if self._queue is not None:
            self._queue.add(where)

    def living(self, where: Where) -> Where:
        """Return the positions whose rows have not left early."""
        here: NDArray[np.bool_] = self._facts[where, _ID] != NO_ROW
        if here.all():
            return where
        return one_by_one(where)[here]

    def remove(self, where: NDArray[np.int64]) -> None:
        """Forget rows at positions; none of them may have left before."""
        self._facts[where, _ID] = NO_ROW
        self.live -= len(where)

    def clear(self) -> None:
        """Forget all rows."""
        self._facts.fill(NO_ROW)
        self.live = 0
        if self._queue is not None:
            self._queue.rebuild()

    def serve(self, where: NDArray[np.int64], learner_iter: int) -> NDArray[np.int64]:
        """Count one use of each sampled row, and return the facts about it.

        Returns:
            int64[3, n]: ids; uses, including this one (a row that is drawn twice counts twice); and
            staleness, the learner iterations since the row was collected (-1: unknown).
        """
        out = np.empty((3, len(where)), np.int64)
        _count_uses(self._facts, where, learner_iter, out)
        return out

    def take_stale(self, learner_iter: int) -> NDArray[np.int64]:
        """Return, only once, the positions of rows that are now too stale, oldest row first.

        Only for metadata with a finite ``max_staleness``.
        """
        assert self._queue is not None
        return self._queue.take(math.floor(learner_iter - self._max_staleness))

    def used_up(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions whose rows were sampled ``max_use`` times, oldest row first.

        ``where`` may contain a position twice.
        """
        used_up = np.unique(where[self._facts[where, _USE] >= self._max_use])
        return used_up[np.argsort(self._facts[used_up, _ID])]

    def find(
        self,
        where: NDArray[np.int64],
        ids: NDArray[np.int64],
        priorities: NDArray[np.float64],
        added: float,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the positions of the rows that are still stored, and their priority + ``added``.

        ``where`` and ``ids`` are int64[n]; invalid numbers are skipped.
        """
        places = np.empty(len(where), np.int64)
        values = np.empty(len(where), np.float64)
        n = _match_ids(self._facts, where, ids, priorities, added, places, values)
        return places[:n], values[:n]

    @property
    def limits_uses(self) -> bool:
        """Whether rows leave after a number of uses."""
        return math.isfinite(self._max_use)

    def uses(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often the rows at positions were sampled."""
        uses: NDArray[np.int64] = self._facts[where, _USE]
        return uses

    def set_uses(self, where: NDArray[np.int64], uses: NDArray[np.int64]) -> None:
        """Set how often the rows at positions were sampled."""
        self._facts[where, _USE] = uses

    def facts(self, state: Mapping[str, Any], where: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the facts that a state holds about rows, as arrays of one value a row."""
        # take() releases the interpreter lock; indexing would block other threads, 10 ms per 1e6.
        is_kept = state["replay_unique_id"].take(where) != NO_ROW
        return {"use": state["use"].take(where), **({} if is_kept.all() else {KEPT: is_kept})}

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return views of the state's arrays that have one entry for each position."""
        return dict(zip(_KEYS, self._facts.T, strict=False))  # the last column is padding

    def state_dict(self) -> dict[str, Any]:
        """Return the state without :meth:`columns`."""
        return {"next_unique_id": self.next_id}

    def restored(self, state: Mapping[str, Any], positions: int) -> RowMetadata:
        """Return new metadata with this state and the settings of this object.

        ``state`` has the first entries of :meth:`columns` too, as many as ``positions``.

        Raises:
            CheckpointCorruptError: the entries of the state contradict each other.
        """
        try:
            columns = [np.asarray(state[key]) for key in _KEYS]
            next_id = state["next_unique_id"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(f"the row metadata is wrong: {error}") from error
        ids, _, use = columns
        live = ids[ids != NO_ROW]
        if not (
            all(each.dtype.kind in "iu" and each.shape == (positions,) for each in columns)
            and len(np.unique(live)) == len(live)
            and np.all(use >= NO_ROW)
            and type(next_id) is int
            and live.min(initial=0) >= 0
            and live.max(initial=-1) < next_id
        ):
            raise CheckpointCorruptError(
                f"the row metadata is wrong; expected ids, iterations and uses of {positions} rows "
                f"as integers, and each id once and below next_unique_id, {next_id!r:.80}"
            )
        new = RowMetadata(self._capacity, self._max_use, self._max_staleness)
        for index, column in enumerate(columns):
            new._facts[:positions, index] = column
        new.next_id, new.live = next_id, len(live)
        if new._queue is not None:
            new._queue.rebuild()
        return new


class _StalenessQueue:
    """Positions grouped by the learner iteration of the policy that collected their rows.

    Rows may be added in any order of iterations, and may leave for other reasons at any time. Only
    when an iteration becomes too old are its positions looked up in ``facts``, the array of
    :class:`RowMetadata`. So the time for a push or a stale row does not depend on the number of
    rows.
    """

    def __init__(self, facts: NDArray[np.int64]) -> None:
        self._facts = facts
        self.rebuild()

    def rebuild(self) -> None:
        """Build the queue anew from the stored rows."""
        # A heap of (iteration, first id, positions, ids); the first id makes an entry unique.
        self._groups: list[tuple[int, int, NDArray[np.int64], NDArray[np.int64]]] = []
        self._size = 0
        self._add(np.flatnonzero(self._facts[:, _ID] != NO_ROW))

    def add(self, where: Where) -> None:
        """Add rows whose facts were just stored; rows of unknown iteration never become stale."""
        where = one_by_one(where)
        if self._size + len(where) > 2 * len(self._facts) + 1000:
            # Many entries are of rows that were overwritten since.
            self.rebuild()
        else:
            self._add(where)

    def _add(self, where: NDArray[np.int64]) -> None:
        iters = self._facts[where, _ITER]
        for value in np.unique(iters[iters != UNKNOWN_ITER]).tolist():
            chosen = where[iters == value]
            ids = self._facts[chosen, _ID]
            heapq.heappush(self._groups, (value, int(ids[0]), chosen, ids))
            self._size += len(chosen)

    def take(self, latest: int) -> NDArray[np.int64]:
        """Remove and return the positions of rows of iteration <= ``latest``, oldest row first."""
        where, ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while self._groups and self._groups[0][0] <= latest:
            _, _, positions, numbers = heapq.heappop(self._groups)
            where.append(positions)
            ids.append(numbers)
            self._size -= len(positions)
        found, number = np.concatenate(where), np.concatenate(ids)
        is_here = self._facts[found, _ID] == number
        stale: NDArray[np.int64] = found[is_here][np.argsort(number[is_here])]
        return stale


def _facts_of_dicts(rows: Sequence[Any]) -> tuple[list[Any], RowFacts]:
    stored: list[Any] = []
    priorities = np.full(len(rows), math.nan)
    iters = np.full(len(rows), UNKNOWN_ITER)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            hint = "a prioritized buffer keeps only dicts, type naive any object"
            raise mismatch(f"row {index}", "", "dict", type(row).__name__, hint, row=index)
        priority, collect_iter = row.get("priority"), row.get("collect_iter")
        if priority is not None:
            if type(priority) is not float:
                numbers = _numbers(priority, "fiu")
                priority = math.nan if numbers.ndim else float(numbers)
            if not 0 <= priority < math.inf:
                raise _invalid("priority", row["priority"], index)
            priorities[index] = priority
        if collect_iter is None:
            collect_iter = row.get("policy_iter")
        if collect_iter is not None:
            least = collect_iter
            if type(least) is not int:
                numbers = _numbers(least, "iu")
                least = int(numbers.min()) if numbers.size else _LARGEST  # of a sequence's steps
            if not UNKNOWN_ITER <= least < _LARGEST:
                raise _wrong_iter(f"collect_iter of row {index}", index, collect_iter)
            iters[index] = least
        if not _ADDED.isdisjoint(row):
            row = {key: value for key, value in row.items() if key not in _ADDED}
        if not row:
            raise _empty_row(index)
        stored.append(row)
    return stored, RowFacts(None if np.isnan(priorities).all() else priorities, iters)


def _empty_row(index: int) -> SchemaMismatchError:
    expected = "a key besides those that sampling adds"
    return mismatch(f"row {index}", "", expected, "none", ", ".join(ADDED), row=index)


def _numbers(value: Any, kinds: str) -> NDArray[Any]:
    """Return a value as an array of one of the kinds; an empty one if that is impossible."""
    try:
        array = np.asarray(_numpy_of(value))
    except (TypeError, ValueError):
        return np.empty(0)
    return array if array.dtype.kind in kinds else np.empty(0)


def _wrong_iter(what: str, row: int | None, value: Any) -> SchemaMismatchError:
    expected, hint = "an integer of 64 bits, or several", f"it is {value!r:.80}"
    return mismatch(what, "collect_iter", expected, type(value).__name__, hint, row=row)


def read_update(
    info: Mapping[str, Any],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the priorities, ids and positions of an update: float64[n], int64[n], int64[n].

    Raises:
        InvalidPriorityError: one of them is missing or invalid, or their numbers differ.
    """
    priorities = read_priorities(info["priority"])
    found = []
    for key in ("replay_unique_id", "replay_buffer_idx"):
        numbers = _read_numbers(key, info.get(key, ()), "iu", np.int64)
        if len(numbers) != len(priorities):
            raise InvalidPriorityError(
                f"an update of {len(priorities)} priorities has {len(numbers)} of {key!r}; copy "
                "this column of the sample",
                key=key,
                found=len(numbers),
                expected=len(priorities),
            )
        found.append(numbers)
    return priorities, found[0], found[1]


def read_priorities(values: Any) -> NDArray[np.float64]:
    """Return a list, an array or a tensor of finite numbers >= 0 as float64[n].

    Raises:
        InvalidPriorityError: the values are anything else.
    """
    priorities = _read_numbers("priority", values, "fiu", np.float64)
    invalid = _first_invalid(priorities)
    if invalid >= 0:
        raise _invalid("priority", priorities[invalid], invalid)
    return priorities


def _read_numbers(key: str, values: Any, kinds: str, dtype: Any) -> NDArray[Any]:
    """Return a list, an array or a tensor of numbers as an array for compiled code."""
    array = _numpy_of(values)
    if isinstance(values, (list, tuple)):
        # numpy would convert True among numbers to 1.
        types = list(map(type, values))
        if bool in types:
            index = types.index(bool)
            raise _invalid(key, values[index], index)
        with suppress(TypeError, ValueError):
            array = np.asarray(values, None if values else dtype)
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds:
        what = "numbers" if "f" in kinds else "integers"
        raise InvalidPriorityError(
            f"{key} of an update is a list, array or tensor of {what}, found {values!r:.80}",
            key=key,
            found=type(values).__name__,
        )
    # Compiled code does not accept read-only arrays, even if it only reads them.
    plain = np.ascontiguousarray(array, dtype)
    return plain if plain.flags.writeable else plain.copy()


def _numpy_of(value: Any) -> Any:
    """Return a tensor as an array, also one of the floating dtypes that numpy does not have."""
    if is_tensor(value) and value.is_floating_point():
        value = value.detach().cpu().double()
    return torch_to_numpy(value)


def _invalid(key: str, value: Any, index: int) -> InvalidPriorityError:
    return InvalidPriorityError(
        f"{key} of row {index} is {value!r:.80}; it must be a finite number >= 0",
        key=key,
        found=f"{value!r:.80}",
        index=index,
    )


@compiled("int64(float64[::1])")
def _first_invalid(priorities: Floats) -> int:
    """Return the index of the first priority that is not finite and >= 0, or -1."""
    for i in range(priorities.shape[0]):
        if not 0.0 <= priorities[i] < np.inf:
            return i
    return -1


@compiled("void(int64[:, ::1], int64[::1], int64, int64[:, ::1])")
def _count_uses(facts: NDArray[np.int64], where: Ints, learner_iter: int, out: Ints) -> None:
    """Count a use of each row; write ids, uses and staleness to ``out`` (int64[3, n])."""
    for i in range(where.shape[0]):
        row = np.uint64(where[i])
        out[0, i] = facts[row, 0]
        facts[row, 2] += 1
        out[1, i] = facts[row, 2]
        collected = facts[row, 1]
        out[2, i] = -1 if collected == UNKNOWN_ITER else learner_iter - collected


@compiled(
    "int64(int64[:, ::1], int64[::1], int64[::1], float64[::1], float64, int64[::1], float64[::1])"
)
def _match_ids(
    facts: NDArray[np.int64],
    where: Ints,
    ids: Ints,
    priorities: Floats,
    added: float,
    places: Ints,
    values: Floats,
) -> int:
    """Copy positions and priorities of rows that are still stored; return how many there are."""
    kept = 0
    for i in range(where.shape[0]):
        row = where[i]
        if 0 <= row < facts.shape[0] and ids[i] >= 0 and facts[np.uint64(row), 0] == ids[i]:
            places[kept] = row
            values[kept] = priorities[i] + added
            kept += 1
    return kept
