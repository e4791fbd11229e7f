"""A model's config.json: what its KV cache looks like (SPEC_SERVING_ARGS 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving import model_kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

PoolKind = Literal["mha", "mla", "dsa", "swa", "hybrid", "deepseek_v4", "sparse"]

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_KV_HEAD_KEYS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
_HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads")
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
_VISION_LAYER_KEYS = ("num_hidden_layers", "depth", "num_layers", "layers")
_LARGEST = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the rules need to know of a model. Head counts are of the whole model.

    Attributes:
        architecture: First entry of ``architectures``, or ``""``.
        kind: Kind of KV cache.
        layers: Hidden layers.
        full_layers: Layers with a full KV cache.
        swa_layers: Layers with a sliding window, if they have a pool of their own; else 0.
        kv_heads: Key/value heads.
        head_dim: Width of a key head.
        v_head_dim: Width of a value head.
        swa_kv_heads: The same of the sliding-window layers.
        swa_head_dim: The same of the sliding-window layers.
        swa_v_head_dim: The same of the sliding-window layers.
        kv_lora_rank: MLA latent width, or 0.
        qk_rope_head_dim: MLA rope width, or 0.
        index_head_dim: Indexer width (DSA), or 0.
        window: Sliding window in tokens, or None.
        vocab_size: Or None.
        context_len: Context length by the file, rope scaling included; None if it names none.
        dtype: ``bfloat16``, ``float16``, ``float32`` or ``""``.
        kv_dtype: KV type that the checkpoint asks for (``fp8_e4m3``), or ``""``.
        multimodal: It has a vision or audio tower.
        vision_layers: Layers of the vision tower, or None.
        vision_hidden: Its hidden size, or None.
    """

    architecture: str
    kind: PoolKind
    layers: int
    full_layers: int
    swa_layers: int = 0
    kv_heads: int
    head_dim: int
    v_head_dim: int
    swa_kv_heads: int
    swa_head_dim: int
    swa_v_head_dim: int
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    index_head_dim: int = 0
    window: int | None = None
    vocab_size: int | None = None
    context_len: int | None = None
    dtype: str = ""
    kv_dtype: str = ""
    multimodal: bool = False
    vision_layers: int | None = None
    vision_hidden: int | None = None

    @property
    def mla(self) -> bool:
        """Attention keeps a latent instead of heads."""
        return self.kv_lora_rank > 0

    @property
    def whole_prompt(self) -> bool:
        """Prompts are not chunked."""
        return self.architecture in model_kinds.WHOLE_PROMPT


