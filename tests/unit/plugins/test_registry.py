from __future__ import annotations

from collections import OrderedDict

import pytest

from dingsdk.errors import (
    DuplicateTypeError,
    PluginLoadError,
)
from dingsdk.plugins import Registry
from dingsdk.plugins.registry import Entry


class Ring:
    def __init__(self, size: int = 1) -> None:
        self.size = size


def test_register_works_as_decorator_with_and_without_name_and_as_direct_call() -> None:
    registry = Registry("buffers")

    @registry.register("named")
    class Named: ...

    @registry.register()
    class Empty: ...

    @registry.register
    class Bare: ...

    assert registry.register("ring", Ring) is Ring
    assert registry.register(module=Ring) is Ring

    assert registry.query() == ["Bare", "Empty", "Ring", "named", "ring"]
    assert registry.get("named") is Named
    assert registry.get("Bare") is Bare
    assert registry.get("Empty") is Empty
    assert repr(registry) == "Registry('buffers': Bare, Empty, Ring, named, ring)"


def test_declared_type_is_imported_only_on_use() -> None:
    registry = Registry("buffers")
    registry.declare("there", "collections:OrderedDict")
    registry.declare("gone", "dingsdk_no_such_module:Thing")

    assert registry.query() == ["gone", "there"]
    with pytest.raises(DuplicateTypeError):
        registry.declare("there", "collections:Counter")
    assert registry.entry("there") == Entry("dingsdk-rl", None, "collections:OrderedDict")
    assert registry.build("there", a=1) == {"a": 1}
    found = Entry("dingsdk-rl", OrderedDict, "collections:OrderedDict")
    assert registry.entry("there") == found
    with pytest.raises(PluginLoadError) as caught:
        registry.get("gone")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_declared_type_may_register_itself_but_nothing_else_may() -> None:
    registry = Registry("buffers")
    registry.declare("ring", f"{__name__}:Ring", owner="acme")

    registry.register("ring", Ring)
    with pytest.raises(DuplicateTypeError):
        registry.register("ring", dict)

    assert registry.get("ring") is Ring
    entry = registry.entry("ring")
    assert entry is not None
    assert entry.owner == "acme"
