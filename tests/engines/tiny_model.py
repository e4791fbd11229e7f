"""Folders with a tiny random Llama: configuration and tokenizer, no weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 512
SLIDING_WINDOW = 16


def make_model(
    folder: Path, *, swa: bool = False, layers: int = 2, architecture: str = "LlamaForCausalLM"
) -> Path:
    """Write the files of a model; returns ``folder``.

    Args:
        folder: Where to.
        swa: Whether every other layer has a sliding window.
        layers: Layers of the model.
        architecture: Its class.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if swa:
        config |= {
            "is_hybrid_swa": True,
            "hybrid_layer_pattern": [k % 2 for k in range(layers)],
            "sliding_window": SLIDING_WINDOW,
        }
    words = {f"w{k}": k for k in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "config.json": config,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "w1",
            "eos_token": "w2",
            "unk_token": "w0",
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
