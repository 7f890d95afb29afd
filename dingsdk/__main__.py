"""``python -m dingsdk``: the command line."""

import sys

from dingsdk.cli import main

if __name__ == "__main__":
    sys.exit(main())
