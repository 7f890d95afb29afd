"""Configs: sections as types, merging, checking, loading, saving and overriding them.

A config is a dict with string keys whose values are dicts, lists, strings, numbers,
booleans or None. YAML is read as people expect it: ``1e-3`` is a number, a date stays a
string, and a key given twice is an error.
"""

from dingsdk.config.complete import FindClass, complete, config_type, read_section
from dingsdk.config.configurable import Configurable
from dingsdk.config.files import EXAMPLES_DIR, apply_set, load_config, save_config
from dingsdk.config.plain import deep_merge_dicts, to_easydict, to_plain
from dingsdk.config.section import (
    LARGEST_INT,
    Count,
    Field,
    Finite,
    Held,
    NotNegative,
    Part,
    PartSection,
    Positive,
    Section,
    Seed,
    Share,
    Whole,
    defaults_of,
    documentation_of,
    fields_of,
    preset,
)

__all__ = [
    "EXAMPLES_DIR",
    "LARGEST_INT",
    "Configurable",
    "Count",
    "Field",
    "FindClass",
    "Finite",
    "Held",
    "NotNegative",
    "Part",
    "PartSection",
    "Positive",
    "Section",
    "Seed",
    "Share",
    "Whole",
    "apply_set",
    "complete",
    "config_type",
    "deep_merge_dicts",
    "defaults_of",
    "documentation_of",
    "fields_of",
    "load_config",
    "preset",
    "read_section",
    "save_config",
    "to_easydict",
    "to_plain",
]
