"""These tests need engines in environments of their own: ``make test-engines``."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("KVCANARY_ENGINES") else ["test_*.py"]
