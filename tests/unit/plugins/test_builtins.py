from __future__ import annotations

import pytest

from dingsdk.plugins import KINDS, PluginManager, Switches
from dingsdk.plugins.builtins import BUILTINS


@pytest.mark.parametrize(("kind", "key", "place"), BUILTINS)
def test_every_row_of_the_table_can_be_imported(kind: str, key: str, place: str) -> None:
    manager = PluginManager(Switches(autoload=False))

    assert callable(manager.get(kind, key))


def test_rows_are_of_known_kinds_and_unique() -> None:
    keys = [(kind, key) for kind, key, _ in BUILTINS]

    assert {kind for kind, _ in keys} <= set(KINDS)
    assert len(set(keys)) == len(keys)
