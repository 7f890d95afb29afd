"""Facts that a table stores about its rows: ids, uses, learner iteration of the policy."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
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

    def remove(self, where: Where) -> None:
        """Forget rows at positions; none of them may have left before."""
        self._facts[where, _ID] = NO_ROW
        self.live -= where.stop - where.start if isinstance(where, slice) else len(where)

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

    def ids(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of the rows at positions; ``NO_ROW`` for a position without a row."""
        ids: NDArray[np.int64] = self._facts[where, _ID]
        return ids

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
        for column in columns:
            if column.dtype.kind not in "iu" or column.shape != (positions,):
                raise CheckpointCorruptError(
                    f"the row metadata has {column.dtype}{list(column.shape)}; expected integers "
                    f"of {positions} rows"
                )
        ids, _, use = columns
        live = ids[ids != NO_ROW]
        distinct = len(np.unique(live)) == len(live) and np.all(use >= NO_ROW)
        least, most = live.min(initial=0), live.max(initial=-1)
        if not (distinct and type(next_id) is int and 0 <= least <= most + 1):
            raise CheckpointCorruptError("the ids or uses of the rows contradict each other")
        if next_id <= most:
            raise CheckpointCorruptError(
                f"next_unique_id is {next_id}, but a row has the id {most} already"
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
            priorities[index] = _pushed_priority(priority, index)
        if collect_iter is None:
            collect_iter = row.get("policy_iter")
        if collect_iter is not None:
            iters[index] = _pushed_iter(collect_iter, index)
        if not _ADDED.isdisjoint(row):
            row = {key: value for key, value in row.items() if key not in _ADDED}
        if not row:
            raise _empty_row(index)
        stored.append(row)
    return stored, RowFacts(None if np.isnan(priorities).all() else priorities, iters)


def _empty_row(index: int) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"row {index} holds nothing but what sampling adds ({', '.join(ADDED)})",
        key="",
        row=index,
        expected="a dict with keys of its own",
        found="no such key",
    )


def _pushed_priority(value: Any, index: int) -> float:
    if type(value) is not float:
        try:
            array = np.asarray(_numpy_of(value))
        except (TypeError, ValueError) as error:
            raise _invalid("priority", value, index) from error
        value = array[()] if array.ndim == 0 and array.dtype.kind in "fiu" else value
    if not isinstance(value, float | np.number) or not 0 <= value < math.inf:
        raise _invalid("priority", value, index)
    return float(value)


def _pushed_iter(value: Any, index: int) -> int:
    """Return the learner iteration of the policy that collected a row."""
    found: int | None = None
    if type(value) is int:
        found = value
    else:
        try:
            array = np.asarray(torch_to_numpy(value))
        except (TypeError, ValueError):
            array = np.empty(0)
        if array.dtype.kind in "iu" and array.size:
            found = int(array.min())  # of its oldest step, for a sequence
    if found is None or not UNKNOWN_ITER <= found < 1 << 63:
        raise _wrong_iter(f"collect_iter of row {index}", index, value)
    return found


def _wrong_iter(what: str, row: int | None, found: Any) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{what} is {found!r:.80}; it is an integer of 64 bits, or several",
        key="collect_iter",
        row=row,
        expected="int",
        found=type(found).__name__,
    )


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


def read_ids(info: Mapping[str, Any], key: str, n: int) -> NDArray[np.int64]:
    """Return the ids or positions of an update as int64[n].

    Raises:
        InvalidPriorityError: they are missing, not integers, or their number is not ``n``.
    """
    if key not in info:
        raise InvalidPriorityError(
            f"an update lacks {key!r}; copy this column of the sample", key=key, found=sorted(info)
        )
    ids = _read_numbers(key, info[key], "iu", np.int64)
    if len(ids) != n:
        raise InvalidPriorityError(
            f"an update of {n} priorities has {len(ids)} of {key!r}; each priority needs one",
            key=key,
            found=len(ids),
            expected=n,
        )
    return ids


def _read_numbers(key: str, values: Any, kinds: str, dtype: Any) -> NDArray[Any]:
    """Return a list, an array or a tensor of numbers as an array for compiled code."""
    array = values if isinstance(values, list | tuple) else _numpy_of(values)
    if not isinstance(array, np.ndarray):
        items = array if isinstance(array, list | tuple) else None
        # numpy would convert True among numbers to 1.
        types = list(map(type, items or ()))
        if bool in types:
            raise _invalid(key, "a bool", types.index(bool))
        try:
            array = np.asarray(items, None if items else dtype)
        except (TypeError, ValueError) as error:
            raise InvalidPriorityError(
                f"{key} of an update makes no array of numbers: {error}", key=key, found="list"
            ) from error
    if array.ndim != 1 or array.dtype.kind not in kinds:
        what = "numbers" if "f" in kinds else "integers"
        found = f"{array.dtype}{list(array.shape)}" if array.ndim else f"{values!r:.80}"
        raise InvalidPriorityError(
            f"{key} of an update is a list, array or tensor of {what}, found {found}",
            key=key,
            found=found,
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
