"""Counts samples independently of dingsdk, by a number in each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dingsdk.errors import SamplesLostError
from dingsdk.worker.sample_counts import SampleCounts

TRAINED = "trained"
"""The reason for which the rows of an on-policy policy leave."""


class HomeLog:
    """What happened in one home of the buffer.

    Args:
        gone: Payloads that had left before; all others are announced to this home.
        trained_rows: Rows that earlier homes reported as trained on.
        first_iter: Iteration at which the home's learner begins.
    """

    def __init__(self, gone: Mapping[str, Counter[str]], trained_rows: int) -> None:
        self.gone = dict(gone)
        self.trained_rows = trained_rows
        self.first_iter = 0
        self.tried: list[str] = []
        """Payloads that it tried to read, in order."""
        self.rows: dict[str, set[int]] = {}
        """The samples that it holds, by data id; an entry for each payload that was inserted."""
        self.count = 0
        self.left: Counter[tuple[str, str]] = Counter()
        """Rows that left since the last report, by data id and reason."""
        self.lost: set[str] = set()
        """Payloads that could not be read since the last report."""
        self.uses: Counter[int] = Counter()
        self.drawn_rows = 0
        self.reports: list[list[tuple[str, str, int]]] = []
        """For each report, what the coordinator has to count: (data id, reason, rows)."""
        self.returned: set[str] = set()
        """Payloads that are not announced to it: an earlier learner has trained on them."""
        self.settled: list[tuple[int, list[tuple[str, str, int]]]] = []
        """What a coordinator has counted, and the number of its newest report then."""


class SampleOracle:
    """Follows each sample from the collector to the learner, without the counts of the run.

    Collectors number their samples, and store the number in each sample. The simulation calls the
    oracle when a payload is announced and acknowledged, when its rows enter and leave the table of
    a home, when a home reports, when a coordinator has processed reports, when a payload is
    deleted, and when a learner trains on a batch.

    Attributes:
        announced: Numbers of the samples of each announced payload, by data id.
        acknowledged: Data ids of the payloads that were acknowledged to a collector.
        accepted: Data ids of the payloads that a coordinator acknowledges, in order.
        accepted_rows: Number of their rows.
        gone: Payloads that a coordinator counts as gone: rows by reason.
        left: Rows by reason of payloads of which a coordinator counts only some as gone.
        evicted: All these rows, by reason.
        homes: All homes that the buffer had.
        uses: Number of batches with which each sample was trained on, by its number.
        largest_lag: The largest lag of a trained sample: how many iterations the policy that
            collected it was behind the learner.

    Args:
        capacity: Rows of the buffer; None if on-policy, where each payload is trained on once.
        max_use: How often a learner may train on a sample; None for no limit.
        max_lag: How many iterations the policy of a sample may be behind the learner; None for no
            limit.
        rate: Rows that may be trained on per inserted row, and how many more; None for no limit.
    """

    def __init__(
        self,
        capacity: int | None = 64,
        max_use: int | None = None,
        max_lag: int | None = None,
        rate: tuple[float, float] | None = None,
    ) -> None:
        self._capacity, self._max_use, self._max_lag, self._rate = capacity, max_use, max_lag, rate
        self.announced: dict[str, list[int]] = {}
        self.acknowledged: set[str] = set()
        self.accepted: dict[str, None] = {}
        self.accepted_rows = 0
        self.gone: dict[str, Counter[str]] = {}
        self.left: dict[str, Counter[str]] = {}
        self.evicted: Counter[str] = Counter()
        self.homes: list[HomeLog] = []
        self.uses: Counter[int] = Counter()
        self.largest_lag = 0
        self._policy_iters: list[int] = []
        """Iteration of the policy that collected each sample, by its number."""
        self._payload_of: dict[int, str] = {}
        self._inserted: set[str] = set()
        """Payloads that any home has inserted."""
        self._trained_at: dict[int, int] = {}
        """The learner's iteration when a sample was last trained on."""
        self._home = -1
        """Number of the home whose reports the coordinator processes."""

    def new_samples(self, count: int, policy_iter: int) -> list[int]:
        """Return new numbers for samples collected with the policy of an iteration."""
        first = len(self._policy_iters)
        self._policy_iters += [policy_iter] * count
        return list(range(first, first + count))

    def announce(self, data_id: str, samples: list[int]) -> None:
        """Record the samples of a payload, before it is announced."""
        self.announced[data_id] = samples
        self._payload_of.update(dict.fromkeys(samples, data_id))

    def accept(self, data_id: str, rows: int) -> None:
        """Record that a coordinator acknowledges a payload; raise if it did before."""
        if data_id in self.accepted:
            raise SamplesLostError(f"payload {data_id!r} is counted twice")
        if rows != len(self.announced[data_id]):
            raise SamplesLostError(f"payload {data_id!r} came with {rows} rows")
        self.accepted[data_id] = None
        self.accepted_rows += rows

    def acknowledge(self, data_ids: Iterable[str]) -> None:
        """Record that payloads were acknowledged to a collector; raise if one is not accepted."""
        for data_id in data_ids:
            self.acknowledged.add(data_id)
            if data_id not in self.accepted:
                raise SamplesLostError(
                    f"payload {data_id!r} was acknowledged, and no coordinator knows it",
                    payload=data_id,
                )

    # A home, which is in the process of a learner.
    def begin_home(self, trained_rows: int) -> int:
        """Record that a coordinator announces all payloads to a new home; return its number."""
        for each in self.left.values():
            self.evicted -= each
        self.left = {}
        self.homes.append(HomeLog(self.gone, trained_rows))
        self._home = len(self.homes) - 1
        return self._home

    def tried(self, home: int, data_id: str, is_lost: bool) -> None:
        """Record that a home reads a payload; raise if it is not the next one."""
        log = self.homes[home]
        left_out = log.gone.keys() | log.returned
        expected = [each for each in self.accepted if each not in left_out]
        following = expected[len(log.tried)] if len(log.tried) < len(expected) else None
        log.tried.append(data_id)
        if data_id != following:
            raise SamplesLostError(f"home {home} reads payload {data_id!r}, not {following!r}")
        if is_lost:
            log.lost.add(data_id)

    def entered(self, home: int, samples: Sequence[int]) -> None:
        """Record that rows entered a home; raise unless they are those of its newest payload."""
        log = self.homes[home]
        data_id = self._payload_of.get(samples[0], "")
        if list(samples) != self.announced.get(data_id):
            raise SamplesLostError(f"payload {data_id!r} has the rows {samples} in home {home}")
        if data_id in log.rows or data_id not in log.tried:
            raise SamplesLostError(f"home {home} inserts payload {data_id!r} again")
        log.rows[data_id] = set(samples)
        log.count += len(samples)
        self._inserted.add(data_id)

    def departed(self, home: int, samples: Sequence[int], reason: str) -> None:
        """Record that rows left a home; raise if a row was not in it, or had to stay."""
        log = self.homes[home]
        for sample in samples:
            data_id = self._payload_of[sample]
            if sample not in log.rows[data_id]:
                raise SamplesLostError(f"sample {sample} left home {home} twice")
            log.rows[data_id].discard(sample)
            log.left[data_id, reason] += 1
        log.count -= len(samples)
        if self._max_use is None and log.count < (self._capacity or 0):
            raise SamplesLostError(f"samples {samples} are thrown away: {reason}")

    def trained(self, home: int, samples: Sequence[int], train_iter: int) -> None:
        """Record that a learner trains on a batch; raise for a sample that it must not train on.

        A sample that is in the batch several times counts once.

        Args:
            home: Number of the learner's home.
            samples: Numbers of the samples in the batch.
            train_iter: The learner's iteration.
        """
        log = self.homes[home]
        if self._capacity is None:
            self._begin_training(home, samples)
        for sample in set(samples):
            self.uses[sample] += 1
            log.uses[sample] = uses = log.uses[sample] + 1
            if uses > (self._max_use or uses):
                raise SamplesLostError(f"sample {sample} is trained on {uses} times")
            if self._payload_of.get(sample) not in log.rows:
                raise SamplesLostError(f"a learner trains on {sample}, which is not in its home")
            lag = train_iter - self._policy_iters[sample]
            self.largest_lag = max(self.largest_lag, lag)
            if self._max_lag is not None and lag > self._max_lag:
                raise SamplesLostError(
                    f"iteration {train_iter} trains on sample {sample}, whose policy is {lag} "
                    f"iterations old; {self._max_lag} are allowed"
                )
            if self._capacity is None:
                at = self._trained_at.get(sample, log.first_iter)
                if at < log.first_iter:  # its checkpoint was saved after that
                    raise SamplesLostError(f"sample {sample} is trained on again after {at}")
                self._trained_at[sample] = train_iter
        log.drawn_rows += len(samples)
        drawn = log.trained_rows + log.drawn_rows
        if self._rate is not None and drawn > self._allowed(*self._rate):
            raise SamplesLostError(f"{drawn} rows drawn, the limiter allows less")

    def _allowed(self, rate: float, ahead: float) -> float:
        return rate * sum(len(self.announced[each]) for each in self._inserted) + ahead

    def _begin_training(self, home: int, samples: Sequence[int]) -> None:
        """Record the payloads of an on-policy training, each of which is in it as a whole."""
        at = 0
        while at < len(samples):
            size = len(self.announced.get(self._payload_of.get(samples[at], ""), samples))
            self.entered(home, samples[at : at + size])
            at += size

    def reported(self, home: int, report: Any, count: int) -> None:
        """Record a report of a home that has ``count`` rows; raise if it is not what happened."""
        log = self.homes[home]
        lost = [data_id for data_id, _ in report.lost]
        found = {(data_id, reason): rows for data_id, reason, rows in report.left}
        if self._capacity is None:  # rows leave when their training ends
            for data_id, reason in found:
                samples = self.announced[data_id]
                if reason != TRAINED or not all(log.uses[each] == 1 for each in samples):
                    raise SamplesLostError(f"payload {data_id!r} left before any training")
                log.left[data_id, reason] = len(log.rows[data_id])
                log.rows[data_id].clear()
        elif count != log.count:
            raise SamplesLostError(f"home {home} counts {count} rows, and has {log.count}")
        if sorted(lost) != sorted(log.lost) or found != log.left:
            raise SamplesLostError(f"home {home} reports {report}, and {log.left} left it")
        log.lost.clear()
        log.left.clear()
        whole = [(name, reason, len(self.announced[name])) for name, reason in report.lost]
        log.reports.append([*whole, *report.left])

    # The coordinator.
    def settled(self, confirmed: int, returned: Iterable[str] = ()) -> None:
        """Record that the coordinator has processed the reports up to a number.

        Args:
            confirmed: The number.
            returned: Payloads that it removed because a lost learner has trained on them; raises
                if the checkpoint from which the learner began anew is older.
        """
        log = self.homes[self._home]
        for data_id in returned:
            at = [self._trained_at.get(each, log.first_iter) for each in self.announced[data_id]]
            if max(at) >= log.first_iter:
                raise SamplesLostError(f"payload {data_id!r} is removed before any training")
            self._settle(log, 0, [(data_id, TRAINED, len(at))])
            log.returned.add(data_id)
        for number in range(log.settled[-1][0] if log.settled else 0, confirmed):
            if number >= len(log.reports):
                raise SamplesLostError(f"home {self._home} has made no report {number + 1}")
            self._settle(log, number + 1, log.reports[number])

    def _settle(self, log: HomeLog, number: int, changes: list[tuple[str, str, int]]) -> None:
        log.settled.append((number, changes))
        for data_id, reason, rows in changes:
            if data_id not in self.gone:
                left = self.left.setdefault(data_id, Counter())
                left[reason] += rows
                self.evicted[reason] += rows
                if left.total() == len(self.announced[data_id]):
                    self.gone[data_id] = self.left.pop(data_id)

    @property
    def trained_rows(self) -> int:
        """Number of rows that were drawn; a row counts each time that it is drawn."""
        return sum(each.drawn_rows for each in self.homes)

    def closed(self, confirmed: int, trained_rows: int) -> None:
        """Raise unless a closed coordinator has processed all reports of the last home."""
        made = len(self.homes[-1].reports)
        if confirmed != made or trained_rows > self.trained_rows:
            raise SamplesLostError(
                f"{confirmed} of {made} reports were processed, and {trained_rows} rows count as "
                f"trained on, {self.trained_rows} were drawn"
            )
        if len(self.homes) == 1 and trained_rows != self.trained_rows:
            raise SamplesLostError(f"{trained_rows} of {self.trained_rows} rows were reported")

    def check(self, live: list[str], counts: SampleCounts) -> None:
        """Raise unless a coordinator counts the same rows and has the same live payloads."""
        names = [each for each in self.accepted if each not in self.gone]
        own = self.accepted_rows, self.evicted
        if live != names or (counts.acknowledged, counts.evicted) != own:
            raise SamplesLostError(
                f"the coordinator counts {counts} and has the payloads {live}; the oracle counts "
                f"{own} and has {names}"
            )
        if counts.trained > self.trained_rows:
            raise SamplesLostError(f"{counts.trained} of {self.trained_rows} drawn rows trained on")

    def deleted(self, data_id: str) -> None:
        """Record that a payload was deleted; raise if it is still needed."""
        is_held = self.homes and self.homes[-1].rows.get(data_id)
        if is_held or (data_id in self.accepted and data_id not in self.gone):
            raise SamplesLostError(
                f"payload {data_id!r} was deleted and is needed", payload=data_id
            )

    def recovered(self, confirmed: int, live: list[str], counts: SampleCounts) -> None:
        """Record the state of a restarted coordinator; raise if no earlier one had this state.

        The newest changes may be missing if the disk had no room for them.
        """
        # An acknowledgement may be in the journal of a coordinator that was killed at once.
        for name in live:
            if name not in self.accepted:
                self.accept(name, len(self.announced[name]))
        errors = []
        for number in range(len(self.homes) - 1, -1, -1):
            settled = self.homes[number].settled
            for end in range(len(settled), -1, -1):
                if confirmed == (settled[end - 1][0] if end else 0):
                    self._go_back(number, settled[:end])
                    try:
                        self.check(live, counts)
                    except SamplesLostError as error:
                        errors.append(error)
                    else:
                        return
            self.homes[number].settled = settled
        if errors or self.accepted:
            raise errors[0] if errors else SamplesLostError(f"{len(live)} payloads, never known")

    def _go_back(self, number: int, settled: list[tuple[int, list[tuple[str, str, int]]]]) -> None:
        """Set what the coordinator counts to the state after these changes of a home."""
        log = self.homes[number]
        self._home, self.gone, self.left, log.settled = number, dict(log.gone), {}, []
        self.evicted = sum(log.gone.values(), Counter())
        for confirmed, changes in settled:
            self._settle(log, confirmed, changes)
