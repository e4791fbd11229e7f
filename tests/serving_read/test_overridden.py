"""--set beats everything that a log states, and a log that beats a configuration says so."""

from __future__ import annotations

import pytest

from kvcanary_cli.serving.read_overrides import set_statement
from kvcanary_cli.serving.read_source import read_source_text
from kvcanary_cli.serving.read_sources import Reading, merge

LOG = (
    "[2026-06-28 15:10:00] server_args={'model_path': 'm', 'tp_size': 2, "
    "'chunked_prefill_size': 8192, 'max_prefill_tokens': 16384, 'max_running_requests': 64, "
    "'cuda_graph_config': {'decode': {'backend': 'full', 'max_bs': 64, 'bs': [1, 2, 64]}, "
    "'prefill': {'backend': 'breakable'}}, 'kv_canary': 'log', "
    "'speculative_num_draft_tokens': None, 'context_length': None}\n"
    "[2026-06-28 15:16:44] max_total_num_tokens=50000, chunked_prefill_size=8192, "
    "max_prefill_tokens=16384, max_running_requests=33, context_len=256000, "
    "available_gpu_mem=17.22 GB\n"
    "[2026-06-28 15:16:45] install_canary: launch_capacities=CanaryLaunchCapacities("
    "per_forward_verify_capacity=150000, per_forward_write_req_capacity=64, "
    "per_forward_write_entry_capacity=8192) n_buffer_groups=1\n"
)


def read(*settings: str, yaml: str = "") -> Reading:
    parts = [read_source_text(yaml, "c.yaml")] if yaml else []
    parts.append(read_source_text(LOG, "d.log"))
    return merge(parts, [set_statement(text, "0.5.23") for text in settings], version="0.5.23")


@pytest.mark.parametrize(
    ("setting", "name", "expected"),
    [
        ("max_running_requests=200", "req_to_token_pool_size", 200),
        ("context_length=1000", "context_length", 1000),
        ("context_len=1000", "context_length", 1000),
        ("max_total_tokens=5000", "pool_slot_count", 5000),
        ("max_total_num_tokens=5000", "pool_slot_count", 5000),
        ("cuda_graph_max_bs_decode=300", "cuda_graph_max_bs", 300),
        ("chunked_prefill_size=512", "chunked_prefill_size", 512),
        ("max_prefill_tokens=99", "max_prefill_tokens", 99),
    ],
)
def test_an_override_beats_the_log(setting: str, name: str, expected: int) -> None:
    assert read(setting).resolve().value(name) == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("max_running_requests=200", [150_000, 200, 8192]),
        ("max_total_tokens=5000", [15_000, 64, 8192]),
        ("chunked_prefill_size=512", [150_000, 64, 512]),
        ("tp_size=4", [150_000, 64, 8192]),
    ],
)
def test_capacities_follow_the_override(setting: str, expected: list[int]) -> None:
    assert [part.value for part in read(setting).resolve().capacity_parts()] == expected


def test_two_overrides_of_one_chain_both_count() -> None:
    found = read("max_total_tokens=5000", "kv_tokens=4000").resolve()
    assert found.value("pool_slot_count") == 4000


@pytest.mark.parametrize(
    ("yaml", "text"),
    [
        ("max-running-requests: 8", "max_running_requests is 8 at c.yaml:1:1, but 33 is in effect"),
        ("context-length: 4096", "context_length is 4096 at c.yaml:1:1, but 256000 is in effect"),
        ("max-total-tokens: 900", "max_total_tokens is 900 at c.yaml:1:1, but 50000 is in effect"),
        ("chunked-prefill-size: 99", "chunked_prefill_size is 99 at c.yaml:1:1, but 8192 is in"),
    ],
)
def test_a_log_that_overrides_the_configuration_says_so(yaml: str, text: str) -> None:
    (notice,) = [str(one) for one in read(yaml=yaml).notices]
    assert text in notice


@pytest.mark.parametrize(
    "yaml",
    [
        "max-running-requests: 64",
        "max-running-requests: 33",
        "chunked-prefill-size: 8192",
        "chunked-prefill-size: 32768\ndp-size: 4\ntp-size: 2\nenable-dp-attention: true",
        "max-total-tokens: 60000",
    ],
)
def test_what_the_rules_make_of_it_is_no_contradiction(yaml: str) -> None:
    assert not any("in effect" in str(one) for one in read(yaml=yaml).notices)
