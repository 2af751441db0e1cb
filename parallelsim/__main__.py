"""``python -m parallelsim`` and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program; an interrupt while its modules load ends quietly too."""
    try:
        from parallelsim.cli import main as program

        program()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
