from __future__ import annotations

import pytest

from dingsdk.plugins import PluginManager, Switches
from dingsdk.plugins.builtins import BUILTINS


@pytest.mark.parametrize(("kind", "key", "place"), BUILTINS)
def test_every_row_of_the_table_can_be_imported(kind: str, key: str, place: str) -> None:
    manager = PluginManager(Switches(autoload=False))

    assert callable(manager.get(kind, key))
