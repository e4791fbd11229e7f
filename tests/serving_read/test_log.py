"""Server logs of all ages: arguments, ready line, memory, graphs, batches, canary lines."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.serving.read_log import read_log
from kvcanary_cli.serving.read_repr import ReprError, parse_fields
from kvcanary_cli.serving.read_sources import Reading, merge

OLD = """\
[2025-09-11 10:25:20] server_args=ServerArgs(model_path='/m/x', tokenizer_path=None, tp_size=8, \
mem_fraction_static=0.8, max_running_requests=None, chunked_prefill_size=8192, \
max_prefill_tokens=16384, cuda_graph_max_bs=160, cuda_graph_bs=[1, 2, 4, 8, 160], \
weird=<sglang.X object at 0x7f>, mode=<Mode.LOG: 'log'>, inner=Inner(a=1, b=(2, {'c': "d'e"})), \
enable_dp_attention=False, dp_size=1, page_size=1, no_such_field=3)
[2025-09-11 10:25:20 TP0] Load weight begin. avail mem=78.58 GB
[2025-09-11 10:25:20 TP1] Load weight begin. avail mem=78.10 GB
[2025-09-11 10:25:33 TP0] Load weight end. type=Grok1ForCausalLM, dtype=torch.bfloat16, avail \
mem=40.69 GB, mem usage=36.73 GB.
[2025-09-11 10:25:43 TP0] KV Cache is allocated. #tokens: 903439, K size: 13.79 GB, V size: 13.79 GB
[2025-09-11 10:25:43 TP0] Memory pool end. avail mem=11.22 GB
[2025-09-11 10:25:44 TP0] Capture cuda graph bs [1, 2, 4, 8, 160]
[2025-09-11 10:26:01 TP0] max_total_num_tokens=903439, chunked_prefill_size=8192, \
max_prefill_tokens=16384, max_running_requests=3529, context_len=131072, available_gpu_mem=10.26 GB
[2025-09-11 10:26:02 TP0] Prefill batch. #new-seq: 2, #new-token: 6000, #cached-token: 0, token \
usage: 0.00, #running-req: 0, #queue-req: 0,
[2025-09-11 10:26:22 TP0] Decode batch. #running-req: 37, #token: 48, token usage: 0.00, cuda \
graph: True, gen throughput (token/s): 1.88, #queue-req: 0,
"""

NEW = """\
[2026-09-01 10:00:00] server_args={'model_path': '/m/x', 'tp_size': 2, 'attn_dp_size': 2, \
'chunked_prefill_size': 4096, 'max_running_requests': 64, 'cuda_graph_max_bs_decode': None, \
'cuda_graph_config': {'decode': {'backend': 'full', 'max_bs': 32, 'bs': [1, 2, 32]}, \
'prefill': {'backend': 'disabled', 'max_bs': None}}, 'kv_canary': 'log'}
[2026-09-01 10:00:09 DP0 TP0] Use sliding window memory pool. full_layer_tokens=375360, \
swa_layer_tokens=300288
[2026-09-01 10:00:10 DP0 TP0] attach_canary_buffers: pool=SWAKVPool attacher=swa read_bytes=0 \
n_groups=2 kinds=[FULL, SWA] kv_token_id_vs_position_offset=0
[2026-09-01 10:00:10 DP0 TP0] install_canary: disaggregation_mode=null config=CanaryConfig(\
mode=<CanaryMode.LOG: 'log'>, ring_capacity=256, sweep_interval=50) perturb_config=P() \
launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity=1126080, \
per_forward_write_req_capacity=32, per_forward_write_entry_capacity=4096) n_buffer_groups=2
[2026-09-01 10:00:11 DP0 TP0] Capture target decode CUDA graph end. bs=[1, 2, 32], elapsed=3 s
[2026-09-01 10:00:11 DP0 TP0] Capture draft decode CUDA graph end. bs=[1, 2], elapsed=3 s
[2026-09-01 10:00:12 DP0 TP0] max_total_num_tokens=375360, chunked_prefill_size=4096, \
max_prefill_tokens=16384, max_running_requests=32, context_len=8192, available_gpu_mem=6.9 GB
[2026-09-01 10:00:12 DP1 TP1] max_total_num_tokens=375000, chunked_prefill_size=4096, \
max_prefill_tokens=16384, max_running_requests=31, context_len=8192, available_gpu_mem=6.9 GB
[2026-09-01 10:01:00 DP0 TP0] Prefill batch [12], #new-seq: 3, #new-token: 4000, #replay-token: \
96, #cached-token: 0, full token usage: 0.05, swa token usage: 0.1, #running-req: 0, #queue-req: 0
[2026-09-01 10:01:01 DP1 TP1] Decode batch [13], #running-req: 29, #full token: 87, full token \
usage: 1.00, cuda graph: False, gen throughput (token/s): 2529.33, #queue-req: 13
[2026-09-01 10:01:02 DP0 TP0] kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=verify_token
[2026-09-01 10:01:03 DP0 TP0] kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_token
[2026-09-01 10:01:04 DP0 TP0] RuntimeError: kv-canary: forward_batch.batch_size=33 exceeds \
pre-allocated write_req_capacity=32; raise --cuda-graph-max-bs-decode or check
"""


def read(text: str, version: str | None = None) -> Reading:
    return merge([read_log(text, "s.log")], version=version)


def last(reading: Reading) -> dict[str, object]:
    return {one.name: one.value for one in reading.given}


def test_an_old_log() -> None:
    reading = read(OLD)
    values = last(reading)
    assert values["tp_size"] == 8
    assert values["cuda_graph_max_bs_decode"] == 160
    assert values["avail_before_load_gib"] == 78.10
    assert values["avail_after_load_gib"] == 40.69
    assert values["weights_gib"] == 36.73
    assert (values["k_gib"], values["v_gib"]) == (13.79, 13.79)
    assert values["kv_tokens"] == 903439
    assert values["effective_max_running_requests"] == 3529
    assert values["context_len"] == 131072
    assert values["capture_bs"] == [1, 2, 4, 8, 160]
    assert "no_such_field" not in values
    assert "weird" not in values
    assert reading.version == "0.5.3.post3"
    assert "the form of its batch lines at s.log:9" in reading.version_basis


def test_sources_name_line_and_kind_of_line() -> None:
    by_name = {one.name: one for one in read(OLD).given}
    assert by_name["kv_tokens"].source == "s.log:8 (ready line)"
    assert by_name["kv_tokens"].kind == "fact"
    assert by_name["chunked_prefill_size"].source == "s.log:8 (ready line)"
    assert by_name["chunked_prefill_size"].kind == "resolved"
    assert by_name["tp_size"].source == "s.log:1 (server_args line)"
    place = by_name["tp_size"].place
    assert place is not None
    assert (place.file, place.line) == ("s.log", 1)


def test_peaks() -> None:
    ((_, seen),) = read(OLD).observed
    assert seen.decode_requests is not None
    assert (seen.decode_requests.value, seen.decode_requests.place.line) == (37, 10)
    assert seen.prefill_tokens is not None
    assert seen.prefill_tokens.value == 6000
    assert seen.batch_lines == 2
    ((_, seen),) = read(NEW).observed
    assert seen.decode_requests is not None
    assert seen.decode_requests.value == 29
    assert seen.prefill_tokens is not None
    assert seen.prefill_tokens.value == 4096


def test_a_new_log() -> None:
    reading = read(NEW)
    values = last(reading)
    assert values["attn_dp_size"] == 2
    assert values["cuda_graph_max_bs_decode"] == 32
    assert values["cuda_graph_bs_decode"] == [1, 2, 32]
    assert values["cuda_graph_backend_prefill"] == "disabled"
    assert values["pool_class"] == "SWAKVPool"
    assert values["canary_buffer_groups"] == 2
    assert values["canary_write_req_capacity"] == 32
    assert values["kv_canary_sweep_interval"] == 50
    assert values["SGLANG_KV_CANARY_RING_CAPACITY"] == 256
    assert values["swa_kv_tokens"] == 300288
    assert values["capture_bs"] == [1, 2, 32]
    assert reading.version is None or reading.version >= "0.5.20"


def test_the_smallest_rank_counts() -> None:
    reading = read(NEW)
    assert last(reading)["kv_tokens"] == 375000
    assert last(reading)["effective_max_running_requests"] == 31
    assert any("kv_tokens differs between the ranks" in str(one) for one in reading.notices)


def test_canary_messages() -> None:
    ((_, seen),) = read(NEW).observed
    assert seen.violations == 2
    assert seen.first_violation is not None
    assert seen.last_violation is not None
    assert (seen.first_violation.line, seen.last_violation.line) == (11, 12)
    error = seen.errors["KVC-B03"]
    assert (error.actual, error.capacity, error.place.line) == (33, 32, 13)


def test_capacities_of_a_message_are_facts_without_an_install_line() -> None:
    text = OLD + "kv-canary: forward_batch token count=9000 exceeds pre-allocated "
    text += "write_entry_capacity=8192; raise\n"
    values = last(read(text))
    assert values["canary_write_entry_capacity"] == 8192


def test_the_last_start_counts() -> None:
    second = OLD.replace("tp_size=8", "tp_size=4").replace("3529", "99").replace("37", "5")
    reading = read(OLD + second)
    assert last(reading)["tp_size"] == 4
    assert last(reading)["effective_max_running_requests"] == 99
    ((_, seen),) = reading.observed
    assert seen.decode_requests is not None
    assert seen.decode_requests.value == 5
    assert any(
        "2 starts (from lines 1, 11); the last one counts" in str(n) for n in reading.notices
    )


def test_a_restart_without_an_argument_line() -> None:
    tail = OLD[OLD.index("[2025-09-11 10:25:20 TP0]") :]
    reading = read(OLD + tail.replace("3529", "99"))
    assert last(reading)["effective_max_running_requests"] == 99
    assert last(reading)["tp_size"] == 8


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: f"\x1b[32m{line}\x1b[0m",
        lambda line: f"llm-0  | {line}",
        lambda line: f"2026-09-01T10:00:00.123456789Z stdout F {line}",
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "t"}),
        lambda line: line + "\r",
        lambda line: f"Capturing batches:  50%|### | 1/2\rCapturing batches: 100%\r{line}",
        lambda line: f"\ufeff{line}",
    ],
    ids=["colour", "compose", "kubernetes", "docker", "crlf", "bar", "mark"],
)
def test_wrapped_lines(wrap) -> None:  # type: ignore[no-untyped-def]
    wrapped = "\n".join(wrap(line) for line in NEW.splitlines()) + "\n"
    plain, other = read(NEW), read(wrapped)
    assert last(plain) == last(other)
    assert plain.observed[0][1].violations == other.observed[0][1].violations == 2


def test_a_cut_argument_line_is_read_as_far_as_it_goes() -> None:
    line = OLD.splitlines()[0]
    reading = read(line[: line.index("mem_fraction_static=0.8") + 10] + "\n")
    assert last(reading)["tp_size"] == 8
    assert any("is cut after" in str(one) for one in reading.notices)


def test_the_ready_line_of_each_age() -> None:
    base = "max_total_num_tokens=100, {}max_prefill_tokens=16384, max_running_requests=7, "
    base += "context_len=64"
    for middle, tail in (
        ("", ""),
        ("chunked_prefill_size=-1, ", ""),
        ("chunked_prefill_size=None, ", ", available_gpu_mem=1.50 GB"),
        ("chunked_prefill_size=2048, ", ", available_cpu_mem=10 GB"),
    ):
        values = last(read(base.format(middle) + tail + "\n", "0.4.5"))
        assert values["effective_max_running_requests"] == 7
        assert ("chunked_prefill_size" in values) == bool(middle)


def test_pool_lines_of_each_age() -> None:
    for line, expected in (
        ("KV Cache is allocated. #tokens: 5, KV size: 87.01 GB", {"kv_gib": 87.01}),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 5, K size: 1.5 GB, "
            "V size: 2.5 GB",
            {"k_gib": 1.5, "v_gib": 2.5},
        ),
        (
            "Post-capture KV sizing: KV cache allocated. dtype: x, #tokens: 5, KV size: 3 GB, "
            "avail mem=1 GB",
            {"kv_gib": 3.0},
        ),
    ):
        values = last(read(line + "\n"))
        assert values["kv_tokens"] == 5
        assert expected.items() <= values.items()


def test_other_lines_that_state_a_limit() -> None:
    values = last(
        read(
            "Mamba Cache is allocated. max_mamba_cache_size: 82, conv_state size: 0.13GB\n"
            "max_running_requests was reduced from the requested 74 to 26 (per dp worker)\n"
            "Input length (70000 tokens) exceeds the maximum allowed length (59862 tokens).\n"
        )
    )
    assert values["mamba_slots"] == 82
    assert values["effective_max_running_requests"] == 26
    assert values["max_req_input_len"] == 59862


def test_a_log_without_anything_says_so() -> None:
    (notice,) = read("hello\nworld\n").notices
    assert "no line of a server log" in str(notice)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("A(x=1, y=-2.5e3, z=None, t=True)", {"x": 1, "y": -2500.0, "z": None, "t": True}),
        ("A(x='a\\'b\\n', y=\"c\", z=b'd')", {"x": "a'b\n", "y": "c", "z": "d"}),
        ("{'a': [1, (2, 3)], 'b': {'c': {4}}}", {"a": [1, [2, 3]], "b": {"c": {"4": None}}}),
        ("A(x=<E.V: 3>, y=<f at 0x1>, z=E.V)", {"x": 3, "y": "<f at 0x1>", "z": "E.V"}),
        ("A(x=B(c=1), y=set(), z=inf)", {"x": {"c": 1}, "y": {}, "z": float("inf")}),
        ("A()", {}),
    ],
)
def test_printed_values(text: str, fields: dict[str, object]) -> None:
    assert parse_fields(text) == (fields, True)


@pytest.mark.parametrize("text", ["", "A", "[1]", "A(x=", "{1:", "A(x=" + "[" * 100])
def test_what_is_no_printed_value(text: str) -> None:
    with pytest.raises(ReprError):
        parse_fields(text)
