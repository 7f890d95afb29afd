"""The YAML that configs are written in: safe, bounded, strict on duplicates, numbers as in 1.2."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dingsdk.config.plain import MAX_DEPTH, MAX_VALUES, TOO_DEEP, check_digits


class Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads numbers as YAML 1.2 does.

    It ends at a line that nests too deep, merges too many keys or holds too long a number,
    before that costs time or memory. Aliases share what they name; ``check_bounds`` counts it.
    """

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As PyYAML, with a limit on the depth."""
        self._depth += 1
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth > MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            mark: Any = event.start_mark
            raise yaml.composer.ComposerError(None, None, TOO_DEEP, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def flatten_mapping(self, node: Any) -> None:
        """As PyYAML, with a limit on the number of merged keys."""
        super().flatten_mapping(node)
        if len(node.value) > MAX_VALUES:
            problem = f"the merges (<<) give more than {MAX_VALUES:,} keys"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def construct_yaml_int(self, node: Any) -> Any:
        """As PyYAML, with a limit on the number of digits."""
        try:
            check_digits(node.value)
        except ValueError as error:
            mark = node.start_mark
            raise yaml.constructor.ConstructorError(None, None, str(error), mark) from error
        return super().construct_yaml_int(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As PyYAML, but a key given twice is an error."""
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
        """Write every value in full."""
        return True


# YAML 1.1 wants a dot in every float, so that a learning rate of 1e-3 would be text.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$|^[-+]?\.?[0-9]+\.?[0-9]*[eE][0-9]+$")


def _share_resolvers(cls: Any) -> None:
    cls.yaml_implicit_resolvers = {
        first: [(tag, regex) for tag, regex in rules if not tag.endswith(":timestamp")]
        for first, rules in cls.yaml_implicit_resolvers.items()
    }
    cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
_share_resolvers(Loader)
_share_resolvers(Dumper)
