"""``python -m parallelsim`` and the console script."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the program; an interrupt ends it with one line at most, also while modules load."""
    try:
        from parallelsim.cli import main as program

        program()
    except KeyboardInterrupt:
        _leave()


def _leave() -> None:
    """Exit at once: a second interrupt during the interpreter's own end would print a traceback."""
    try:
        sys.stderr.write("parallelsim: error: interrupted\n")
        sys.stderr.flush()
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
