"""Each check on its own: when it passes, when it fails, with which words and fixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.check_result import Check, CheckReport, Status, Verdict
from kvcanary_cli.serving.checks import first_stalled_step
from kvcanary_cli.serving.demand import stated_demands
from kvcanary_cli.serving.read_command import read_words
from kvcanary_cli.serving.read_log import read_log
from kvcanary_cli.serving.read_sources import merge
from kvcanary_cli.serving.values import Given

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
H100 = 81559
H200 = 143771


def model(name: str) -> Given:
    value = json.loads((MODELS / f"{name}.json").read_text())
    return Given("model_config", value, "--model-config", None, "override")


def report(
    words: str,
    *,
    mib: int = H100,
    slots: int | None = 400_000,
    config: str | None = "gqa_8b",
    version: str | None = "0.5.23",
    batch: int | None = None,
    tokens: int | None = None,
    facts: dict[str, object] | None = None,
) -> CheckReport:
    overrides = [Given("gpu_memory_mib", mib, "--gpu-mem", None, "override")]
    if slots is not None:
        overrides.append(Given("kv_tokens", slots, "--set kv_tokens", None, "override"))
    if config is not None:
        overrides.append(model(config))
    overrides += [
        Given(name, value, f"--set {name}", None, "override")
        for name, value in (facts or {}).items()
    ]
    raw = read_words(["--model-path", "m", *words.split()])
    reading = merge([raw], overrides, version=version)
    return build_report(reading, stated_demands(peak_batch_size=batch, peak_tokens=tokens))


def check(found: CheckReport, name: str) -> Check:
    (one,) = [c for c in found.checks if c.name == name]
    return one


def capacities(found: CheckReport) -> tuple[int | None, ...]:
    return tuple(part.value for part in found.parts)


@pytest.mark.parametrize(
    ("words", "mib", "expected", "fails"),
    [
        ("--context-length 32768", H100, (1_200_000, 4096, 8192), None),
        (
            "--context-length 32768 --chunked-prefill-size 32768",
            H100,
            (1_200_000, 4096, 16384),
            32768,
        ),
        (
            "--context-length 32768 --speculative-algorithm EAGLE3 "
            "--speculative-num-steps 3 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 4",
            H100,
            (1_200_000, 256, 8192),
            None,
        ),
        (
            "--context-length 32768 --chunked-prefill-size -1 --max-running-requests 64",
            H100,
            (1_200_000, 64, 16384),
            32762,
        ),
        (
            "--tp-size 8 --attn-dp-size 8 --max-running-requests 1024",
            H200,
            (1_200_000, 512, 1024),
            None,
        ),
    ],
    ids=["plain", "wide chunk", "eagle3", "unchunked", "attention dp"],
)
def test_worked_examples(
    words: str, mib: int, expected: tuple[int, ...], fails: int | None
) -> None:
    found = report(words, mib=mib)
    assert capacities(found) == expected
    tokens = check(found, "token_count")
    if fails is None:
        assert found.verdict is Verdict.OK
        assert tokens.status is Status.OK
    else:
        assert [c.code for c in found.failing] == ["KVC-B04"]
        assert tokens.demand == fails
        assert tokens.message == (
            f"kv-canary: forward_batch token count={fails} exceeds pre-allocated "
            "write_entry_capacity=16384; raise --chunked-prefill-size / --max-prefill-tokens or "
            "check CanaryLaunchCapacities.from_args"
        )


def test_worked_example_of_a_small_gpu() -> None:
    old = report("--context-length 32768", mib=32607, version="0.5.18")
    new = report("--context-length 32768", mib=32607, version="0.5.23")
    assert (
        old.resolution.value("chunked_prefill_size"),
        old.resolution.value("cuda_graph_max_bs"),
    ) == (2048, 24)
    assert (
        new.resolution.value("chunked_prefill_size"),
        new.resolution.value("cuda_graph_max_bs"),
    ) == (4096, 48)
    assert capacities(new)[2] == max(4096, capacities(new)[1] or 0)


@pytest.mark.parametrize("version", ["0.5.13", "0.5.18", "0.5.20", "0.5.23"])
def test_batch_size(version: str) -> None:
    flag = "--cuda-graph-max-bs" if version < "0.5.20" else "--cuda-graph-max-bs-decode"
    words = f"{flag} 8 --max-running-requests 8"
    assert check(report(words, version=version, batch=8), "batch_size").status is Status.OK
    found = check(report(words, version=version, batch=12), "batch_size")
    assert (found.status, found.limit, found.demand, found.margin) == (Status.FAILS, 8, 12, -4)
    assert found.demand_source == "--peak-batch-size"
    assert found.message == (
        "kv-canary: forward_batch.batch_size=12 exceeds pre-allocated write_req_capacity=8; "
        f"raise {flag} or check CanaryLaunchCapacities.from_args"
    )


def test_graph_size_counts_even_without_graphs() -> None:
    words = "--cuda-graph-max-bs-decode 64 --max-running-requests 8"
    found = report(f"{words} --cuda-graph-backend-decode disabled")
    assert capacities(found)[1] == 64


def test_padding_to_attention_tp() -> None:
    words = "--tp-size 8 --attn-dp-size 2 --max-running-requests 20 --cuda-graph-max-bs-decode 8"
    found = report(words, mib=H200)
    padded = check(found, "padded_batch_size")
    assert (padded.limit, padded.demand, padded.status) == (10, 12, Status.FAILS)
    assert padded.cause == "padded to multiples of the attention TP size 4"
    assert check(found, "batch_size").status is Status.OK


def test_dynamic_chunking() -> None:
    words = "--pp-size 2 --chunked-prefill-size 8192 --max-prefill-tokens 8192"
    assert check(report(words), "token_count").status is Status.OK
    found = check(report(f"{words} --enable-dynamic-chunking"), "token_count")
    assert (found.demand, found.status) == (10240, Status.FAILS)
    assert "dynamic chunking" in found.cause


def test_decode_server_runs_no_prefill() -> None:
    words = "--disaggregation-mode decode --chunked-prefill-size 32768 --max-running-requests 64"
    found = check(report(words), "token_count")
    assert (found.demand, found.status) == (64, Status.OK)


def test_unchunked_with_a_short_context_fits() -> None:
    found = check(report("--chunked-prefill-size -1 --context-length 8192"), "token_count")
    assert (found.demand, found.status) == (8186, Status.OK)


def test_observed_tokens() -> None:
    found = check(report("", tokens=20000), "token_count")
    assert (found.demand, found.demand_source, found.status) == (
        20000,
        "--peak-tokens",
        Status.FAILS,
    )


def test_plan_rows() -> None:
    found = report("--max-running-requests 5000")
    assert [c.code for c in found.failing] == ["KVC-C02"]
    assert "supports at most bs=4096 reqs per launch, got bs=5000" in found.failing[0].message


def test_token_scatter_only_with_the_assert() -> None:
    words = "--max-running-requests 600"
    assert not [c for c in report(words).checks if c.code == "KVC-E06"]
    name = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"
    found = check(report(words, facts={name: True}), "token_scatter")
    assert (found.limit, found.demand, found.status) == (511, 600, Status.FAILS)
    assert "bs+1=601 exceeds BATCH_BLOCK=512" in found.message
    assert report(words, facts={name: True}).memory.expected_tokens == 4 * 601 * (131072 + 4)
    fits = check(report("--max-running-requests 511", facts={name: True}), "token_scatter")
    assert fits.status is Status.OK


def test_first_stalled_step_of_the_specification() -> None:
    assert first_stalled_step(200) == 201


@pytest.mark.parametrize("interval", [101, 102, 133, 150, 200, 201, 999, 1000])
def test_first_stalled_step(interval: int) -> None:
    """One by one: sweeps at 1, 1 + n, ...; the first 100 steps from 101 on without one."""
    sweeps = {1 + k * interval for k in range(2000)}
    windows = [end for end in range(200, 20000, 100) if not sweeps & set(range(end - 99, end + 1))]
    assert first_stalled_step(interval) == windows[0] + 1


def test_sweep_interval() -> None:
    assert not [c for c in report("--kv-canary log").checks if c.code == "KVC-R01"]
    words = "--kv-canary log --kv-canary-sweep-interval "
    assert check(report(words + "100"), "sweep_interval").status is Status.OK
    found = check(report(words + "200"), "sweep_interval")
    assert (found.limit, found.demand, found.status) == (100, 200, Status.FAILS)
    assert found.message == (
        "kv-canary: kernel_run_counter did not increase since previous check for "
        "tags=['SWEEP_K_FULL'] at step=201; canary path is not executing"
    )


def test_ring() -> None:
    name = "SGLANG_KV_CANARY_RING_CAPACITY"
    assert check(report("", facts={name: 64}), "ring").limit == 64
    found = check(report("", facts={name: 0}), "ring")
    assert (found.code, found.status) == ("KVC-A09", Status.FAILS)
    assert found.message.endswith("ring_capacity must be positive, got 0")


def test_verify_entries() -> None:
    found = check(report("--max-running-requests 8 --context-length 16384"), "verify_entries")
    assert found.cause == "never: 8 requests of full context are 131072 entries"
    found = check(report("--max-running-requests 64 --context-length 131072"), "verify_entries")
    assert "share prefixes 3-fold" in found.cause
    assert (found.limit, found.demand, found.status) == (1_200_000, 400_000, Status.OK)


def test_refused_pool() -> None:
    found = report("--tp-size 8", mib=H200, config="mla_671b")
    assert [(c.code, c.name) for c in found.failing] == [("KVC-A06", "refused")]
    assert found.failing[0].cause.endswith("once the canary is on")
    assert "no attacher registered for pool class MLATokenToKVPool" in found.failing[0].message


def test_memory() -> None:
    found = report("--mem-fraction-static 0.999")
    memory = check(found, "memory")
    assert memory.status is Status.FAILS
    # 64 bytes of head and tail and as much for V, beside each slot; the plan is 3 x 32 bytes.
    assert found.memory.buffers == 400_000 * 128
    assert found.memory.workspace == 32 * 1_200_000 + 8 + 16 * 2048 + 12 + 16 * 8192 + 32 * 2048
    assert found.memory.ring == 64 * 1024 + 4
    assert memory.demand == found.memory.total
    assert check(report(""), "memory").status is Status.OK


def test_two_groups_of_a_window_model() -> None:
    found = report("", config="swa_20b", slots=None, facts={"weights_bytes": 13_800_000_000})
    slots = found.resolution.value("pool_slot_count")
    window = found.resolution.value("swa_pool_slot_count")
    assert found.memory.buffers == 128 * (slots + window)


def test_unknown_inputs_are_named() -> None:
    raw = read_words(["--model-path", "m"])
    found = build_report(merge([raw]))
    assert found.verdict is Verdict.NOT_CHECKED
    names = {unknown.name for unknown in found.unknown}
    assert {"pool_slot_count", "req_to_token_pool_size", "chunked_prefill_size"} <= names
    assert all(unknown.give for unknown in found.unknown)


def test_a_bound_is_enough_where_it_decides() -> None:
    """The request pool alone holds its own requests, whatever the graph size is."""
    line = (
        "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=64, context_len=32768, available_gpu_mem=6.9 GB\n"
    )
    found = build_report(merge([read_log(line, "s.log")]))
    assert capacities(found)[1:] == (None, None)
    batch = check(found, "batch_size")
    assert (batch.limit, batch.demand, batch.status) == (64, 64, Status.OK)
    assert batch.cause == "at least 64 fit, whatever cuda_graph_max_bs is"
    tokens = check(found, "token_count")
    assert (tokens.limit, tokens.demand, tokens.status) == (8192, 8192, Status.OK)
    assert found.verdict is Verdict.OK
    peak = stated_demands(peak_batch_size=65, peak_tokens=None)
    over = check(build_report(merge([read_log(line, "s.log")]), peak), "batch_size")
    assert over.status is Status.UNKNOWN


def test_entry_capacity_without_knowing_the_pool() -> None:
    words = "--cuda-graph-max-bs-decode 256 --chunked-prefill-size 32768"
    found = report(words, slots=None, config=None)
    assert capacities(found) == (None, None, 16384)
    assert [c.code for c in found.failing] == ["KVC-B04"]
    # A pool of up to 4096 requests may decide here.
    open_ended = report("--cuda-graph-max-bs-decode 256 --chunked-prefill-size 2048", slots=None)
    assert capacities(open_ended) == (None, None, None)
    asked = report(
        "--cuda-graph-max-bs-decode 256 --chunked-prefill-size 2048 --max-running-requests 512",
        slots=None,
        config=None,
    )
    assert capacities(asked)[2] == 2048


def test_installed_capacities_beat_the_formula() -> None:
    text = (
        "server_args={'tp_size': 1, 'max_running_requests': 64, 'chunked_prefill_size': 8192}\n"
        "launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity=30000, "
        "per_forward_write_req_capacity=8, per_forward_write_entry_capacity=8192) "
        "install_canary n_buffer_groups=1\n"
        "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=64, context_len=32768, available_gpu_mem=6.9 GB\n"
    )
    found = build_report(merge([read_log(text, "s.log")]))
    batch = check(found, "batch_size")
    assert (batch.limit, batch.demand, batch.status) == (8, 64, Status.FAILS)
    assert batch.cause == "the server allocated 8 rows (s.log:2 (canary install line))"


def test_a_log_of_the_failure_itself() -> None:
    text = (
        "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=8, context_len=32768, available_gpu_mem=6.9 GB\n"
        "RuntimeError: kv-canary: forward_batch.batch_size=12 exceeds pre-allocated "
        "write_req_capacity=8; raise --cuda-graph-max-bs-decode or check\n"
    )
    batch = check(build_report(merge([read_log(text, "s.log")])), "batch_size")
    assert (batch.limit, batch.demand) == (8, 12)
    assert batch.demand_source == "s.log:2 (KVC-B03 raised)"
