"""See ``torchvision``."""

from __future__ import annotations

from typing import Any

from torchvision.missing import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
