"""Bytes of KV cache per token and rank, and the pool class (SPEC_SERVING_ARGS 3.2, 5)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.serving.model_config import ModelFacts
    from kvcanary_cli.serving.versions import Release

ACCEPTED_POOLS = (
    "DeepSeekV4TokenToKVPool",
    "MHATokenToKVPool",
    "MHATokenToKVPoolFP4",
    "SWAKVPool",
)
"""Pool classes that the canary attaches to, sorted as the server prints them."""

_HALF = frozenset({"float16", "half", "bfloat16", "bf16", "fp16"})
_FP8 = frozenset({"fp8", "fp8_e5m2", "fp8_e4m3", "float8_e5m2", "float8_e4m3fn"})
_FP4 = frozenset({"fp4", "nvfp4", "fp4_e2m1", "float4_e2m1fn_x2"})
KNOWN_KV_DTYPES = frozenset({"auto", "mxfp8", "float32", "float", *_HALF, *_FP8, *_FP4})
"""Names of KV types that a rule knows."""

_DSA_FP8_LATENT_BYTES = 656


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell size of one model.

    Attributes:
        size: Bytes per token and rank. Fractions come from block scales and window ratios.
        formula: How it was computed, for people.
    """

    size: Fraction
    formula: str

    @property
    def bytes(self) -> int:
        """Whole bytes, as the server counts them."""
        return int(self.size)


def element_bytes(kv_cache_dtype: str, model: ModelFacts, dtype: str = "auto") -> Fraction | None:
    """Bytes per element of the KV cache.

    Args:
        kv_cache_dtype: ``--kv-cache-dtype``; ``auto`` follows the checkpoint, then the model.
        model: The model.
        dtype: ``--dtype``; ``auto`` runs a float32 checkpoint in half precision.

    Returns:
        Bytes, block scales included, or None for a type without a rule.
    """
    name = kv_cache_dtype.lower()
    if name == "auto":
        name = model.kv_dtype or (dtype.lower() if dtype.lower() != "auto" else "")
        if not name:
            # float32 checkpoints run in half precision unless --dtype says otherwise.
            name = "float16"
    if name in _HALF:
        return Fraction(2)
    if name in _FP8:
        return Fraction(1)
    if name in ("float32", "float"):
        return Fraction(4)
    if name in _FP4:
        return Fraction(1, 2) + Fraction(1, 16)
    if name == "mxfp8":
        return Fraction(33, 32)
    return None


def cell_size(
    model: ModelFacts,
    *,
    elem: Fraction,
    attn_tp: int = 1,
    pp_size: int = 1,
    swa_ratio: Fraction = Fraction(4, 5),
    dsa_packed: bool = True,
) -> Cell | None:
    """Bytes per token on the rank that has the most layers.

    Args:
        model: The model.
        elem: Bytes per element, from ``element_bytes``.
        attn_tp: Ranks that share one attention worker's heads: tp / attention dp.
        pp_size: Pipeline stages.
        swa_ratio: swa_full_tokens_ratio.
        dsa_packed: An fp8 DSA cache packs latent, scales and rope into 656 bytes (every back end
            but TRT-LLM).

    Returns:
        The cell, or None for DeepSeek-V4 and sparse pools, which have no such rule.
    """
    if model.kind in ("deepseek_v4", "sparse"):
        return None
    layers = -(-model.full_layers // pp_size)
    if model.mla:
        return _latent_cell(model, elem, layers, dsa_packed)
    heads = max(1, model.kv_heads // attn_tp)
    width = heads * (model.head_dim + model.v_head_dim)
    size = width * layers * elem
    formula = f"{layers} layers * {heads} heads * {model.head_dim + model.v_head_dim} * {elem} B"
    if model.swa_layers:
        swa_layers = -(-model.swa_layers // pp_size)
        swa_heads = max(1, model.swa_kv_heads // attn_tp)
        swa_width = swa_heads * (model.swa_head_dim + model.swa_v_head_dim)
        size += swa_ratio * swa_width * swa_layers * elem
        formula += f" + {float(swa_ratio):g} * {swa_layers} window layers * {swa_width} * {elem} B"
    return Cell(size, formula)


def _latent_cell(model: ModelFacts, elem: Fraction, layers: int, dsa_packed: bool) -> Cell:
    width = model.kv_lora_rank + model.qk_rope_head_dim
    latent = width * elem
    formula = f"{layers} layers * {width} * {elem} B"
    if model.kind == "dsa":
        if elem == 1 and dsa_packed:
            latent = Fraction(_DSA_FP8_LATENT_BYTES)
        index = model.index_head_dim + Fraction(model.index_head_dim, 128) * 4
        latent += index
        formula = f"{layers} layers * ({latent - index} + {index} B of the indexer)"
    return Cell(latent * layers, formula)


def with_draft(cell: Cell, *, draft_layers: int, target_layers: int) -> Cell:
    """Cell of a server whose draft model shares the memory (EAGLE, MTP)."""
    return Cell(
        cell.size + cell.size * draft_layers / target_layers,
        f"{cell.formula} + {draft_layers}/{target_layers} for the draft",
    )


def pool_class(release: Release, model: ModelFacts, kv_cache_dtype: str, *, npu: bool) -> str:
    """Class of the KV pool that the server picks."""
    fp4 = kv_cache_dtype.lower() in _FP4
    if model.kind == "deepseek_v4":
        return "DeepSeekV4TokenToKVPool"
    if model.kind == "hybrid":
        return "HybridLinearKVPool"
    if model.kind == "sparse":
        return "MiniMaxSparseKVPool"
    if model.kind == "dsa":
        return "DSATokenToKVPool" if release >= (0, 5, 13) else "NSATokenToKVPool"
    if model.kind == "mla":
        if npu:
            return "NPUMLATokenToKVPool"
        return "MLATokenToKVPoolFP4" if fp4 else "MLATokenToKVPool"
    if model.kind == "swa":
        return "SWAKVPool"
    if npu:
        return "NPUMHATokenToKVPool"
    if fp4:
        return "MHATokenToKVPoolFP4"
    return "MHATokenToKVPoolMXFP8" if kv_cache_dtype.lower() == "mxfp8" else "MHATokenToKVPool"
