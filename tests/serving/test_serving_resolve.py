"""Whole resolutions: worked examples, golden capacities, sources, gaps, changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcanary_cli.capacities import CanaryLaunchCapacities
from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.serving.changes import with_change
from kvcanary_cli.serving.resolve import resolve
from kvcanary_cli.serving.values import RESULTS, Given, Place, Resolution, Unknown
from tests.serving.launches import GQA, HYBRID, MLA, WINDOW, given, launch

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "capacities.json"


def capacities(resolution: Resolution) -> tuple[int, int, int]:
    found = resolution.capacities()
    assert isinstance(found, CanaryLaunchCapacities), found
    return (
        found.per_forward_write_req_capacity,
        found.per_forward_write_entry_capacity,
        found.per_forward_verify_capacity,
    )


H100: dict[str, Any] = {
    "gpu_memory_mib": 81559,
    "model_config": GQA,
    "kv_tokens": 400000,
    "kv_canary": "log",
}


@pytest.mark.parametrize(
    ("options", "values", "expected"),
    [
        ({}, (8192, 256, 4096, 0), (4096, 8192, 1200000)),
        ({"chunked_prefill_size": 32768}, (32768, 256, 4096, 0), (4096, 16384, 1200000)),
        ({"speculative_algorithm": "EAGLE3"}, (8192, 256, 48, 4), (256, 8192, 1200000)),
        (
            {"chunked_prefill_size": -1, "max_running_requests": 64},
            (-1, 64, 64, 0),
            (64, 16384, 1200000),
        ),
    ],
)
def test_worked_examples_on_one_h100(
    options: dict[str, Any], values: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    found = launch(**H100, **options)
    assert (
        found.value("chunked_prefill_size"),
        found.value("cuda_graph_max_bs"),
        found.value("req_to_token_pool_size"),
        found.value("speculative_num_draft_tokens"),
    ) == values
    assert found.value("max_prefill_tokens") == 16384
    assert capacities(found) == expected
    assert found.refusals == ()


@pytest.mark.parametrize(
    "parallel", [{"dp_size": 8, "enable_dp_attention": True}, {"attn_dp_size": 8}]
)
def test_worked_example_with_dp_attention(parallel: dict[str, Any]) -> None:
    found = launch(
        gpu_memory_mib=143771,
        tp_size=8,
        max_running_requests=1024,
        kv_tokens=300000,
        model_config=GQA,
        **parallel,
    )
    assert found.value("chunked_prefill_size") == 1024
    assert found.source("chunked_prefill_size").startswith("rule 2.6: 8192 // dp 8")
    assert found.value("cuda_graph_max_bs") == 512
    assert found.value("req_to_token_pool_size") == 128
    assert found.value("schedule_conservativeness") == pytest.approx(0.3)
    assert found.value("captured_bs")[-1] == 128
    assert found.value("cuda_graph_prefill_tokens")[-1] == 1024
    assert capacities(found) == (512, 1024, 900000)


@pytest.mark.parametrize(
    ("version", "chunk", "graph"), [("0.5.23", 4096, 48), ("0.5.18", 2048, 24)]
)
def test_worked_example_rtx_5090(version: str, chunk: int, graph: int) -> None:
    found = launch(version, gpu_memory_mib=32607, kv_tokens=80000, model_config=GQA)
    requests = found.value("req_to_token_pool_size")
    assert (found.value("chunked_prefill_size"), found.value("cuda_graph_max_bs")) == (chunk, graph)
    assert capacities(found) == (requests, max(requests, chunk), 240000)


@pytest.mark.parametrize(
    ("config", "pool"), [(MLA, "MLATokenToKVPool"), (HYBRID, "HybridLinearKVPool")]
)
def test_refused_models(config: dict[str, Any], pool: str) -> None:
    found = launch(gpu_name="h100", model_config=config, kv_canary="log")
    (refusal,) = found.refusals
    assert (refusal.code, refusal.certain) == ("KVC-A06", True)
    assert refusal.message == (
        f"kv-canary: no attacher registered for pool class {pool}; supported: "
        "['DeepSeekV4TokenToKVPool', 'MHATokenToKVPool', 'MHATokenToKVPoolFP4', 'SWAKVPool']"
    )
    assert launch(gpu_name="h100", model_config=config).refusals == ()


def _golden() -> list[dict[str, Any]]:
    cases = json.loads(GOLDEN.read_text("utf-8"))["cases"]
    assert cases
    return list(cases)


@pytest.mark.parametrize("case", _golden())
def test_golden_capacities(case: dict[str, Any]) -> None:
    inputs, output = case["inputs"], case.get("output")
    graph = inputs["cuda_graph_decode_max_bs"] if inputs["cuda_graph_config_present"] else None
    draft = inputs["speculative_num_draft_tokens"]
    stated = [
        given("req_to_token_pool_size", inputs["req_to_token_pool_size"], "override"),
        given("max_seq_len_per_req", inputs["max_seq_len_per_req"], "override"),
        given("pool_slot_count", inputs["pool_slot_count"], "override"),
        given("cuda_graph_max_bs_decode", graph or 0, "override"),
        given("max_prefill_tokens", inputs["max_prefill_tokens"], "override"),
        given("chunked_prefill_size", inputs["chunked_prefill_size"], "resolved"),
    ]
    if draft:
        stated += [
            given("speculative_algorithm", "EAGLE", "resolved"),
            given("speculative_num_draft_tokens", draft, "resolved"),
        ]
    resolution = resolve(stated)
    found = resolution.capacities()
    if output is None:
        assert isinstance(found, tuple)
        assert resolution.refusals[-1].message == case["error"]
        return
    assert isinstance(found, CanaryLaunchCapacities), found
    for name in ("verify", "write_req", "write_entry"):
        name = f"per_forward_{name}_capacity"
        assert getattr(found, name) == output[name]
    for groups, size in output["per_forward_workspace_bytes"].items():
        assert found.workspace_bytes(int(groups)) == size


def test_nothing_given_guesses_nothing() -> None:
    found = launch(None)
    assert found.version == "0.5.23"
    assert "no version was stated" in found.version_basis
    assert {"gpu_memory_mib", "pool_slot_count", "cuda_graph_max_bs", "chunked_prefill_size"} <= (
        set(found.unknown)
    )
    missing = found.capacities()
    assert isinstance(missing, tuple)
    assert {each.name for each in missing} == {
        "pool_slot_count",
        "cuda_graph_max_bs",
        "req_to_token_pool_size",
        "chunked_prefill_size",
    }
    assert all(each.give for each in missing)
    assert all(part.value is None for part in found.capacity_parts())


def test_parts_are_known_one_by_one() -> None:
    found = launch(gpu_memory_mib=81559, max_running_requests=300, cuda_graph_max_bs_decode=8)
    parts = {part.name: part for part in found.capacity_parts()}
    assert parts["per_forward_write_req_capacity"].value == 300
    assert parts["per_forward_write_entry_capacity"].value == 8192
    assert parts["per_forward_verify_capacity"].value is None
    assert parts["per_forward_verify_capacity"].unknown == ("pool_slot_count",)
    assert any("at least 600 tokens" in remark.text for remark in found.remarks)


def test_strength_of_statements() -> None:
    stated = [
        given("chunked_prefill_size", 4096),
        given("chunked_prefill_size", 1024, "resolved"),
        given("chunked_prefill_size", 2048),
    ]
    assert resolve(stated).value("chunked_prefill_size") == 1024
    stated.append(given("chunked_prefill_size", 512, "override"))
    assert resolve(stated).value("chunked_prefill_size") == 512
    assert resolve(stated[::2]).value("chunked_prefill_size") == 2048


def test_resolved_values_are_not_divided_again() -> None:
    stated = [
        given("tp_size", 8),
        given("dp_size", 8),
        given("enable_dp_attention", True),
        given("chunked_prefill_size", 1024, "resolved"),
    ]
    assert resolve(stated).value("chunked_prefill_size") == 1024
    assert (
        resolve([*stated[:3], given("chunked_prefill_size", 1024)]).value("chunked_prefill_size")
        == 128
    )


def test_log_beats_rule() -> None:
    found = launch(
        gpu_memory_mib=81559,
        model_config=GQA,
        kv_tokens=300000,
        effective_max_running_requests=33,
        context_len=256000,
    )
    assert found.value("req_to_token_pool_size") == 33
    assert found.value("context_length") == 256000
    assert found.source("req_to_token_pool_size") == "effective_max_running_requests of the test"


def test_places_and_sources_are_kept() -> None:
    place = Place("config.yaml", 7, 3)
    stated = Given("chunked_prefill_size", 4096, "config.yaml:7", place)
    found = resolve([stated]).values["chunked_prefill_size"]
    assert (found.source, found.place) == ("config.yaml:7", place)
    assert str(place) == "config.yaml:7:3"
    assert str(Place("stdin")) == "stdin"


def test_graph_sources() -> None:
    listed = launch(gpu_memory_mib=81559, cuda_graph_bs_decode=[1, 16, 4])
    assert listed.value("cuda_graph_max_bs") == 16
    config = launch(
        gpu_memory_mib=81559,
        cuda_graph_max_bs_decode=64,
        cuda_graph_config={"decode": {"max_bs": 96}},
    )
    assert config.value("cuda_graph_max_bs") == 96
    off = launch(gpu_memory_mib=81559, disable_cuda_graph=True, kv_tokens=9999, model_config=GQA)
    assert off.value("cuda_graph_max_bs") == 256
    assert off.value("captured_bs") == []
    lowered = launch("0.5.22", gpu_memory_mib=81559, max_running_requests=20)
    assert lowered.value("cuda_graph_max_bs") == 20
    assert "lowered to max_running_requests" in lowered.source("cuda_graph_max_bs")
    kept = launch("0.5.20", gpu_memory_mib=81559, max_running_requests=20)
    assert kept.value("cuda_graph_max_bs") == 256
    spec = launch(gpu_memory_mib=81559, model_config=GQA, speculative_algorithm="EAGLE")
    assert spec.value("cuda_graph_max_bs") == 256
    old = launch("0.5.2", gpu_memory_mib=81559)
    assert old.value("cuda_graph_max_bs") == 160


def test_graph_maximum_from_the_captured_list() -> None:
    found = launch(capture_bs=[1, 2, 4, 8], max_running_requests=100)
    assert found.value("cuda_graph_max_bs") == 8
    assert "below R 100" in found.source("cuda_graph_max_bs")
    full = launch(capture_bs=[1, 2, 4, 8], max_running_requests=8)
    assert "at least that" in full.unknown["cuda_graph_max_bs"].why


def test_memory_from_a_log() -> None:
    found = launch(
        "0.4.6",
        gpu_memory_mib=49140,
        model_config={**GQA, "num_hidden_layers": 40},
        avail_after_load_gib=19.67,
        weights_gib=27.57,
    )
    assert found.value("mem_fraction_static") == 0.88
    assert found.value("kv_rest_gib") == pytest.approx(14.0012)
    assert found.value("pool_slot_count") == int(found.value("kv_rest_gib") * 2**30 / 163840)
    assert found.value("pool_slot_count") == pytest.approx(91749, rel=0.001)


def test_estimate_from_nominal_memory_is_said() -> None:
    found = launch(gpu_memory_mib=81559, model_config=GQA, weights_bytes=8 << 30)
    assert "estimated" in found.source("kv_rest_gib")
    assert any("nominal memory" in remark.text for remark in found.remarks)
    more = launch(gpu_memory_mib=81559, model_config=GQA, weights_bytes=9 << 30)
    assert more.value("pool_slot_count") < found.value("pool_slot_count")


def test_token_cap_without_memory_is_said() -> None:
    found = launch(gpu_memory_mib=81559, model_config=GQA, max_total_tokens=20480)
    assert found.value("pool_slot_count") == 20480
    assert "provided that memory allows it" in found.source("pool_slot_count")
    assert any("--max-total-tokens 20480" in remark.text for remark in found.remarks)


def test_no_memory_left_is_refused() -> None:
    memory = {"avail_before_load_gib": 137.9, "avail_after_load_gib": 12.25}
    found = launch(mem_fraction_static=0.88, cell_bytes=1000, **memory)
    assert found.value("pool_slot_count") == 0
    messages = [refusal.message for refusal in found.refusals]
    assert messages[0].startswith(
        "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.88"
    )
    assert messages[1] == "kv-canary: pool_slot_count must be positive, got 0"
    assert found.refusals[1].code == "KVC-B01"
    missing = found.capacities()
    assert isinstance(missing, tuple)
    old = launch("0.5.9", mem_fraction_static=0.88, cell_bytes=1000, **memory)
    assert old.refusals[0].message == (
        "Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.88"
    )


def test_window_model_has_two_groups() -> None:
    found = launch(gpu_name="h100", model_config=WINDOW, kv_tokens=100000, page_size=64)
    assert found.value("buffer_groups") == 2
    assert found.value("swa_pool_slot_count") == 80000
    flat = launch(
        gpu_name="h100",
        model_config=WINDOW,
        kv_tokens=100000,
        disable_hybrid_swa_memory=True,
    )
    assert (flat.value("buffer_groups"), flat.value("pool_class")) == (1, "MHATokenToKVPool")


def test_state_memory_that_is_unknown_is_not_passed_over() -> None:
    found = launch(gpu_name="h100", model_config=HYBRID, kv_tokens=10**6, max_running_requests=64)
    assert "state memory" in found.unknown["req_to_token_pool_size"].why
    known = launch(
        gpu_name="h100",
        model_config=HYBRID,
        kv_tokens=10**6,
        max_running_requests=64,
        mamba_slots=131,
        mamba_radix_cache_strategy="extra_buffer",
    )
    assert known.value("req_to_token_pool_size") == 26


def test_page_size() -> None:
    assert launch(attention_backend="flashmla").value("page_size") == 64
    assert launch(attention_backend="trtllm_mla", page_size=32).value("page_size") == 32
    assert launch(attention_backend="trtllm_mla", page_size=1).value("page_size") == 64
    assert launch(attention_backend="fa4", model_config=GQA).value("page_size") == 128
    assert launch(attention_backend="fa4", model_config=MLA).value("page_size") == 1
    assert launch(platform="npu").value("page_size") == 128
    assert launch("0.5.12", platform="musa").value("page_size") == 64
    assert launch("0.5.10", platform="musa").value("page_size") == 1
    assert launch(page_size=16).value("page_size") == 16


def test_disaggregation() -> None:
    decode = launch(
        gpu_memory_mib=81559,
        model_config=GQA,
        kv_tokens=10**6,
        disaggregation_mode="decode",
        max_running_requests=16,
    )
    assert decode.value("extra_request_rows") == 32
    assert decode.value("req_to_token_pool_size") == 16
    assert decode.value("prefill_graph_backend") == "disabled"
    prefill = launch(gpu_memory_mib=81559, disaggregation_mode="prefill")
    assert prefill.value("decode_graph") is False
    assert prefill.value("prefill_graph_backend") == "breakable"


def test_automatic_chunking_off() -> None:
    config = {**GQA, "architectures": ["MllamaForConditionalGeneration"]}
    found = launch(gpu_name="h100", model_config=config)
    assert found.value("chunked_prefill_size") == -1
    assert launch(gpu_name="h100", is_embedding=True).value("chunked_prefill_size") == -1
    assert (
        launch("0.4.1", gpu_name="h100", speculative_algorithm="EAGLE").value(
            "chunked_prefill_size"
        )
        == -1
    )


def test_fraction_that_depends_on_the_model_is_unknown() -> None:
    found = launch(gpu_memory_mib=49140)
    assert "with MLA" in found.unknown["mem_fraction_static"].why
    assert launch(gpu_memory_mib=49140, model_config=GQA).value("mem_fraction_static") is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tp_size", 0),
        ("tp_size", "8"),
        ("tp_size", True),
        ("page_size", 0),
        ("mem_fraction_static", 0.0),
        ("mem_fraction_static", 1.5),
        ("mem_fraction_static", float("nan")),
        ("mem_fraction_static", "high"),
        ("chunked_prefill_size", 1 << 60),
        ("cuda_graph_bs_decode", [0]),
        ("cuda_graph_bs_decode", "1 2"),
        ("cuda_graph_config", "{}"),
        ("cuda_graph_config", {"decode": 3}),
        ("cuda_graph_config", {"decode": {"max_bs": "8"}}),
        ("disable_radix_cache", "yes"),
        ("swa_full_tokens_ratio", 2.0),
        ("sglang_version", "newest"),
        ("model_config", [1]),
    ],
)
def test_bad_values_name_their_source(name: str, value: Any) -> None:
    extra = {"model_config": WINDOW} if name == "swa_full_tokens_ratio" else {}
    with pytest.raises(InputError) as caught:
        launch(None, **{**extra, name: value})
    if name != "sglang_version":
        assert f"{name} of the test" in caught.value.message


def test_unknown_gpu_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="is not known"):
        resolve([given("gpu_name", "q9000", "override")])
    with pytest.raises(UsageError, match="is not a memory size"):
        resolve([given("gpu_memory_mib", "big", "override")])
    class_size = resolve([given("gpu_memory_mib", "80GB", "override")])
    assert class_size.value("gpu_memory_mib") == 81559
    assert any("80 GB class taken as" in remark.text for remark in class_size.remarks)


def test_version_from_a_fact() -> None:
    found = resolve([given("sglang_version", "0.5.18", "fact"), given("gpu_name", "rtx5090")])
    assert (found.version, found.version_basis) == ("0.5.18", "given")
    assert found.value("cuda_graph_max_bs") == 24
    near = launch("0.5.19")
    assert (near.version, near.stated_version) == ("0.5.18", "0.5.19")
    assert near.remarks[0].text == near.version_basis


def test_a_change_drops_what_it_makes_untrue() -> None:
    stated = [
        given("cuda_graph_max_bs_decode", 8, "resolved"),
        given("cuda_graph_config", {"decode": {"max_bs": 8, "backend": "full"}}, "resolved"),
        given("capture_bs", [1, 2, 4, 8]),
        given("canary_write_req_capacity", 8),
        given("max_running_requests", 8),
        given("effective_max_running_requests", 8),
        given("kv_tokens", 10000),
        given("chunked_prefill_size", 2048),
    ]
    before = {part.name: part.value for part in resolve(stated).capacity_parts()}
    assert before["per_forward_write_req_capacity"] == 8
    changed = with_change(stated, "cuda_graph_max_bs_decode", 64, "suggestion")
    found = resolve(changed)
    assert (found.value("cuda_graph_max_bs"), found.source("cuda_graph_max_bs")) == (
        64,
        "suggestion",
    )
    assert capacities(found)[0] == 64
    wider = resolve(with_change(stated, "max_running_requests", 40, "suggestion"))
    assert wider.value("req_to_token_pool_size") == 40
    assert (
        resolve(with_change(stated, "chunked_prefill_size", None, "dropped")).value(
            "chunked_prefill_size"
        )
        is None
    )


def test_names_are_documented() -> None:
    found = launch(gpu_name="h100", model_config=WINDOW, kv_tokens=10**5, mamba_slots=10)
    assert set(found.values) <= set(RESULTS)
    assert set(launch(None).unknown) <= set(RESULTS)


def test_stated_capacities_win() -> None:
    found = launch(
        gpu_memory_mib=81559, model_config=GQA, kv_tokens=400000, canary_write_req_capacity=12
    )
    assert capacities(found)[0] == 12


def test_refused_input_is_missing() -> None:
    found = launch(**H100, max_prefill_tokens=0)
    assert found.refusals[-1].message == "kv-canary: max_prefill_tokens must be positive, got 0"
    missing = found.capacities()
    assert isinstance(missing, tuple)
    assert isinstance(missing[0], Unknown)
    assert missing[0].name == "max_prefill_tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cuda_graph_max_bs", 12),
        ("req_to_token_pool_size", 77),
        ("pool_slot_count", 1234),
        ("cell_bytes", 99),
        ("buffer_groups", 2),
        ("max_seq_len_per_req", 500),
        ("prefill_graph_backend", "disabled"),
        ("cuda_graph_bs", [1, 2]),
        ("mem_fraction_static", 0.5),
        ("decode_graph", False),
    ],
)
def test_every_result_can_be_overridden(name: str, value: Any) -> None:
    for known in ([], [given("gpu_memory_mib", 81559), given("model_config", GQA)]):
        found = resolve([*known, given(name, value, "override")])
        assert found.value(name) == value
        assert found.source(name) == f"{name} of the test"
        assert name not in found.unknown
