"""The command ``dingsdk``. Each of its commands is a module, which is loaded when it is used."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

_INTERRUPTED = "Interrupted; there was nothing to save.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: failure. 2: a mistake in the command, the config or a file. 129, 130 and 143:
    stopped by SIGHUP (a closed terminal), Ctrl-C or SIGTERM.
    """
    is_program = argv is None
    if is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        if is_program:  # for handlers that plugins add; worker processes do the same
            import logging  # only now, as an import before the handler could print a traceback

            logging.getLogger("dingsdk").setLevel(logging.INFO)
        from dingsdk.cli.root import run

        return run(argv)
    except KeyboardInterrupt:  # while modules were imported
        sys.stderr.write(_INTERRUPTED)
        return 130
    finally:
        if is_program:
            # The process ends now; a late Ctrl-C must not print a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # With torch loaded, the last garbage collections take half a second; skip them.
            gc.freeze()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Exit at once if Ctrl-C comes during an import, and else raise KeyboardInterrupt.

    Callbacks of the import system lose an exception, and in the C++ code of torch it aborts the
    process.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, _INTERRUPTED.encode())
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt
