"""The tiny model in the shape that vLLM's CPU attention takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.engines.tiny_model import make_model

if TYPE_CHECKING:
    from pathlib import Path

HEAD_SIZE = 32


def make_vllm_model(folder: Path) -> Path:
    """Write the files of a model; returns ``folder``."""
    make_model(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"head_dim": HEAD_SIZE}))
    return folder
