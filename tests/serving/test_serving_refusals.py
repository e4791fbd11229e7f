"""What the canary refuses, by version, word for word; each with a launch that passes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.launches import GQA, given, launch

OK: dict[str, Any] = {"gpu_memory_mib": 81559, "model_config": GQA, "kv_canary": "log"}
HEAD = (
    "kv-canary: piecewise cuda graph is not supported by the current SingleForwardManager design; "
)
OLD_TEXT = HEAD + "pass --disable-piecewise-cuda-graph when canary is enabled"
NEW_TEXT = HEAD + "set --cuda-graph-backend-prefill=disabled (or =breakable) when canary is enabled"


def refusals(version: str, **values: Any) -> list[tuple[str, str]]:
    found = launch(version, **{**OK, **values})
    return [(refusal.code, refusal.message) for refusal in found.refusals]


@pytest.mark.parametrize(
    ("version", "values", "expected"),
    [
        ("0.5.13", {}, [("KVC-Z01", OLD_TEXT)]),
        ("0.5.13", {"disable_piecewise_cuda_graph": True}, []),
        ("0.5.13", {"pp_size": 2}, []),
        ("0.5.13", {"pp_size": 2, "enforce_piecewise_cuda_graph": True}, [("KVC-Z01", OLD_TEXT)]),
        ("0.5.13", {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, []),
        ("0.5.14", {}, [("KVC-A03", NEW_TEXT)]),
        ("0.5.14", {"cuda_graph_backend_prefill": "disabled"}, []),
        ("0.5.14", {"cuda_graph_config": {"prefill": {"backend": "breakable"}}}, []),
        ("0.5.14", {"disable_piecewise_cuda_graph": True}, []),
        ("0.5.16", {}, []),
        ("0.5.16", {"platform": "musa"}, [("KVC-A03", NEW_TEXT)]),
        ("0.5.20", {"cuda_graph_backend_prefill": "tc_piecewise"}, [("KVC-A03", NEW_TEXT)]),
        ("0.5.23", {}, []),
        (
            "0.5.23",
            {"kv_canary": "warn"},
            [
                (
                    "KVC-A01",
                    "kv-canary: kv_canary must be one of none/log/raise, got 'warn'",
                )
            ],
        ),
        ("0.5.23", {"kv_canary": " LOG "}, []),
        ("0.5.23", {"kv_canary_real_data": "some"}, [("KVC-A05", "'SOME'")]),
        (
            "0.5.23",
            {"kv_canary": "none", "kv_canary_sweep_interval": 10},
            [("KVC-A02", "--kv-canary-sweep-interval requires --kv-canary in {log, raise}")],
        ),
        ("0.5.23", {"kv_canary_sweep_interval": 10}, []),
        (
            "0.5.23",
            {"kv_canary_sweep_interval": 10, "disable_radix_cache": True},
            [("KVC-R06", "walk_radix_cache_for_canary does not support ChunkCache")],
        ),
        ("0.5.23", {"disable_radix_cache": True}, []),
        (
            "0.5.23",
            {"kv_canary_sweep_interval": 10, "disaggregation_mode": "decode"},
            [("KVC-R06", "walk_radix_cache_for_canary does not support ChunkCache")],
        ),
        (
            "0.5.23",
            {"platform": "xpu"},
            [
                (
                    "KVC-A04",
                    "kv-canary: xpu has no canary CUDA kernels and its torch reference cannot be "
                    "graph-captured; pass --disable-cuda-graph (or "
                    "--cuda-graph-backend-decode=disabled) when canary is enabled",
                )
            ],
        ),
        ("0.5.23", {"platform": "xpu", "cuda_graph_backend_decode": "disabled"}, []),
        ("0.5.23", {"platform": "hip"}, []),
        ("0.5.22", {"platform": "xpu"}, []),
        (
            "0.5.23",
            {"prefill_only_disable_kv_cache": True},
            [
                (
                    "KVC-A06",
                    "kv-canary: no attacher registered for pool class NoOpMHATokenToKVPool; "
                    "supported: ['DeepSeekV4TokenToKVPool', 'MHATokenToKVPool', "
                    "'MHATokenToKVPoolFP4', 'SWAKVPool']",
                )
            ],
        ),
        (
            "0.5.23",
            {
                "kv_canary_real_data": "all",
                "model_config": {**GQA, "num_key_value_heads": 1, "head_dim": 12},
            },
            [
                (
                    "KVC-S08",
                    "kv-canary: num_bytes_per_token must be a positive multiple of 16, got 24",
                )
            ],
        ),
        ("0.5.23", {"kv_canary_real_data": "all"}, []),
        (
            "0.5.23",
            {"SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT": True},
            [
                (
                    "KVC-W05",
                    "kv-canary: enable_write_input_assert=True requires a TokenOracleManager; "
                    "pass token_oracle_manager=install_oracle_sampler(oracle=...) into "
                    "install_canary(...)",
                )
            ],
        ),
        (
            "0.5.23",
            {
                "SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT": True,
                "sampling_backend": "token_oracle",
            },
            [],
        ),
        (
            "0.5.23",
            {"SGLANG_KV_CANARY_RING_CAPACITY": 0},
            [("KVC-A09", "kv-canary: ViolationLog ring_capacity must be positive, got 0")],
        ),
        (
            "0.5.23",
            {"page_size": 64, "chunked_prefill_size": 100},
            [("", "chunked_prefill_size must be divisible by page_size")],
        ),
        ("0.5.23", {"page_size": 64, "chunked_prefill_size": -1}, []),
    ],
)
def test_refusals(version: str, values: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert refusals(version, **values) == expected


def test_what_is_not_refused() -> None:
    for values in (
        {"page_size": 64},
        {"enable_hierarchical_cache": True},
        {"disaggregation_mode": "prefill"},
        {"disaggregation_mode": "decode"},
        {"pp_size": 2},
        {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
    ):
        assert refusals("0.5.23", **values) == []


def test_refusals_say_where_and_what_to_do() -> None:
    found = launch("0.5.13", **OK)
    (refusal,) = found.refusals
    assert refusal.fix == "add --disable-piecewise-cuda-graph"
    assert refusal.source == "default prefill graph of 0.5.13"
    assert refusal.certain
    blind = launch("0.5.13", gpu_memory_mib=81559, kv_canary="log")
    assert not blind.refusals[0].certain
    assert "multimodal" in blind.refusals[0].source


def test_versions_without_canary() -> None:
    found = launch("0.5.12", **OK)
    assert found.refusals == ()
    assert any("since 0.5.13" in remark.text for remark in found.remarks)


def test_stated_pool_class() -> None:
    found = launch("0.5.23", **{**OK, "pool_class": "MLATokenToKVPool"})
    assert [refusal.code for refusal in found.refusals] == ["KVC-A06"]
    assert found.refusals[0].source == given("pool_class", "").source


def test_multimodal_models_may_run_the_compiled_graph() -> None:
    config = {**GQA, "vision_config": {"num_hidden_layers": 24, "hidden_size": 1024}}
    found = launch("0.5.20", **{**OK, "model_config": config})
    assert found.value("prefill_graph_backend") == "disabled"
    assert any("compiled prefill graph" in remark.text for remark in found.remarks)
    newer = launch("0.5.23", **{**OK, "model_config": config})
    assert not any("compiled prefill graph" in remark.text for remark in newer.remarks)
