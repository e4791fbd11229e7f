"""Properties of every resolution: no surprises from odd statements, nothing without a source."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.capacities import CanaryLaunchCapacities
from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.serving.changes import with_change
from kvcanary_cli.serving.option_facts import REACHES_CAPACITIES
from kvcanary_cli.serving.options import OptionError, known_spellings, lookup
from kvcanary_cli.serving.resolve import resolve
from kvcanary_cli.serving.values import FACTS, RESULTS, Given, Resolution
from kvcanary_cli.serving.versions import READ
from tests.serving.launches import GQA, HYBRID, MLA, WINDOW, launch

NAMES = sorted({*REACHES_CAPACITIES, *FACTS, *RESULTS, "SGLANG_KV_CANARY_RING_CAPACITY"})
KINDS = st.sampled_from(["argument", "resolved", "fact", "override"])
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.integers(-2, 20000)
    | st.floats()
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["decode", "prefill", "max_bs", "bs", "backend"]), inner)
    ),
    max_leaves=5,
)
odd = st.builds(Given, st.sampled_from(NAMES), json_values, st.just("s"), st.none(), KINDS)

FITTING: dict[str, st.SearchStrategy[Any]] = {
    "tp_size": st.integers(1, 16),
    "pp_size": st.integers(1, 4),
    "dp_size": st.integers(1, 16),
    "attn_dp_size": st.integers(1, 16),
    "enable_dp_attention": st.booleans(),
    "gpu_memory_mib": st.integers(8000, 300000),
    "gpu_name": st.sampled_from(["h100", "NVIDIA L40S", "something else"]),
    "platform": st.sampled_from(["cuda", "hip", "npu", "musa", "xpu", "cpu"]),
    "max_running_requests": st.integers(-1, 9000),
    "chunked_prefill_size": st.integers(-1, 40000),
    "max_prefill_tokens": st.integers(-1, 40000),
    "max_total_tokens": st.integers(-1, 10**6),
    "mem_fraction_static": st.floats(0.01, 1.0),
    "page_size": st.sampled_from([1, 16, 64, 128]),
    "context_length": st.integers(1, 10**6),
    "cuda_graph_max_bs_decode": st.integers(-1, 2000),
    "cuda_graph_bs_decode": st.lists(st.integers(1, 600), max_size=5),
    "cuda_graph_backend_prefill": st.sampled_from(["disabled", "breakable", "tc_piecewise"]),
    "disable_cuda_graph": st.booleans(),
    "disable_cuda_graph_padding": st.booleans(),
    "enable_two_batch_overlap": st.booleans(),
    "speculative_algorithm": st.sampled_from(
        ["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "other"]
    ),
    "speculative_num_steps": st.integers(0, 30),
    "speculative_eagle_topk": st.integers(1, 16),
    "speculative_num_draft_tokens": st.integers(-1, 64),
    "disaggregation_mode": st.sampled_from(["null", "prefill", "decode"]),
    "disable_radix_cache": st.booleans(),
    "kv_cache_dtype": st.sampled_from(["auto", "fp8_e4m3", "fp4_e2m1", "mxfp8", "odd"]),
    "model_config": st.sampled_from([GQA, MLA, HYBRID, WINDOW]),
    "kv_tokens": st.integers(-1, 10**7),
    "cell_bytes": st.integers(1, 10**6),
    "weights_bytes": st.integers(0, 200 << 30),
    "avail_before_load_gib": st.floats(1, 300),
    "avail_after_load_gib": st.floats(0, 300),
    "mamba_slots": st.integers(0, 1000),
    "mamba_radix_cache_strategy": st.sampled_from(["auto", "no_buffer", "extra_buffer"]),
    "capture_bs": st.lists(st.integers(1, 600), min_size=1, max_size=5),
    "kv_canary": st.sampled_from(["none", "log", "raise", "warn"]),
    "kv_canary_real_data": st.sampled_from(["none", "partial", "all"]),
    "kv_canary_sweep_interval": st.integers(-1, 300),
}


@st.composite
def fitting_statements(draw: st.DrawFn) -> list[Given]:
    """Statements whose values have the right type, in any combination."""
    names = draw(st.lists(st.sampled_from(sorted(FITTING)), max_size=16, unique=True))
    return [Given(name, draw(FITTING[name]), f"of {name}", None, draw(KINDS)) for name in names]


versions = st.none() | st.sampled_from(READ)


def check(resolution: Resolution) -> None:
    assert not set(resolution.values) & set(resolution.unknown)
    for name, value in resolution.values.items():
        assert name in RESULTS
        assert value.source, name
        assert value.value is not None, name
    for name, gap in resolution.unknown.items():
        assert name in RESULTS
        assert gap.name == name
        assert gap.why, name
    for name in ("cuda_graph_max_bs", "chunked_prefill_size", "pool_slot_count", "buffer_groups"):
        assert name in resolution.values or name in resolution.unknown
    for refusal in resolution.refusals:
        assert refusal.message
        assert refusal.source, refusal
        assert refusal.fix
    assert all(remark.text for remark in resolution.remarks)
    found = resolution.capacities()
    parts = {part.name: part.value for part in resolution.capacity_parts()}
    if isinstance(found, CanaryLaunchCapacities):
        for name, value in parts.items():
            assert value == getattr(found, name)
            assert value > 0
    else:
        assert found
        assert all(gap.why for gap in found)


@settings(max_examples=250, deadline=None)
@given(stated=st.lists(odd, max_size=8), version=versions)
def test_odd_statements_are_input_errors(stated: list[Given], version: str | None) -> None:
    try:
        resolution = resolve(stated, version=version)
    except (InputError, UsageError) as error:
        message = error.message
    else:
        check(resolution)
        message = "resolved"
    assert message


@settings(max_examples=300, deadline=None)
@given(stated=fitting_statements(), version=versions)
def test_fitting_statements_resolve(stated: list[Given], version: str | None) -> None:
    try:
        resolution = resolve(stated, version=version)
    except UsageError as error:
        # The one statement here that may name nothing known.
        assert "GPU" in error.message  # noqa: PT017
        return
    check(resolution)
    assert resolve(stated, version=version) == resolution


@settings(max_examples=100, deadline=None)
@given(
    stated=fitting_statements(),
    version=versions,
    size=st.integers(1, 3000),
)
def test_a_changed_graph_maximum_is_the_new_one(
    stated: list[Given], version: str | None, size: int
) -> None:
    # A size list or JSON that somebody passed beats the plain maximum, and stays.
    beats = {"gpu_name", "cuda_graph_bs_decode", "cuda_graph_config", "cuda_graph_bs"}
    stated = [item for item in stated if item.name not in beats]
    changed = with_change(stated, "cuda_graph_max_bs_decode", size, "change")
    resolution = resolve(changed, version=version)
    assert resolution.value("cuda_graph_max_bs") == size
    assert resolution.source("cuda_graph_max_bs") == "change"


@settings(max_examples=150, deadline=None)
@given(
    version=st.sampled_from([text for text in READ if text >= "0.5.13" or text == "0.5.13"]),
    tokens=st.integers(1000, 10**6),
    requests=st.integers(1, 400),
    graph=st.integers(1, 512),
    chunk=st.integers(1, 20000),
    more=st.integers(0, 5000),
)
def test_capacities_grow_with_their_inputs(
    version: str, tokens: int, requests: int, graph: int, chunk: int, more: int
) -> None:
    def sizes(**change: int) -> tuple[int, int, int]:
        base = {
            "kv_tokens": tokens,
            "max_running_requests": requests,
            "cuda_graph_max_bs_decode": graph,
            "chunked_prefill_size": chunk,
        }
        found = launch(version, model_config=GQA, **{**base, **change}).capacities()
        assert isinstance(found, CanaryLaunchCapacities)
        return (
            found.per_forward_verify_capacity,
            found.per_forward_write_req_capacity,
            found.per_forward_write_entry_capacity,
        )

    before = sizes()
    assert before == (
        3 * tokens,
        max(graph, min(requests, tokens // 2)),
        max(max(graph, min(requests, tokens // 2)), min(16384, chunk)),
    )
    for change in (
        {"kv_tokens": tokens + more},
        {"max_running_requests": requests + more},
        {"cuda_graph_max_bs_decode": graph + more},
        {"chunked_prefill_size": chunk + more},
        {"max_prefill_tokens": 16384 + more},
    ):
        after = sizes(**change)
        assert all(new >= old for new, old in zip(after, before, strict=True))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=20) | st.sampled_from(known_spellings(None)), version=versions)
def test_any_spelling_is_found_or_refused(text: str, version: str | None) -> None:
    for spelling in (text, "--" + text, text[:-1]):
        try:
            option = lookup(spelling, version)
        except OptionError as error:
            reason = error.reason
        else:
            reason = ""
            assert option.spelling in known_spellings(version)
            assert option.spelling.startswith(spelling)
        assert reason in ("", "unknown", "ambiguous", "not_in_version")


def test_rules_import_nothing_heavy() -> None:
    code = (
        "import json, sys\n"
        "from kvcanary_cli.serving.resolve import resolve\n"
        "from kvcanary_cli.serving.values import Given\n"
        "resolve([Given('tp_size', 8, 's')]).capacities()\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(run.stdout)}
    assert not loaded & {"torch", "numpy", "numba", "triton", "pydantic", "typer", "rich"}
