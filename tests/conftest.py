"""Settings that must be in place before any kernel module is imported."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.tools.triton_mode import use_interpreter_without_gpu

use_interpreter_without_gpu()

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
