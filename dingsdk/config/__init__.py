"""Config work on plain dicts: merge, check, load, save, override.

A config is a dict with string keys whose values are dicts, lists, strings, numbers,
booleans or None. YAML is read as people expect it: ``1e-3`` is a number, a date stays a
string, and a key given twice is an error.
"""

from dingsdk.config.configurable import Configurable
from dingsdk.config.files import EXAMPLES_DIR, apply_set, load_config, save_config
from dingsdk.config.keys import check_known_keys
from dingsdk.config.plain import deep_merge_dicts, to_easydict, to_plain

__all__ = [
    "EXAMPLES_DIR",
    "Configurable",
    "apply_set",
    "check_known_keys",
    "deep_merge_dicts",
    "load_config",
    "save_config",
    "to_easydict",
    "to_plain",
]
