"""The JSON that a running server answers, and its merging with other sources."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.serving.read_json import read_server_info
from kvcanary_cli.serving.read_overrides import (
    gpu_statements,
    model_statement,
    parse_bytes,
    set_statement,
)
from kvcanary_cli.serving.read_source import read_source_text
from kvcanary_cli.serving.read_sources import Reading, merge

INFO = {
    "model_path": "m",
    "tp_size": 8,
    "max_running_requests": 1024,
    "chunked_prefill_size": 1024,
    "max_prefill_tokens": 16384,
    "version": "0.5.23",
    "launch_command": "x",
    "scheduler_info": {"max_total_num_tokens": 400000, "max_req_input_len": 32762},
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 128,
            "memory_usage": {"weight": 15.0, "kvcache": 48.8, "token_capacity": 399999},
            "decode_cuda_graph_bs": [1, 2, 4],
        },
        {"effective_max_running_requests_per_dp": 127},
    ],
}


def read(value: object) -> Reading:
    return merge([read_server_info(json.dumps(value, indent=1), "info.json")])


def last(reading: Reading) -> dict[str, object]:
    return {one.name: one.value for one in reading.given}


def test_server_info() -> None:
    reading = read(INFO)
    values = last(reading)
    assert reading.version == "0.5.23"
    assert values["tp_size"] == 8
    assert values["effective_max_running_requests"] == 127
    assert values["kv_tokens"] == 399999
    assert values["max_req_input_len"] == 32762
    assert values["capture_bs"] == [1, 2, 4]
    assert values["weights_gib"] == 15.0
    assert "internal_states" not in values
    resolution = reading.resolve()
    assert resolution.value("chunked_prefill_size") == 1024
    assert resolution.source("chunked_prefill_size") == "info.json:5:2 (server-info)"
    assert resolution.value("req_to_token_pool_size") == 127


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1,}', "not JSON"),
        ('{"a": 1}', "not a server-info"),
        ("{" + '"a":{' * 5000, "not JSON"),
        ("[]", "not a server-info"),
    ],
)
def test_problems(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        merge([read_server_info(text, "info.json")])
    assert caught.value.message.startswith("info.json:1")
    assert words in caught.value.message


def test_odd_numbers_are_left_out_and_told() -> None:
    reading = read({"tp_size": 1, "max_total_num_tokens": "many", "scheduler_info": []})
    assert "kv_tokens" not in last(reading)
    assert "'max_total_num_tokens' is no number" in str(reading.notices[0])


def test_what_the_server_resolved_beats_what_was_passed() -> None:
    yaml = read_source_text("max-prefill-tokens: 4096\ntp-size: 8\n", "c.yaml")
    info = read_server_info(json.dumps(INFO), "info.json")
    for order in ([yaml, info], [info, yaml]):
        assert merge(order).resolve().value("max_prefill_tokens") == 16384
    notices = [str(one) for one in merge([yaml, info]).notices]
    assert any("max_prefill_tokens is 4096 at c.yaml:1:1, but the server" in one for one in notices)


def test_versions_of_sources_that_differ_are_told() -> None:
    info = read_server_info(json.dumps(INFO), "info.json")
    other = read_server_info(json.dumps({**INFO, "version": "0.5.14"}), "old.json")
    reading = merge([info, other])
    assert reading.version == "0.5.14"
    assert any("the version is 0.5.14 here and 0.5.23 at" in str(n) for n in reading.notices)
    assert merge([info, other], version="0.5.22").version == "0.5.22"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("tp_size=8", "tp_size", 8),
        ("--tp=8", "tp_size", 8),
        ("max-running-requests=64", "max_running_requests", 64),
        ("max_total_num_tokens=400000", "pool_slot_count", 400000),
        ("kv_tokens=400000", "kv_tokens", 400000),
        ("swa_pool_slot_count=7", "swa_kv_tokens", 7),
        ("context_len=32768", "context_len", 32768),
        ("enable_mixed_chunk=true", "enable_mixed_chunk", True),
        ("cuda_graph_bs_decode=1,2,4", "cuda_graph_bs_decode", [1, 2, 4]),
        ("cuda_graph_max_bs_decode=8", "cuda_graph_max_bs_decode", 8),
        ("weights_gib=1.5", "weights_gib", 1.5),
        ("hopper=yes", "hopper", True),
        ("SGLANG_KV_CANARY_RING_CAPACITY=64", "SGLANG_KV_CANARY_RING_CAPACITY", 64),
        ("kv_canary=none", "kv_canary", "none"),
        ("speculative_algorithm=None", "speculative_algorithm", None),
    ],
)
def test_set(text: str, name: str, value: object) -> None:
    given = set_statement(text, "0.5.23")
    assert (given.name, given.value, given.kind) == (name, value, "override")


@pytest.mark.parametrize(
    "text",
    [
        "tp_size",
        "=8",
        "tp_size=x",
        "no_such_thing_here=1",
        "kv_tokens=x",
        "hopper=maybe",
        "state_slots_per_request=4",
    ],
)
def test_set_refuses(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        set_statement(text, None)
    assert "--set" in caught.value.message


def test_gpu_options() -> None:
    given, notes = gpu_statements(memory=None, name="H100", count=8)
    values = {one.name: one.value for one in given}
    assert values == {"gpu_name": "H100", "hopper": True, "gpu_memory_mib": 81559, "gpu_count": 8}
    given, notes = gpu_statements(memory="80GB", name=None, count=None)
    assert given[0].value == 81559
    assert "80 GB class taken as 81559 MiB" in notes[0]
    with pytest.raises(UsageError):
        gpu_statements(memory=None, name=None, count=0)


def test_sizes() -> None:
    assert parse_bytes("2GiB", "--budget") == 2 << 30
    assert parse_bytes("2GB", "--budget") == 2_000_000_000
    assert parse_bytes("512", "--budget") == 512
    assert parse_bytes("1.5k", "--budget") == 1500
    with pytest.raises(UsageError):
        parse_bytes("much", "--budget")


def test_model_configuration(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert model_statement(str(tmp_path)).value == {"architectures": ["LlamaForCausalLM"]}
    path.write_text('{"a": }')
    with pytest.raises(InputError) as caught:
        model_statement(str(path))
    assert caught.value.message.startswith(f"{path}:1:7: not JSON")
    path.write_text("[1]")
    with pytest.raises(InputError, match="found list"):
        model_statement(str(path))
    with pytest.raises(InputError, match="cannot be read"):
        model_statement(str(tmp_path / "none.json"))
