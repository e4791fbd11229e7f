"""See ``torchvision``."""

from __future__ import annotations

from enum import Enum
from typing import Any

from torchvision.missing import attribute


class InterpolationMode(Enum):
    """Names that are looked up at import time."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
