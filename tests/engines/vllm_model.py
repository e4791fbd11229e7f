"""The tiny model in the shape that vLLM's CPU attention takes.

python tests/engines/vllm_model.py FOLDER [LAYERS]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.engines.tiny_model import make_model

HEAD_SIZE = 32


#: Tokens that layers with a sliding window look back.
WINDOW = 64
#: Of layers with a window and without, in this order or the other.
_HYBRID = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": HEAD_SIZE,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_local_base_freq": 10000.0,
    "sliding_window": WINDOW,
}
LAYERS = {
    "hybrid": ["full_attention", "sliding_attention"],
    "windows": ["sliding_attention", "sliding_attention"],
}


def make_vllm_model(folder: Path, layers: str = "") -> Path:
    """Write the files of a model; returns ``folder``.

    Args:
        folder: Where to.
        layers: Which of ``LAYERS`` it has; "" = none with a window.
    """
    make_model(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"head_dim": HEAD_SIZE}
    if layers:
        config |= {**_HYBRID, "layer_types": LAYERS[layers]}
    path.write_text(json.dumps(config))
    return folder


def make_draft(folder: Path) -> Path:
    """Write the files of a model of one layer that drafts for the other; returns ``folder``."""
    make_model(folder, layers=1)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"head_dim": HEAD_SIZE}))
    return folder


if __name__ == "__main__":
    make_vllm_model(Path(sys.argv[1]), *sys.argv[2:])
