"""The bench of the rules of a buffer's parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from dingsdk.plugins import default_manager
from dingsdk.plugins.registry import transaction
from dingsdk.testing.buffer_rules import BUFFER_BOOK
from dingsdk.testing.runner import Contract, ContractError, RuleBench, RuleBroken
from dingsdk.worker.factory import create_buffer

CAPACITY = 8
MakePart = Callable[..., Any]
"""``make(capacity, seed, folder)`` returns a new part; a priority sampler also gets ``alpha=``."""


class PartBench(RuleBench[MakePart]):
    """The bench of a part: makes parts, and closes them at the end."""

    _numbers = 0

    def build(self) -> Any:
        return self.part()

    def part(
        self, capacity: int = CAPACITY, seed: int = 0, folder: str = "", **settings: Any
    ) -> Any:
        """Return a new part; without ``folder`` it gets a new folder."""
        self._numbers += 1
        own = self.folder / (folder or f"part{self._numbers}")
        return self.keep(self._make(capacity, seed, own, **settings))

    def expect_rules_of_buffers(
        self, kind: str, buffer: str, capabilities: Collection[str]
    ) -> None:
        """Expect a buffer that is made with the part to follow the rules of buffers.

        Args:
            kind: ``storage``, ``sampler`` or ``remover``.
            buffer: Type of the buffer.
            capabilities: The capabilities of the buffer, of ``BUFFER_CAPABILITIES``.
        """

        key = f"part under test {id(self)}"

        def made(cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> Any:
            settings = {name: cfg[name] for name in config if name in cfg and name != "type"}
            return self.part(capacity, 0 if seed is None else int(seed), **settings)

        config = {"type": key, **({"alpha": None} if "priorities" in capabilities else {})}
        made.config = config  # type: ignore[attr-defined]
        registry = default_manager().registry(f"{kind}s")
        with transaction("the rules") as changes:
            registry.register(key, made)
        self.exits.callback(changes.roll_back)
        make: Any = partial(_buffer, {"type": buffer, kind: {"type": key}})
        make.needs_columns = getattr(self.part(), "needs_columns", ())
        try:
            BUFFER_BOOK.check(make, capabilities=capabilities, patience_s=self.patience_s)
        except ContractError as error:
            results = error.facts["report"].results
            broken = "\n".join(str(each) for each in results if each.error is not None)
            raise RuleBroken(f"rules of buffers that are broken:\n{broken}") from error


def _buffer(parts: Mapping[str, Any], cfg: Mapping[str, Any]) -> Any:
    return create_buffer({**parts, **cfg})


class PartContract(Contract):
    """Base class of the contract tests of the parts of a buffer.

    ``make_part(capacity, seed, folder)`` returns a new part for at most ``capacity`` rows, with a
    folder for its files; a durable storage opens the rows that are in the folder.
    """

    maker = "make_part(capacity, seed, folder)"
