"""A TensorBoard writer that only records its calls."""

from __future__ import annotations


class ScalarWriter:
    """Records the points of all curves in order."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))
