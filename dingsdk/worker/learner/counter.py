"""A number that several objects share."""

from __future__ import annotations


class CountVar:
    """A mutable count, such as the learner's iteration, that hooks read and move.

    Args:
        init_val: Value to begin with.
    """

    __slots__ = ("_val",)

    def __init__(self, init_val: int = 0) -> None:
        self._val = init_val

    @property
    def val(self) -> int:
        """The count."""
        return self._val

    def update(self, val: int) -> None:
        """Set the count to ``val``."""
        self._val = val

    def add(self, add_num: int) -> None:
        """Add ``add_num`` to the count."""
        self._val += add_num

    def __repr__(self) -> str:
        return f"CountVar({self._val})"
