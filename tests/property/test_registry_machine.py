from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dingsdk.plugins import Registry
from dingsdk.plugins.registry import transaction

NAMES = st.sampled_from(["a", "b", "c", "d"])
PARTS = st.sampled_from([dict, list, set, tuple])


class AbortError(Exception):
    """Ends a transaction."""


class RegistryMachine(RuleBasedStateMachine):
    """A Registry compared with a dict: name -> (class, whether it was declared by its place)."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry("buffers")
        self.model: dict[str, tuple[type, bool]] = {}

    def is_duplicate(self, model: dict[str, tuple[type, bool]], name: str, part: type) -> bool:
        return name in model and model[name] != (part, True)

    @rule(name=NAMES, part=PARTS, force=st.booleans(), as_decorator=st.booleans())
    def register(self, name: str, part: type, force: bool, as_decorator: bool) -> None:
        def act() -> object:
            if as_decorator:
                return self.registry.register(name, force_overwrite=force)(part)
            return self.registry.register(name, part, force)

        if force:
            assert act() is part
            self.model[name] = (part, False)
        elif self.is_duplicate(self.model, name, part):
            with pytest.raises(AssertionError):
                act()
        else:
            assert act() is part
            self.model.setdefault(name, (part, False))

    @rule(name=NAMES, part=PARTS, force=st.booleans())
    def declare(self, name: str, part: type, force: bool) -> None:
        place = f"builtins:{part.__name__}"
        if name in self.model and not force:
            with pytest.raises(AssertionError):
                self.registry.declare(name, place)
        else:
            self.registry.declare(name, place, force_overwrite=force)
            self.model[name] = (part, True)

    @rule(
        changes=st.lists(st.tuples(NAMES, PARTS, st.booleans()), max_size=5),
        fails=st.booleans(),
    )
    def load_plugin(self, changes: list[tuple[str, type, bool]], fails: bool) -> None:
        after = dict(self.model)
        expects_duplicate = False
        try:
            with transaction("acme"):
                for name, part, force in changes:
                    expects_duplicate = not force and self.is_duplicate(after, name, part)
                    self.registry.register(name, part, force)
                    if force or name not in after:
                        after[name] = (part, False)
                if fails:
                    raise AbortError
        except AssertionError:
            assert expects_duplicate
        except AbortError:
            pass
        else:
            assert not expects_duplicate
            self.model = after

    @rule(name=NAMES)
    def get(self, name: str) -> None:
        if name in self.model:
            part, _ = self.model[name]
            assert self.registry.get(name) is part
            assert self.registry.build(name) == part()
        else:
            with pytest.raises(KeyError):
                self.registry.get(name)

    @invariant()
    def shows_the_same_names(self) -> None:
        assert self.registry.query() == sorted(self.model)
        assert len(self.registry) == len(self.model)
        assert all(name in self.registry for name in self.model)


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
