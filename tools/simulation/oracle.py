"""Counts samples independently of dingsdk, by a number in each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dingsdk.errors import SamplesLostError
from dingsdk.worker.replay_buffer.home import TRAINED
from dingsdk.worker.sample_counts import SampleCounts

Changes = list[tuple[str, str, int]]
"""What a coordinator has to count: (data id, reason, rows that left)."""


@dataclass
class HomeLog:
    """What happened in one home of the buffer.

    Attributes:
        gone: Payloads that had left before it began, with their rows by reason.
        trained_rows: Rows that earlier homes reported as trained on.
        first_iter: Iteration at which its learner begins.
        earlier_uses: How often its learner has trained on samples before that, by the checkpoint.
        left_out: Payloads that an earlier learner has trained on, so that it does not get them.
        tried: Payloads that it tried to read, in order.
        rows: The samples that it holds, by data id; an entry for each payload that was inserted.
        count: Number of these samples.
        left: Rows that left since the last report, by data id and reason.
        uses: Number of batches with which each sample was trained on.
        batches: The iteration and the samples of each batch.
        drawn_rows: Number of rows in all batches.
        reports: The content of each report.
        settled: What a coordinator has counted, each with the number of its newest report then.
    """

    gone: dict[str, Counter[str]]
    trained_rows: int
    first_iter: int = 0
    earlier_uses: Counter[int] = field(default_factory=Counter)
    left_out: set[str] = field(default_factory=set)
    tried: list[str] = field(default_factory=list)
    rows: dict[str, set[int]] = field(default_factory=dict)
    count: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    uses: Counter[int] = field(default_factory=Counter)
    batches: list[tuple[int, set[int]]] = field(default_factory=list)
    drawn_rows: int = 0
    reports: list[Changes] = field(default_factory=list)
    settled: list[tuple[int, Changes]] = field(default_factory=list)


class SampleOracle:
    """Follows each sample from the collector to the learner, without the counts of the run.

    Each sample has a number. The simulation calls the oracle at each step; it raises
    SamplesLostError if this step must not happen.

    Args:
        capacity: Rows of the buffer; None if on-policy, where each payload is trained on once.
        max_use: How often a learner may train on a sample; None for no limit.
        max_lag: How many iterations the policy of a sample may be behind the learner, or None.
        rate: Rows that may be trained on per inserted row, and how many more; None for no limit.

    Attributes:
        announced: Numbers of the samples of each announced payload, by data id.
        acknowledged: Data ids of the payloads that were acknowledged to a collector.
        accepted: Data ids of the payloads that a coordinator acknowledges, in order.
        accepted_rows: Number of their rows.
        gone: Payloads that the coordinator counts as gone, with their rows by reason.
        left: The same for payloads of which only some rows are gone.
        evicted: All these rows, by reason.
        homes: All homes that the buffer had.
        largest_lag: The largest lag of a trained sample.
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
        self.accepted_rows = self.largest_lag = 0
        self.gone: dict[str, Counter[str]] = {}
        self.left: dict[str, Counter[str]] = {}
        self.evicted: Counter[str] = Counter()
        self.homes: list[HomeLog] = []
        self.saved_by: dict[int, int] = {}
        """Iteration -> the home whose learner saved the newest checkpoint of it."""
        self._home = -1  # whose reports the coordinator processes
        self._policy_iters: list[int] = []  # of the policy that collected each sample
        self._payload_of: dict[int, str] = {}
        self._trained_at: dict[int, int] = {}  # iteration at which a sample was last trained on

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
        """Record that a coordinator acknowledges a payload, which it must not know."""
        if data_id in self.accepted or rows != len(self.announced[data_id]):
            raise SamplesLostError(f"{rows} rows of payload {data_id!r} are counted twice")
        self.accepted[data_id] = None
        self.accepted_rows += rows

    def acknowledge(self, data_ids: Iterable[str]) -> None:
        """Record that payloads were acknowledged to a collector."""
        for data_id in data_ids:
            self.acknowledged.add(data_id)
            if data_id not in self.accepted:
                raise SamplesLostError(f"{data_id!r} is acknowledged; no coordinator knows it")

    # A home, which is in the process of a learner.
    def begin_home(self, trained_rows: int) -> int:
        """Record that a coordinator announces all payloads to a new home; return its number."""
        for each in self.left.values():
            self.evicted -= each
        self.left = {}
        self.homes.append(HomeLog(dict(self.gone), trained_rows))
        self._home = len(self.homes) - 1
        return self._home

    def begin_learner(self, home: int, first_iter: int) -> None:
        """Record that the learner of a home begins with the checkpoint of an iteration."""
        log = self.homes[home]
        log.first_iter = first_iter
        if first_iter:
            before = self.homes[self.saved_by[first_iter]]
            log.earlier_uses = before.earlier_uses.copy()
            for train_iter, samples in before.batches:
                if train_iter < first_iter:
                    log.earlier_uses.update(samples)

    def tried(self, home: int, data_id: str, lost: str = "") -> None:
        """Record that a home reads the next payload, which may be lost for a reason."""
        log = self.homes[home]
        left_out = log.gone.keys() | log.left_out
        expected = [each for each in self.accepted if each not in left_out]
        if [data_id] != expected[len(log.tried) : len(log.tried) + 1]:
            raise SamplesLostError(f"home {home} reads payload {data_id!r}, not the next one")
        log.tried.append(data_id)
        if lost:
            log.left[data_id, lost] = len(self.announced[data_id])

    def entered(self, home: int, samples: Sequence[int]) -> None:
        """Record that the rows of a payload that was read entered a home."""
        log, data_id = self.homes[home], self._payload_of.get(samples[0], "")
        if list(samples) != self.announced.get(data_id):
            raise SamplesLostError(f"payload {data_id!r} has the rows {samples} in home {home}")
        if data_id in log.rows or data_id not in log.tried:
            raise SamplesLostError(f"home {home} inserts payload {data_id!r} again")
        log.rows[data_id] = set(samples)
        log.count += len(samples)

    def departed(self, home: int, samples: Sequence[int], reason: str) -> None:
        """Record that rows left a home."""
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
        """Record that the learner of a home trains on a batch.

        A sample that is in the batch several times counts once.
        """
        log = self.homes[home]
        owners = [self._payload_of.get(each, "") for each in samples]
        if self._capacity is None:
            for owner in dict.fromkeys(owners):
                pairs = zip(samples, owners, strict=True)
                self.entered(home, [sample for sample, each in pairs if each == owner])
        for sample, owner in dict(zip(samples, owners, strict=True)).items():
            log.uses[sample] += 1
            uses = log.uses[sample] + log.earlier_uses[sample]
            if uses > (self._max_use or uses):
                raise SamplesLostError(f"sample {sample} is trained on {uses} times")
            if owner not in log.rows:
                raise SamplesLostError(f"a learner trains on {sample}, which is not in its home")
            lag = train_iter - self._policy_iters[sample]
            self.largest_lag = max(self.largest_lag, lag)
            if self._max_lag is not None and lag > self._max_lag:
                raise SamplesLostError(
                    f"iteration {train_iter} trains on sample {sample}, whose policy is {lag} "
                    f"iterations old; {self._max_lag} are allowed"
                )
            if self._capacity is None and self._is_in_weights(sample, log):
                raise SamplesLostError(f"the learner has trained on sample {sample} before")
            self._trained_at[sample] = train_iter
        log.drawn_rows += len(samples)
        log.batches.append((train_iter, set(samples)))
        if self._rate is not None:
            inserted = set[str]().union(*(each.rows for each in self.homes))
            ratio, ahead = self._rate
            allowed = ratio * sum(len(self.announced[each]) for each in inserted) + ahead
            if log.trained_rows + log.drawn_rows > allowed:
                raise SamplesLostError(f"more than {allowed} rows drawn, the limiter allows less")

    def _is_in_weights(self, sample: int, log: HomeLog) -> bool:
        """Return whether a learner was trained on a sample before its checkpoint was saved."""
        return self._trained_at.get(sample, log.first_iter) < log.first_iter

    def reported(self, home: int, report: Any, count: int) -> None:
        """Record a report of a home that has ``count`` rows."""
        log = self.homes[home]
        lost = [(name, reason, len(self.announced[name])) for name, reason in report.lost]
        changes = [*lost, *report.left]
        if self._capacity is None:  # rows leave when their training ends
            for data_id, reason, _ in report.left:
                samples = self.announced[data_id]
                if reason != TRAINED or not all(log.uses[each] == 1 for each in samples):
                    raise SamplesLostError(f"payload {data_id!r} left before any training")
                log.left[data_id, reason] = len(log.rows[data_id])
                log.rows[data_id].clear()
        elif count != log.count:
            raise SamplesLostError(f"home {home} counts {count} rows, and has {log.count}")
        if {(data_id, reason): rows for data_id, reason, rows in changes} != log.left:
            raise SamplesLostError(f"home {home} reports {report}, and {log.left} left it")
        log.left.clear()
        log.reports.append(changes)

    # The coordinator.
    def settled(self, confirmed: int, returned: Iterable[str] = ()) -> None:
        """Record that the coordinator has processed the reports up to a number.

        Args:
            confirmed: The number.
            returned: Payloads that it removed because a lost learner has trained on them.
        """
        log = self.homes[self._home]
        for data_id in returned:
            samples = self.announced[data_id]
            if not all(self._is_in_weights(each, log) for each in samples):
                raise SamplesLostError(f"payload {data_id!r} is removed before any training")
            self._settle(log, 0, [(data_id, TRAINED, len(samples))])
            log.left_out.add(data_id)
        if confirmed > len(log.reports):
            raise SamplesLostError(f"home {self._home} has made no report {confirmed}")
        for number in range(log.settled[-1][0] if log.settled else 0, confirmed):
            self._settle(log, number + 1, log.reports[number])

    def _settle(self, log: HomeLog, number: int, changes: Changes) -> None:
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

    def check(self, live: list[str], counts: SampleCounts) -> None:
        """Check that the coordinator counts the same rows and has the same live payloads."""
        names = [each for each in self.accepted if each not in self.gone]
        own = self.accepted_rows, self.evicted
        if live != names or (counts.acknowledged, counts.evicted) != own:
            raise SamplesLostError(
                f"the coordinator counts {counts} and has the payloads {live}; the oracle counts "
                f"{own} and has {names}"
            )
        if counts.trained > self.trained_rows:
            raise SamplesLostError(f"{counts.trained} of {self.trained_rows} drawn rows trained on")

    def closed(self, confirmed: int, trained_rows: int) -> None:
        """Check that a closed coordinator has processed all reports of the last home."""
        made, is_first = len(self.homes[-1].reports), len(self.homes) == 1
        if confirmed != made or (is_first and trained_rows != self.trained_rows):
            rows = f"{trained_rows} of {self.trained_rows} drawn rows"
            raise SamplesLostError(f"{confirmed} of {made} reports and {rows} count at the end")

    def deleted(self, data_id: str) -> None:
        """Record that a payload was deleted."""
        is_held = self.homes and self.homes[-1].rows.get(data_id)
        if is_held or (data_id in self.accepted and data_id not in self.gone):
            raise SamplesLostError(f"payload {data_id!r} was deleted, and is needed")

    def recovered(self, confirmed: int, live: list[str], counts: SampleCounts) -> None:
        """Record the state of a restarted coordinator, which an earlier one must have had.

        The newest changes may be missing if the disk had no room for them.
        """
        for data_id in live:
            # An acknowledgement may be in the journal of a coordinator that was killed at once.
            if data_id not in self.accepted:
                self.accept(data_id, len(self.announced[data_id]))
        if not self.homes:
            return self.check(live, counts)
        error = SamplesLostError(f"{len(live)} payloads, and {confirmed} reports are unknown")
        for number in range(len(self.homes) - 1, -1, -1):
            log = self.homes[number]
            settled = log.settled
            for end in range(len(settled), -1, -1):
                if confirmed != (settled[end - 1][0] if end else 0):
                    continue
                self._home, self.gone, self.left, log.settled = number, dict(log.gone), {}, []
                self.evicted = sum(log.gone.values(), Counter())
                for each in settled[:end]:
                    self._settle(log, *each)
                try:
                    return self.check(live, counts)
                except SamplesLostError as raised:
                    error = raised
            log.settled = settled
        raise error
