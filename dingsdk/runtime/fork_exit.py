"""Imported by a fork server only: ends it without the teardown of the interpreter.

With torch the teardown takes 0.5 s (2026-11), and whoever reads the output of the run waits for it.
"""

import atexit
import os

atexit.register(os._exit, 0)
