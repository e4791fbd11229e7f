"""See ``torchvision``."""

from __future__ import annotations

from typing import Any

from torchvision.missing import attribute
from torchvision.transforms.functional import InterpolationMode

__all__ = ["InterpolationMode"]


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
