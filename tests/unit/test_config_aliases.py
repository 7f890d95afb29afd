"""The names that DI-engine uses for ``type`` and ``import_names``."""

from __future__ import annotations

import pytest

from dingsdk.config.aliases import rename_all_aliases
from dingsdk.errors import ConfigError


def test_documented_aliases_are_renamed_and_the_rest_of_their_sections_stays() -> None:
    cfg = rename_all_aliases(
        {
            "system": {
                "comm_learner_type": "in_memory",
                "comm_collector_type": "in_memory",
                "transport": {"port": 7777},
                "collector_num": 3,
            },
            "policy": {
                "learn": {"learner": {"learner_type": "base", "import_module": ["mine"]}},
                "other": {"commander": {"parallel_commander_type": "solo"}},
            },
        }
    )

    transport = {"type": "in_memory", "port": 7777}
    assert cfg["system"] == {"transport": transport, "collector_num": 3}
    assert cfg["policy"]["learn"]["learner"] == {"type": "base", "import_names": ["mine"]}
    assert cfg["policy"]["other"]["commander"] == {"type": "solo"}


def test_alias_that_contradicts_the_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep one of them"):
        rename_all_aliases({"learner": {"type": "base", "learner_type": "other"}})
