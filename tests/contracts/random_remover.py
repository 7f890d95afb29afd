"""The remover of `dingsdk new plugin remover`: it removes rows at random, from a seed."""

from pathlib import Path
from runpy import run_path
from typing import Any

import dingsdk

TEMPLATE = Path(dingsdk.__file__).parent / "templates" / "kinds" / "remover.py"
RandomRemover: Any = run_path(str(TEMPLATE))["PluginNameRemover"]
