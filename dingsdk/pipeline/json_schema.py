"""Makes the JSON Schema of configs from the types of their sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from dingsdk.config import (
    Field,
    Part,
    Schedule,
    Section,
    config_type,
    documentation_of,
    fields_of,
)
from dingsdk.config.schedule import number_of
from dingsdk.pipeline.sections import RunSection
from dingsdk.plugins import default_manager

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema(compiled: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON Schema of configs.

    Args:
        compiled: A compiled config: the schema of a part is that of the type that it names. None:
            the schema of a part accepts all types that dingsdk itself provides.
    """
    return {
        "$schema": DIALECT,
        "title": "dingsdk config",
        **_section(RunSection, compiled),
    }


def _section(section: type[Section], given: Mapping[str, Any] | None) -> dict[str, Any]:
    meanings = documentation_of(section)
    fields = fields_of(section)
    return {
        "type": "object",
        "properties": {
            name: _property(field, meanings[name], None if given is None else given.get(name, {}))
            for name, field in fields.items()
        },
        "required": [name for name, field in fields.items() if field.required],
        "additionalProperties": section.is_open,
    }


def _property(field: Field, meaning: str, given: Any) -> dict[str, Any]:
    described = {"description": meaning} if meaning else {}
    if field.section is not None:
        return {**described, **_section(field.section, given)}
    if field.part is None:
        number = number_of(field.type)
        schema = msgspec.json.schema(number or field.type)
        if number is not None:
            schema = {"anyOf": [schema, _section(Schedule, None)]}
        if not field.required and _fits_json(field.default):
            schema["default"] = field.default
        return {**described, **schema}
    if field.part.many:
        return {**described, **_parts(field.part, given)}
    part, default = field.part, (field.default or {}).get("type")
    if given is not None:
        type_key = given.get("type", default)
        return {**described, **_part(part, type_key, given, type_key == default)}
    choices = [
        _part(part, key, None, key == default) for key in default_manager().builtin_types(part.kind)
    ]
    if len(choices) == 1:
        return {**described, **choices[0]}
    return {**described, "anyOf": choices} if choices else {**described, "type": "object"}


def _parts(part: Part, given: Mapping[str, Any] | None) -> dict[str, Any]:
    named = default_manager().builtin_types(part.kind) if given is None else given
    properties = {
        key: _part(part, key, None if given is None else given[key], is_default=True)
        for key in named
    }
    return {"type": "object", "properties": properties, "additionalProperties": given is None}


def _part(
    part: Part, type_key: str, given: Mapping[str, Any] | None, is_default: bool
) -> dict[str, Any]:
    names = (given or {}).get("import_names") or ()
    cls = default_manager().get(part.kind, type_key, names)
    schema = _section(config_type(cls, part.base), given)
    schema["properties"]["type"] = {"const": type_key}
    schema["title"] = f"{part.kind}: {type_key}"
    if not is_default:
        schema["required"] = [*schema["required"], "type"]
    return schema


def _fits_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
