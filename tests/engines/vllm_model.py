"""The tiny model in the shape that vLLM's CPU attention takes.

python tests/engines/vllm_model.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.engines.tiny_model import make_model

HEAD_SIZE = 32


def make_vllm_model(folder: Path) -> Path:
    """Write the files of a model; returns ``folder``."""
    make_model(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"head_dim": HEAD_SIZE}))
    return folder


if __name__ == "__main__":
    make_vllm_model(Path(sys.argv[1]))
