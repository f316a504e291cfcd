"""Read the YAML of the files that users write: plain values, each key once, nothing that grows when it is read."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

MOST_DEPTH = 100
MOST_DIGITS = 100
_INT = "tag:yaml.org,2002:int"


def parse_yaml(text: str) -> Any:
    """Return the content of a text; `yaml.YAMLError` says what is wrong with it, whatever that is.

    Examples
    --------
    >>> parse_yaml("a: {b: [1, x]}")
    {'a': {'b': [1, 'x']}}
    >>> parse_yaml("a: 2026-02-31")
    Traceback (most recent call last):
    yaml.error.YAMLError: a value cannot be read (day is out of range for month); put it in quotes
    """
    try:
        return yaml.load(text, _PlainLoader)  # noqa: S506 (it is a SafeLoader)
    except RecursionError:
        raise yaml.YAMLError(f"values must not be nested deeper than {MOST_DEPTH}") from None
    except (ValueError, OverflowError, LookupError, AttributeError) as error:
        # What PyYAML lets through of dates that there are not, and of tags on texts that are no such value.
        raise yaml.YAMLError(f"a value cannot be read ({error}); put it in quotes") from None


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, deep nesting, keys that are there twice and endless integers."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise ComposerError(None, None, f"write the value of *{event.anchor} out: aliases are not read", mark)
        if self.depth == MOST_DEPTH:
            raise ComposerError(None, None, f"values must not be nested deeper than {MOST_DEPTH}", mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else []:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise ConstructorError(None, None, f"the key {key!r} is there twice; keep one", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        if len(str(node.value)) > MOST_DIGITS:
            raise ConstructorError(None, None, f"integers have at most {MOST_DIGITS} digits", node.start_mark)
        return int(self.construct_yaml_int(node))


_PlainLoader.add_constructor(_INT, _PlainLoader.construct_integer)
