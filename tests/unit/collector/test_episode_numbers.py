"""The numbers of envs in episodes, and their statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from dingsdk.worker.collector.episode_numbers import (
    in_words,
    numbers_of_episode,
    summaries,
    summaries_of_episodes,
    summary_statistics,
)
from dingsdk.worker.collector.rollout import EpisodeRecord


def test_numbers_of_an_episode_are_finite_and_not_its_return() -> None:
    info = {"score": 3, "is_success": True, "text": "a", "nan": math.nan, "eval_episode_return": 9}
    assert numbers_of_episode(EpisodeRecord(0, 9.0, 5, info)) == {"score": 3.0, "is_success": 1.0}
    assert numbers_of_episode(EpisodeRecord(0, 9.0, 5)) == {}


def test_numbers_of_a_game_are_those_that_its_first_player_was_told() -> None:
    players = [{"episode_info": {"score": each}} for each in (3, 4)]
    assert numbers_of_episode(EpisodeRecord(0, 9.0, 5, {"players": players})) == {"score": 3.0}
    assert numbers_of_episode(EpisodeRecord(0, 9.0, 5, {"players": [{}]})) == {}


def test_statistics_are_of_the_episodes_that_have_the_number() -> None:
    found = summaries_of_episodes([{"score": 1.0}, {"score": 4.0, "is_success": 1.0}, {}])
    assert found == {
        "score": {"mean": 2.5, "min": 1.0, "max": 4.0},
        "is_success": {"mean": 1.0, "min": 1.0, "max": 1.0},
    }
    assert summary_statistics({"score": found["score"]}) == {
        "score_mean": 2.5,
        "score_min": 1.0,
        "score_max": 4.0,
    }


def test_summaries_of_merged_infos_leave_out_what_is_no_list_of_numbers() -> None:
    merged = {
        "score": [1, math.inf, 3, "x"],
        "score_mean": 2.0,
        "text": ["a"],
        "nan": [math.nan],
        "eval_episode_return": [1.0],
    }
    assert summaries(merged) == {"score": {"mean": 2.0, "min": 1.0, "max": 3.0}}


@pytest.mark.parametrize(
    ("means", "words"),
    [
        ({"is_success": 0.824, "score": 1234.5}, ["success 0.82", "score 1,234.50"]),
        (
            {"small": 0.00123, "none": None, "zero": 0.0, "low": -2.0},
            "small 0.0012|zero 0.00|low -2.00",
        ),
        (dict.fromkeys("abcde", 1.0), "a 1.00|b 1.00|c 1.00|d 1.00"),
    ],
)
def test_a_few_means_are_shown_in_short_words(means: Mapping[str, Any], words: Any) -> None:
    assert in_words(means) == (words.split("|") if isinstance(words, str) else words)
