"""See ``torchvision``."""

from __future__ import annotations

from enum import Enum
from typing import Any

from torchvision.missing import attribute


class ImageReadMode(Enum):
    """Names that are looked up at import time."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
