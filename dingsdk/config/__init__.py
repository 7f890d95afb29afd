"""Configs: sections as types, merging, checking, loading, saving and overriding them.

A config is a dict with string keys whose values are dicts, lists, strings, numbers,
booleans or None. In YAML, ``1e-3`` is a number, a date is a string, and a key that is given
twice is an error.
"""

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.config.files import EXAMPLES_DIR as EXAMPLES_DIR
    from dingsdk.config.files import apply_set as apply_set
    from dingsdk.config.files import dump_config as dump_config
    from dingsdk.config.files import load_config as load_config
    from dingsdk.config.files import save_config as save_config
    from dingsdk.config.plain import deep_merge_dicts as deep_merge_dicts
    from dingsdk.config.plain import put as put
    from dingsdk.config.plain import to_easydict as to_easydict
    from dingsdk.config.plain import to_plain as to_plain
    from dingsdk.config.schedule import Schedule as Schedule
    from dingsdk.config.schedule import Scheduled as Scheduled
    from dingsdk.config.section import LARGEST_INT as LARGEST_INT
    from dingsdk.config.section import Count as Count
    from dingsdk.config.section import Field as Field
    from dingsdk.config.section import Finite as Finite
    from dingsdk.config.section import NotNegative as NotNegative
    from dingsdk.config.section import Part as Part
    from dingsdk.config.section import PartSection as PartSection
    from dingsdk.config.section import Positive as Positive
    from dingsdk.config.section import Section as Section
    from dingsdk.config.section import Seed as Seed
    from dingsdk.config.section import Share as Share
    from dingsdk.config.section import SmallCount as SmallCount
    from dingsdk.config.section import Whole as Whole
    from dingsdk.config.section import defaults_of as defaults_of
    from dingsdk.config.section import documentation_of as documentation_of
    from dingsdk.config.section import fields_of as fields_of
    from dingsdk.config.section import preset as preset
    from dingsdk.config.validation import Configurable as Configurable
    from dingsdk.config.validation import FindClass as FindClass
    from dingsdk.config.validation import complete as complete
    from dingsdk.config.validation import config_type as config_type
    from dingsdk.config.validation import given_keys as given_keys
    from dingsdk.config.validation import join_unknown as join_unknown
    from dingsdk.config.validation import read_section as read_section
else:
    # Imported late: msgspec and yaml take 60 ms to import, and many commands do not need them.
    __getattr__, __dir__ = lazy_names(__name__, __file__)
