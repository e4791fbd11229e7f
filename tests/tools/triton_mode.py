"""Choose Triton's interpreter where there is no GPU.

Triton reads ``TRITON_INTERPRET`` when a kernel is defined, so this runs before torch or Triton is
imported, and asks the file system whether there is a GPU.
"""

from __future__ import annotations

import os

_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd")


def use_interpreter_without_gpu() -> None:
    if not any(map(os.path.exists, _DEVICE_FILES)):
        os.environ.setdefault("TRITON_INTERPRET", "1")
