"""The seed tree: stable, in range, and without collisions between neighbours."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from dingsdk.data import derive_seed
from dingsdk.data.seeding import seeds_recorded
from dingsdk.errors import ConfigError, ConfigTypeError


def test_a_path_always_gives_the_same_seed() -> None:
    # Fixed values: a changed derivation would silently change every seeded run.
    assert derive_seed(0, "collector", 1) == derive_seed(np.int64(0), "collector", 1)
    assert derive_seed(0) == 779662192
    assert derive_seed(0, "collector", 1, "env", 7) == 373027680


def test_similar_paths_give_different_seeds() -> None:
    paths: list[tuple[str | int, ...]] = [(), (1,), ("1",), ("a", "b"), ("ab",), ("a", 1), ("a1",)]
    paths += [("env", index) for index in range(500)]
    seeds = {derive_seed(seed, *path) for seed in (0, 1, 2**40) for path in paths}
    assert len(seeds) == 3 * len(paths)
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((-1,), ConfigError),
        ((1.5,), ConfigTypeError),
        ((True,), ConfigTypeError),
        ((None,), ConfigTypeError),
        ((0, 1.5), ConfigTypeError),
        ((0, None), ConfigTypeError),
    ],
)
def test_invalid_seeds_and_paths_are_refused(args: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        derive_seed(*args)


def test_seeds_are_recorded_under_the_path_that_led_to_them() -> None:
    collector = derive_seed(3, "collector", 1)
    with seeds_recorded(3) as found:
        derive_seed(3, "collector", 1)
        derive_seed(collector, "env", 0)
        with suppress(ZeroDivisionError), seeds_recorded(4) as inner:
            derive_seed(4, "buffer")
            raise ZeroDivisionError
        derive_seed(99, "elsewhere")
    derive_seed(3, "later")

    assert found == {
        "seed": 3,
        "seed/collector/1": collector,
        "seed/collector/1/env/0": derive_seed(collector, "env", 0),
        "99/elsewhere": derive_seed(99, "elsewhere"),
    }
    assert inner == {"seed": 4, "seed/buffer": derive_seed(4, "buffer")}
