"""The YAML that configs are written in: safe, strict on duplicates, numbers as in YAML 1.2."""

from __future__ import annotations

import re
from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads numbers as YAML 1.2 does."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """SafeDumper without anchors, that quotes what ``Loader`` would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.1 wants a dot in every float, so that a learning rate of 1e-3 would be text.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$|^[-+]?\.?[0-9]+\.?[0-9]*[eE][0-9]+$")


def _share_resolvers(cls: Any) -> None:
    cls.yaml_implicit_resolvers = {
        first: [(tag, regex) for tag, regex in rules if not tag.endswith(":timestamp")]
        for first, rules in cls.yaml_implicit_resolvers.items()
    }
    cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


_share_resolvers(Loader)
_share_resolvers(Dumper)
