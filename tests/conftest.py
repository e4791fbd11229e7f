"""Settings that must be in place before any kernel module is imported."""

from __future__ import annotations

import os

from hypothesis import settings

# Triton reads this when a kernel is defined, so it is set before torch or Triton is imported, and
# whether there is a GPU is asked of the file system.
if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))):
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
