"""The command ``dingsdk``. Each of its commands is a module, which is loaded when it is used."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: failure. 2: a mistake in the command, the config or a file. 129, 130 and 143:
    stopped by SIGHUP (a closed terminal), Ctrl-C or SIGTERM.
    """
    try:
        from dingsdk.cli.root import run

        return run(argv)
    except KeyboardInterrupt:  # while modules were imported
        sys.stderr.write("Interrupted; there was nothing to save.\n")
        return 130
    finally:
        if argv is None:
            # The process ends now; a late Ctrl-C must not print a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # With torch loaded, the last garbage collections take half a second; skip them.
            gc.freeze()