class _Reader:
    """Typed access to a config, text part first, with errors that name the key."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.outer = config
        self.text: Mapping[str, Any] = config
        for _ in range(3):
            inner = next(
                (self.text[key] for key in _TEXT_CONFIGS if isinstance(self.text.get(key), dict)),
                None,
            )
            if inner is None:
                break
            self.text = inner

    def raw(self, *keys: str) -> Any:
        for source in (self.text, self.outer):
            for key in keys:
                if source.get(key) is not None:
                    return source[key]
        return None

    def number(self, *keys: str) -> int | None:
        value = self.raw(*keys)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            raise self.error(f"{keys[0]} must be a whole number, found {value!r:.60}")
        if not 0 <= value <= _LARGEST:
            raise self.error(f"{keys[0]} is out of range: {value!r:.60}")
        return int(value)

    def needed(self, *keys: str) -> int:
        value = self.number(*keys)
        if value is None:
            raise self.error(f"{keys[0]} is missing")
        if value == 0:
            raise self.error(f"{keys[0]} must be positive, found 0")
        return value

    def names(self, key: str) -> list[str]:
        value = self.raw(key)
        if not isinstance(value, list):
            return []
        return [item for item in value if isinstance(item, str)]

    def error(self, what: str) -> InputError:
        return InputError(
            f"{self.where}: {what}", hint="give the config.json that lies beside the weights"
        )


def parse_model_config(config: Any, where: str) -> ModelFacts:
    """Read the facts out of a config.json.

    Args:
        config: The parsed file.
        where: Its name, for errors.

    Raises:
        InputError: Not a model's config, or a number that is missing or out of range.
    """
    if not isinstance(config, dict):
        raise InputError(f"{where}: a JSON object is expected, found {type(config).__name__}")
    read = _Reader(config, where)
    outer = config.get("architectures")
    names = [name for name in outer if isinstance(name, str)] if isinstance(outer, list) else []
    architecture = (names or read.names("architectures") or [""])[0]
    layers = read.needed(*_LAYER_KEYS)
    heads = read.needed(*_HEAD_KEYS)
    lora = read.number("kv_lora_rank") or 0
    head_dim = read.number("head_dim") or max(
        1, (read.number("hidden_size", "n_embd") or 0) // heads
    )
    kv_heads = _kv_heads(read, heads)
    v_head_dim = (read.number("v_head_dim") if not lora else None) or head_dim
    kind = _kind(architecture, read, lora)
    full, swa = _layer_split(kind, architecture, read, layers)
    vision = next(
        (config[key] for key in ("vision_config", "visual") if isinstance(config.get(key), dict)),
        None,
    )
    return ModelFacts(
        architecture=architecture,
        kind=kind,
        layers=layers,
        full_layers=full,
        swa_layers=swa,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        swa_kv_heads=read.number("swa_num_key_value_heads") or kv_heads,
        swa_head_dim=read.number("swa_head_dim") or head_dim,
        swa_v_head_dim=read.number("swa_v_head_dim") or v_head_dim,
        kv_lora_rank=lora if kind != "deepseek_v4" else 0,
        qk_rope_head_dim=(read.number("qk_rope_head_dim") or 0) if lora else 0,
        index_head_dim=(read.number("index_head_dim") or 0) if kind == "dsa" else 0,
        window=read.number("sliding_window", "sliding_window_size", "attention_chunk_size"),
        vocab_size=read.number("vocab_size"),
        context_len=_context_len(read),
        dtype=str(read.raw("torch_dtype", "dtype") or "").removeprefix("torch."),
        kv_dtype=_checkpoint_kv_dtype(config),
        multimodal=vision is not None or isinstance(config.get("audio_config"), dict),
        vision_layers=_int_of(vision, *_VISION_LAYER_KEYS),
        vision_hidden=_int_of(vision, "hidden_size"),
    )


def _int_of(config: Any, *keys: str) -> int | None:
    for key in keys:
        value = config.get(key) if isinstance(config, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
            return value
    return None


def _kv_heads(read: _Reader, heads: int) -> int:
    if read.raw("multi_query") is True and read.raw("new_decoder_architecture") is not True:
        return 1
    return read.number(*_KV_HEAD_KEYS) or heads


def _kind(architecture: str, read: _Reader, lora: int) -> PoolKind:
    if architecture in model_kinds.DEEPSEEK_V4:
        return "deepseek_v4"
    if architecture in model_kinds.SPARSE:
        return "sparse"
    types = {name.lower() for name in read.names("layer_types")}
    types |= {name.lower() for name in read.names("layers_block_type")}
    if architecture in model_kinds.STATE_HYBRID or types & model_kinds.STATE_LAYER_TYPES:
        return "hybrid"
    if lora:
        return "dsa" if read.number("index_topk") is not None else "mla"
    if architecture in model_kinds.SLIDING_WINDOW or read.raw("is_hybrid_swa") is True:
        return "swa" if read.raw("sliding_window") != 0 else "mha"
    return "mha"


def _layer_split(kind: PoolKind, architecture: str, read: _Reader, layers: int) -> tuple[int, int]:
    """Layers with a full KV cache, and layers with a sliding-window one."""
    types = read.names("layer_types") or read.names("layers_block_type")
    full = sum(name in ("full_attention", "attention", "hybrid") for name in types[:layers])
    if kind == "hybrid":
        return _hybrid_full_layers(read, layers, types, full), 0
    if kind != "swa":
        return layers, 0
    pattern = read.raw("hybrid_layer_pattern")
    if isinstance(pattern, list):
        windowed = sum(1 for item in pattern[:layers] if item == 1)
        return layers - windowed, windowed
    if types:
        windowed = sum(name == "sliding_attention" for name in types[:layers])
        return full, windowed
    if architecture == "Llama4ForConditionalGeneration":
        return layers // 4, layers - layers // 4
    raise read.error("layer_types is missing, so the sliding-window layers cannot be counted")


def _hybrid_full_layers(read: _Reader, layers: int, types: list[str], full: int) -> int:
    if types:
        return full
    pattern = read.raw("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*")
    linear = read.raw("linear_attn_config")
    listed = linear.get("full_attn_layers") if isinstance(linear, dict) else None
    if not isinstance(listed, list):
        listed = read.raw("full_attn_idxs", "attn_layer_indices")
    if isinstance(listed, list):
        return len(listed)
    interval = read.number("full_attention_interval")
    if interval:
        return layers // interval
    if read.raw("mamba_d_ssm") is not None:
        # Falcon-H1 runs attention and state side by side in every layer.
        return layers
    raise read.error("nothing says which layers have full attention (layer_types)")


def _context_len(read: _Reader) -> int | None:
    length = read.number(*_CONTEXT_KEYS)
    if length is None:
        return None
    scaling = read.raw("rope_scaling", "rope_parameters")
    factor: Any = 1
    if isinstance(scaling, dict):
        factor = scaling.get("factor", 1)
        kind = scaling.get("rope_type", scaling.get("type"))
        if "original_max_position_embeddings" in scaling or kind == "llama3":
            factor = 1
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:
        factor = 1
    return int(factor * length)


def _checkpoint_kv_dtype(config: Mapping[str, Any]) -> str:
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return ""
    algorithm = quantization.get("kv_cache_quant_algo")
    if isinstance(algorithm, str) and algorithm.upper() == "FP8":
        return "fp8_e4m3"
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
        return "fp8_e4m3"
    return ""
