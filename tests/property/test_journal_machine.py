"""Random calls to a journal, compared with a list: a crash loses no accepted fact."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dingsdk.runtime.files import Folder
from dingsdk.worker.coordinator.journal import Fact, Journal, Progressed


class JournalMachine(RuleBasedStateMachine):
    """Facts are numbered; a state contains the number of facts before it."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.path = Path(self.temporary.name, "journal")
        self.taken = 0
        self.begin()

    def begin(self) -> None:
        """Open the journal with a new writer and check what it reads."""
        self.journal = Journal(Folder(self.path), snapshot_facts=5)
        found = self.journal.open()
        first = 0 if found.state is None else int(found.state["facts"])
        assert [number_of(fact) for fact in found.facts] == list(range(first, self.taken))
        self.save()

    @rule()
    def append(self) -> None:
        self.journal.append(Progressed(str(self.taken), 1, 0.0))
        self.taken += 1

    @rule()
    def save(self) -> None:
        self.journal.save({"facts": self.taken})

    @rule(kept=st.floats(0, 0.99))
    def crash_in_a_state(self, kept: float) -> None:
        before = {path: path.read_bytes() for path in self.path.glob("*.facts")}
        self.save()
        content = self.newest().read_bytes()
        self.newest().write_bytes(content[: int(kept * len(content))])
        for path, earlier in before.items():
            path.write_bytes(earlier)
        self.begin()

    @rule(kept=st.floats(0, 0.99))
    def crash_in_a_record(self, kept: float) -> None:
        content = self.newest().read_bytes()
        self.append()
        self.taken -= 1
        record = self.newest().read_bytes()[len(content) :]
        self.newest().write_bytes(content + record[: int(kept * len(record))])
        self.begin()

    @rule()
    def crash(self) -> None:
        self.begin()

    @rule(appended=st.integers(1, 3))
    def old_writer_goes_on_beside_the_new_one(self, appended: int) -> None:
        old, taken = self.journal, self.taken
        self.begin()
        refused = 0
        for _ in range(appended):
            try:
                old.append(Progressed(str(taken), 1, 0.0))
            except OSError:
                refused += 1
        assert refused == appended

    @invariant()
    def reader_changes_nothing(self) -> None:
        before = {path.name: path.read_bytes() for path in self.path.iterdir()}
        Journal(Folder(self.path)).read()
        assert {path.name: path.read_bytes() for path in self.path.iterdir()} == before

    def newest(self) -> Path:
        return max(self.path.glob("*.facts"))

    def teardown(self) -> None:
        self.temporary.cleanup()


def number_of(fact: Fact) -> int:
    assert isinstance(fact, Progressed)
    return int(fact.task_id)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
