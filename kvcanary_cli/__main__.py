"""Entry point of ``kvcanary`` and ``python -m kvcanary_cli``."""

from __future__ import annotations

import sys

from kvcanary_cli.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
