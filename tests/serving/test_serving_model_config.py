"""Models by their config.json: kind of cache, cell size, pool class."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.kv_cell import cell_size, element_bytes, pool_class, with_draft
from kvcanary_cli.serving.model_config import parse_model_config
from tests.serving.launches import GQA, HYBRID, MLA, WINDOW

DSA = {**MLA, "num_hidden_layers": 78, "index_topk": 2048, "index_head_dim": 128}


def cell(config: dict[str, Any], dtype: str = "auto", **more: Any) -> int:
    model = parse_model_config(config, "config.json")
    elem = element_bytes(dtype, model)
    assert elem is not None
    found = cell_size(model, elem=elem, **more)
    assert found is not None
    return found.bytes


@pytest.mark.parametrize(
    ("layers", "heads", "width", "attn_tp", "size"),
    [
        (28, 4, 128, 1, 57344),
        (28, 8, 128, 1, 114688),
        (48, 4, 128, 4, 24576),
        (34, 4, 256, 1, 139264),
        (40, 8, 128, 1, 163840),
        (94, 4, 128, 4, 48128),
        (36, 8, 128, 1, 147456),
        (48, 4, 128, 1, 98304),
        (64, 8, 128, 8, 32768),
        (64, 8, 128, 16, 32768),
    ],
)
def test_cells_seen_in_logs(layers: int, heads: int, width: int, attn_tp: int, size: int) -> None:
    config = {
        **GQA,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "head_dim": width,
    }
    assert cell(config, attn_tp=attn_tp) == size


def test_latent_cells() -> None:
    assert cell(MLA, "fp8_e4m3") == 35136
    assert cell(MLA) == 576 * 61 * 2
    assert cell(MLA, attn_tp=8) == cell(MLA)
    assert cell(DSA, "fp8_e4m3") == 61464
    assert cell(DSA) == (576 * 2 + 132) * 78
    assert cell(DSA, "fp8_e4m3", dsa_packed=False) == (576 + 132) * 78


def test_element_types() -> None:
    model = parse_model_config(GQA, "config.json")
    for name, size in (
        ("auto", Fraction(2)),
        ("bfloat16", Fraction(2)),
        ("fp8_e5m2", Fraction(1)),
        ("fp4_e2m1", Fraction(9, 16)),
        ("mxfp8", Fraction(33, 32)),
        ("float32", Fraction(4)),
        ("int3", None),
    ):
        assert element_bytes(name, model) == size
    assert element_bytes("auto", model, "float32") == 4
    single = parse_model_config({**GQA, "torch_dtype": "float32"}, "config.json")
    assert element_bytes("auto", single) == 2
    asks = {**GQA, "quantization_config": {"kv_cache_quant_algo": "FP8"}}
    assert element_bytes("auto", parse_model_config(asks, "config.json")) == 1


def test_window_cell() -> None:
    per_layer = 8 * 128 * 2
    assert cell(WINDOW) == int(2 * per_layer + 0.8 * 2 * per_layer)
    assert cell(WINDOW, swa_ratio=Fraction(1)) == 4 * per_layer
    assert cell(WINDOW, pp_size=2) == int(per_layer + 0.8 * per_layer)


def test_hybrid_counts_full_layers_only() -> None:
    assert cell(HYBRID) == 12 * 2 * 512 * 2
    assert cell(HYBRID, attn_tp=2) == 12 * 1 * 512 * 2
    types = {**HYBRID, "layer_types": ["linear_attention", "full_attention"] * 24}
    assert cell(types) == 24 * 2 * 512 * 2
    nemotron = {
        **GQA,
        "architectures": ["NemotronHForCausalLM"],
        "hybrid_override_pattern": "M-M*M-*-",
    }
    assert parse_model_config(nemotron, "c").full_layers == 2


def test_draft_share() -> None:
    model = parse_model_config(GQA, "config.json")
    plain = cell_size(model, elem=Fraction(2))
    assert plain is not None
    assert with_draft(plain, draft_layers=1, target_layers=36).bytes == 147456 + 4096


@pytest.mark.parametrize(
    ("config", "dtype", "pool"),
    [
        (GQA, "auto", "MHATokenToKVPool"),
        (GQA, "fp8_e4m3", "MHATokenToKVPool"),
        (GQA, "fp4_e2m1", "MHATokenToKVPoolFP4"),
        (GQA, "mxfp8", "MHATokenToKVPoolMXFP8"),
        (WINDOW, "auto", "SWAKVPool"),
        (MLA, "auto", "MLATokenToKVPool"),
        (DSA, "auto", "DSATokenToKVPool"),
        (HYBRID, "auto", "HybridLinearKVPool"),
        ({**GQA, "architectures": ["DeepseekV4ForCausalLM"]}, "auto", "DeepSeekV4TokenToKVPool"),
        ({**GQA, "architectures": ["MiniMaxM3SparseForCausalLM"]}, "auto", "MiniMaxSparseKVPool"),
    ],
)
def test_pool_class(config: dict[str, Any], dtype: str, pool: str) -> None:
    model = parse_model_config(config, "config.json")
    assert pool_class((0, 5, 23), model, dtype, npu=False) == pool


def test_nested_text_config() -> None:
    outer = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "text_config": {key: value for key, value in GQA.items() if key != "architectures"},
        "vision_config": {"num_hidden_layers": 32, "hidden_size": 1280},
    }
    model = parse_model_config(outer, "config.json")
    assert (model.layers, model.kv_heads, model.multimodal) == (36, 8, True)
    assert (model.vision_layers, model.vision_hidden) == (32, 1280)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 32768),
        ({"rope_type": "yarn", "factor": 4.0}, 131072),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            32768,
        ),
        ({"rope_type": "llama3", "factor": 8.0}, 32768),
        ({"factor": "4"}, 32768),
    ],
)
def test_context_length(scaling: dict[str, Any] | None, length: int) -> None:
    model = parse_model_config({**GQA, "rope_scaling": scaling}, "config.json")
    assert model.context_len == length


def test_head_dim_defaults() -> None:
    config = {key: value for key, value in GQA.items() if key != "head_dim"}
    model = parse_model_config(config, "config.json")
    assert (model.head_dim, model.v_head_dim) == (128, 128)
    mqa = parse_model_config({**GQA, "multi_query": True}, "config.json")
    assert mqa.kv_heads == 1


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ([], "a JSON object is expected"),
        ({}, "num_hidden_layers is missing"),
        ({**GQA, "num_hidden_layers": 0}, "must be positive"),
        ({**GQA, "num_hidden_layers": "36"}, "must be a whole number, found '36'"),
        ({**GQA, "num_hidden_layers": 1.5}, "must be a whole number"),
        ({**GQA, "num_hidden_layers": -1}, "is out of range"),
        ({**GQA, "num_key_value_heads": True}, "must be a whole number"),
        ({**GQA, "head_dim": float("inf")}, "must be a whole number"),
        ({**GQA, "architectures": ["GptOssForCausalLM"]}, "layer_types is missing"),
        (
            {**GQA, "architectures": ["Qwen3NextForCausalLM"]},
            "nothing says which layers have full attention",
        ),
    ],
)
def test_bad_config(config: Any, text: str) -> None:
    with pytest.raises(InputError, match=r"config\.json: ") as caught:
        parse_model_config(config, "config.json")
    assert text in caught.value.message


ODD_KEYS = (
    "text_config",
    "vision_config",
    "rope_scaling",
    "layer_types",
    "quantization_config",
    "hybrid_override_pattern",
    "linear_attn_config",
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    base=st.sampled_from([GQA, MLA, HYBRID, WINDOW, {}]),
    extra=st.dictionaries(
        st.sampled_from([*GQA, *MLA, *WINDOW, *ODD_KEYS]),
        json_values,
        max_size=5,
    ),
)
def test_any_json_parses_or_says_why(base: dict[str, Any], extra: dict[str, Any]) -> None:
    try:
        model = parse_model_config({**base, **extra}, "config.json")
    except InputError as error:
        found = error.message
    else:
        found = ""
    if found:
        assert found.startswith("config.json: ")
        return
    assert model.layers > 0
    assert model.full_layers >= 0
    elem = element_bytes("auto", model)
    assert elem is not None
    cell_size(model, elem=elem)
