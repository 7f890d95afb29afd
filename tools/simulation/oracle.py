"""Counts samples independently of dingsdk, by a number in each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dingsdk.errors import SamplesLostError


class SampleOracle:
    """Follows each sample from the collector to the learner, without using the ledger.

    Collectors number their samples, and store the number in each sample. The simulation calls the
    oracle when a collector announces a payload or receives an acknowledgement, when rows enter or
    leave the replay buffer, and when a learner trains on a batch.

    Attributes:
        announced: Numbers of the samples of each announced payload, by data id.
        acknowledged: Data ids of the payloads that were acknowledged to a collector.
        uses: Number of batches with which each sample was trained on, by its number.
        live: Rows in the buffer, by data id; has an entry for every payload that ever entered.
        live_count: Number of rows in the buffer.
        evicted: Number of rows that left the buffer, by reason.
        given_up: Payloads that a learner could not read.
        given_up_rows: Number of their rows that left the buffer after that.
        leased: Payloads that a learner trains on, by its task.
        may_leave_for: Reasons for which readable rows may leave the buffer; None for any reason.
        largest_lag: The largest lag of a trained sample: how many iterations the policy that
            collected it was behind the learner.
    """

    def __init__(self) -> None:
        self.announced: dict[str, list[int]] = {}
        self.acknowledged: set[str] = set()
        self.uses: Counter[int] = Counter()
        self.live: dict[str, set[int]] = {}
        self.live_count = 0
        self.evicted: Counter[str] = Counter()
        self.given_up: set[str] = set()
        self.given_up_rows = 0
        self.leased: dict[str, set[str]] = {}
        self.may_leave_for: set[str] | None = None
        self.largest_lag = 0
        self._policy_iters: list[int] = []
        """Iteration of the policy that collected each sample, by its number."""
        self._known: set[int] = set()

    def new_samples(self, count: int, policy_iter: int) -> list[int]:
        """Return new numbers for samples collected with the policy of an iteration."""
        first = len(self._policy_iters)
        self._policy_iters += [policy_iter] * count
        return list(range(first, first + count))

    def announce(self, data_id: str, samples: list[int]) -> None:
        """Record the samples of a payload, before it is announced."""
        self.announced[data_id] = samples
        self._known.update(samples)

    def entered(self, data_id: str, rows: int) -> None:
        """Record that the rows of a payload entered the buffer; raise if they had before."""
        if data_id in self.live:
            raise SamplesLostError(f"payload {data_id!r} entered the buffer twice")
        if rows != len(self.announced[data_id]):
            raise SamplesLostError(f"payload {data_id!r} came with {rows} rows")
        self.live[data_id] = set(range(rows))
        self.live_count += rows

    def left(self, data_id: str, rows: Sequence[int], reason: str) -> None:
        """Record that rows left the buffer; raise if a row was not in it, or had to stay."""
        live, is_given_up = self.live[data_id], data_id in self.given_up
        may_leave = self.may_leave_for is None or is_given_up or reason in self.may_leave_for
        gone = set(rows)
        if len(gone) < len(rows) or not gone <= live:
            raise SamplesLostError(
                f"of rows {rows} of payload {data_id!r} one left the buffer twice"
            )
        if not may_leave:
            raise SamplesLostError(f"rows {rows} of payload {data_id!r} are thrown away: {reason}")
        if reason == "trained":
            samples = self.announced[data_id]
            if not all(self.uses[samples[row]] for row in gone):
                raise SamplesLostError(
                    f"rows {rows} of payload {data_id!r} left before any training"
                )
        live -= gone
        self.live_count -= len(rows)
        self.evicted[reason] += len(rows)
        self.given_up_rows += len(rows) * is_given_up

    def acknowledge(self, data_ids: Iterable[str]) -> None:
        """Record that payloads were acknowledged to a collector.

        Raises if one of them never entered the buffer.
        """
        for data_id in data_ids:
            self.acknowledged.add(data_id)
            if data_id not in self.live:
                raise SamplesLostError(
                    f"payload {data_id!r} was acknowledged, and never entered the buffer",
                    payload=data_id,
                )

    def deleted(self, data_id: str) -> None:
        """Record that a payload was deleted; raise if it is still needed."""
        if self.live.get(data_id):
            raise SamplesLostError(
                f"payload {data_id!r} was deleted, and rows {sorted(self.live[data_id])} of it are "
                "in the buffer",
                payload=data_id,
            )
        if any(data_id in each for each in self.leased.values()):
            raise SamplesLostError(f"payload {data_id!r} was deleted while a learner trains on it")

    def recovered(self, live: dict[str, set[int]], acked: int, evicted: Mapping[str, int]) -> None:
        """Record the counts of a restarted coordinator; raise if samples are missing.

        Args:
            live: Rows in its buffer, by data id.
            acked: Number of samples that it has acknowledged.
            evicted: Number of these that left its buffer, by reason.
        """
        least = sum(len(self.announced[each]) for each in self.acknowledged if each in self.live)
        self.live_count = sum(len(rows) for rows in live.values())
        for data_id, rows in live.items():
            if not rows <= set(range(len(self.announced[data_id]))):
                raise SamplesLostError(f"payload {data_id!r} has rows {sorted(rows)} now")
        self.live = {**{name: set[int]() for name in self.live}, **live}
        self.evicted = Counter(evicted)
        self.given_up_rows = evicted.get("missing", 0) + evicted.get("corrupt", 0)
        if acked < least or acked != self.live_count + self.evicted.total():
            raise SamplesLostError(
                f"{least} samples were acknowledged at least; after its restart the coordinator "
                f"knows of {acked}, {self.live_count} in its buffer and {dict(evicted)} evicted"
            )

    def trained(
        self,
        samples: Iterable[int],
        train_iter: int,
        max_use: int | None = None,
        max_lag: int | None = None,
    ) -> None:
        """Record that a learner trains on a batch; raise for a sample that it must not train on.

        A sample that is in the batch several times counts once.

        Args:
            samples: Numbers of the samples in the batch.
            train_iter: The learner's iteration.
            max_use: How often a sample may be trained on; None for no limit.
            max_lag: How many iterations the policy that collected a sample may be behind the
                learner; None for no limit.
        """
        for sample in set(samples):
            self.uses[sample] = uses = self.uses[sample] + 1
            if max_use is not None and uses > max_use:
                raise SamplesLostError(f"sample {sample} is trained on {uses} times")
            if sample not in self._known:
                raise SamplesLostError(f"a learner trains on {sample}, which was never announced")
            lag = train_iter - self._policy_iters[sample]
            self.largest_lag = max(self.largest_lag, lag)
            if max_lag is not None and lag > max_lag:
                raise SamplesLostError(
                    f"iteration {train_iter} trains on sample {sample}, whose policy is {lag} "
                    f"iterations old; {max_lag} are allowed"
                )
