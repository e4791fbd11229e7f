"""Request pool, request table, speculation and KV memory by version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.serving.kv_memory import (
    cell_from_sizes,
    rest_gib,
    split_state_memory,
    swa_tokens,
    tokens_from_memory,
    tokens_from_usage,
)
from kvcanary_cli.serving.prefill_admission import admitted_tokens, largest_prefill
from kvcanary_cli.serving.request_pool import (
    estimate_requests,
    extra_request_rows,
    input_limit,
    request_pool,
    request_table_columns,
    state_slots_per_request,
    tokens_from_input_limit,
)
from kvcanary_cli.serving.speculation import (
    SpeculationInputs,
    default_running_requests,
    resolve_speculation,
)
from kvcanary_cli.serving.versions import READ_VERSIONS

releases = st.sampled_from(sorted({version.release for version in READ_VERSIONS}))


@pytest.mark.parametrize(
    ("tokens", "context", "requests"),
    [(400000, 32768, 4096), (903439, 131072, 3529), (1000, 131072, 2048), (524288, 131072, 2048)],
)
def test_estimate(tokens: int, context: int, requests: int) -> None:
    assert estimate_requests(tokens, context) == requests


@pytest.mark.parametrize(
    ("release", "requested", "dp", "size", "running"),
    [
        ((0, 4, 6), None, 1, 4097, 4097),
        ((0, 4, 6), 512, 4, 513, 128),
        ((0, 4, 7), None, 1, 4096, 4096),
        ((0, 5, 9), 512, 4, 512, 128),
        ((0, 5, 10), 512, 4, 128, 128),
        ((0, 5, 13), 9000, 1, 4096, 4096),
        ((0, 5, 14), 9000, 1, 9000, 9000),
        ((0, 5, 22), 3, 4, 0, 0),
        ((0, 5, 23), 3, 4, 1, 1),
        ((0, 5, 23), 600000, 1, 200000, 200000),
        ((0, 5, 23), None, 8, 4096, 4096),
    ],
)
def test_request_pool(
    release: tuple[int, int, int], requested: int | None, dp: int, size: int, running: int
) -> None:
    pool = request_pool(release, tokens=400000, context_len=32768, requested=requested, dp_size=dp)
    assert pool is not None
    assert (pool.size, pool.max_running) == (size, running)


def test_small_pool_bounds_what_runs() -> None:
    pool = request_pool((0, 5, 10), tokens=100, context_len=4096, requested=None)
    assert pool is not None
    assert pool.size == 50
    old = request_pool((0, 5, 9), tokens=100, context_len=4096, requested=None)
    assert old is not None
    assert (old.size, old.max_running) == (2048, 50)


def test_state_memory_caps() -> None:
    def size(release: tuple[int, int, int], requested: int, cap: int) -> int:
        pool = request_pool(
            release, tokens=400000, context_len=4096, requested=requested, state_cap=cap
        )
        assert pool is not None
        return pool.size

    assert size((0, 5, 18), 32, 47 // 5) == 9
    assert size((0, 5, 16), 74, 131 // 5) == 26
    assert size((0, 5, 16), 1, 16) == 1
    assert size((0, 5, 1), 32, 9) == 32


def test_unknown_tokens() -> None:
    assert request_pool((0, 5, 23), tokens=None, context_len=4096, requested=None) is None
    pool = request_pool((0, 5, 23), tokens=None, context_len=None, requested=64)
    assert pool is not None
    assert (pool.size, pool.needs_tokens) == (64, 128)
    sure = request_pool((0, 5, 13), tokens=None, context_len=None, requested=64)
    assert sure is not None
    assert (sure.size, sure.needs_tokens) == (64, 0)
    assert request_pool((0, 5, 13), tokens=None, context_len=None, requested=3000) is None


@settings(max_examples=300, deadline=None)
@given(
    release=releases,
    tokens=st.integers(2, 10**7),
    context=st.integers(1, 10**6),
    requested=st.one_of(st.none(), st.integers(1, 10**4)),
    dp=st.integers(1, 16),
    more=st.integers(0, 10**6),
)
def test_more_memory_never_means_fewer_requests(
    release: tuple[int, int, int],
    tokens: int,
    context: int,
    requested: int | None,
    dp: int,
    more: int,
) -> None:
    few = request_pool(release, tokens=tokens, context_len=context, requested=requested, dp_size=dp)
    many = request_pool(
        release, tokens=tokens + more, context_len=context, requested=requested, dp_size=dp
    )
    assert few is not None
    assert many is not None
    assert 0 <= few.size <= many.size
    assert few.max_running <= few.size
    assert few.max_running <= many.max_running


def test_state_slots() -> None:
    slots = state_slots_per_request
    assert slots(radix_cache=False, strategy=None, overlap=True) == 1
    assert slots(radix_cache=True, strategy="no_buffer", overlap=True) == 3
    assert slots(radix_cache=True, strategy="extra_buffer", overlap=True) == 5
    assert slots(radix_cache=True, strategy="extra_buffer", overlap=False) == 4
    assert slots(radix_cache=True, strategy="extra_buffer_lazy", overlap=True) == 4
    assert slots(radix_cache=True, strategy="auto", overlap=True) is None


@pytest.mark.parametrize(
    ("release", "mode", "size", "requested", "slots", "rows"),
    [
        ((0, 5, 9), "decode", 32, True, None, 64),
        ((0, 5, 9), "decode", 33, True, None, 0),
        ((0, 5, 10), "decode", 33, True, None, 7),
        ((0, 5, 16), "decode", 32, True, None, 64),
        ((0, 5, 16), "decode", 32, False, None, 0),
        ((0, 5, 16), "decode", 33, True, None, 0),
        ((0, 5, 16), "decode", 33, True, 12, 12),
        ((0, 5, 16), "prefill", 32, True, 12, 0),
        ((0, 5, 16), "null", 32, True, None, 0),
    ],
)
def test_rows_in_advance(
    release: tuple[int, int, int],
    mode: str,
    size: int,
    requested: bool,
    slots: int | None,
    rows: int,
) -> None:
    found = extra_request_rows(
        release, mode=mode, size=size, requested=requested, extra_slots=slots, preallocated=7
    )
    assert found == rows


@pytest.mark.parametrize(
    ("release", "draft", "steps", "topk", "page", "extra"),
    [
        ((0, 4, 10), 4, 3, 1, 1, 4),
        ((0, 5, 1), 4, 3, 1, 1, 8),
        ((0, 5, 12), 8, 5, 4, 64, 12),
        ((0, 5, 13), 4, 3, 1, 64, 8),
        ((0, 5, 13), 8, 5, 4, 64, 128),
        ((0, 5, 13), 8, 5, 4, 1, 12),
        ((0, 5, 16), 4, 3, 1, 64, 2 * 4 + 63),
        ((0, 5, 16), 8, 5, 4, 64, 128 + 63),
        ((0, 5, 16), 4, 3, 1, 1, 8),
        ((0, 5, 23), 0, None, None, 64, 4),
    ],
)
def test_columns(
    release: tuple[int, int, int],
    draft: int,
    steps: int | None,
    topk: int | None,
    page: int,
    extra: int,
) -> None:
    columns = request_table_columns(
        release,
        context_len=1000,
        draft_tokens=draft,
        num_steps=steps,
        topk=topk,
        page_size=page,
    )
    assert columns == 1000 + extra


def test_input_limit_both_ways() -> None:
    assert input_limit(tokens=59868, context_len=163840) == 59862
    assert tokens_from_input_limit(59862, context_len=163840) == 59868
    assert tokens_from_input_limit(163834, context_len=163840) is None


def test_uno_is_paged_since_0520() -> None:
    def columns(release: tuple[int, int, int]) -> int:
        return request_table_columns(
            release,
            context_len=0,
            draft_tokens=4,
            num_steps=30,
            topk=1,
            page_size=1,
            uno=True,
        )

    assert columns((0, 5, 18)) == 8
    assert columns((0, 5, 20)) == 60


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, (None, None, None, 0)),
        ({"algorithm": "EAGLE3", "architecture": "Qwen3ForCausalLM"}, ("EAGLE3", 3, 1, 4)),
        ({"algorithm": "eagle", "architecture": "LlamaForCausalLM"}, ("EAGLE", 5, 4, 8)),
        ({"algorithm": "NEXTN", "architecture": "DeepseekV3ForCausalLM"}, ("EAGLE", 3, 1, 4)),
        ({"algorithm": "STANDALONE"}, ("STANDALONE", 3, 1, 4)),
        (
            {"algorithm": "EAGLE", "num_steps": 1, "topk": 1, "draft_tokens": 3},
            ("EAGLE", 1, 1, 2),
        ),
        (
            {"algorithm": "EAGLE", "num_steps": 5, "topk": 8, "draft_tokens": 64},
            ("EAGLE", 5, 8, 64),
        ),
        ({"algorithm": "NGRAM"}, ("NGRAM", 1, 10, 12)),
        ({"algorithm": "NGRAM", "ngram_breadth": 4}, ("NGRAM", 3, 4, 12)),
        ({"algorithm": "DFLASH", "block_size": 8}, ("DFLASH", 1, 1, 8)),
        ({"algorithm": "DFLASH", "draft_config_known": True}, ("DFLASH", 1, 1, 16)),
        ({"algorithm": "DSPARK", "block_size": 7}, ("DSPARK", None, None, 8)),
    ],
)
def test_speculation(inputs: dict[str, object], expected: tuple[object, ...]) -> None:
    found = resolve_speculation(SpeculationInputs(**inputs))  # type: ignore[arg-type]
    assert (found.algorithm, found.num_steps, found.topk, found.draft_tokens) == expected


@pytest.mark.parametrize(
    "inputs",
    [
        {"algorithm": "EAGLE"},
        {"algorithm": "EAGLE", "num_steps": 3},
        {"algorithm": "EAGLE", "num_steps": 3, "topk": 4},
        {"algorithm": "DFLASH"},
        {"algorithm": "EAGLE", "adaptive": True, "num_steps": 3, "topk": 1},
    ],
)
def test_unknown_speculation_says_what_is_missing(inputs: dict[str, object]) -> None:
    found = resolve_speculation(SpeculationInputs(**inputs))  # type: ignore[arg-type]
    assert found.draft_tokens is None
    assert found.why_unknown
    assert found.give


def test_requests_of_speculation() -> None:
    assert default_running_requests((0, 4, 3), "EAGLE") == (32, "rule 2.8: speculation sets 32")
    assert default_running_requests((0, 4, 4), "EAGLE") == (48, "rule 2.8: EAGLE sets 48")
    assert default_running_requests((0, 5, 23), None) is None
    v4 = default_running_requests((0, 5, 23), "EAGLE", architecture="DeepseekV4ForCausalLM")
    assert v4 is not None
    assert v4[0] == 256


def test_memory() -> None:
    rest = rest_gib(before=77.42, after=40.69, fraction=0.831)
    assert rest == pytest.approx(27.606, abs=1e-3)
    found = tokens_from_memory(1.0, 1000, page_size=64)
    assert found.tokens == (1 << 30) // 1000 // 64 * 64
    capped = tokens_from_memory(1.0, 1000, max_total_tokens=5000, page_size=64)
    assert (capped.tokens, capped.capped) == (4992, True)
    loose = tokens_from_memory(1.0, 1 << 20, max_total_tokens=5000)
    assert (loose.tokens, loose.capped) == (1024, False)
    assert tokens_from_memory(-3.0, 1000).tokens == 0
    assert cell_from_sizes(kv_gib=2.5, tokens=20480) == 131072
    kv, state = split_state_memory(19.0, 0.9)
    assert (kv, state) == (pytest.approx(10.0), pytest.approx(9.0))
    assert swa_tokens(375360, 0.8, 64) == 300288
    assert tokens_from_usage(11179, 0.08) == 139738
    assert tokens_from_usage(5, 0.0) is None


def test_admission_changed_with_0513() -> None:
    waiting = [5000] * 20

    def admitted(release: tuple[int, int, int], chunk: int | None, limit: int = 16384) -> int:
        return admitted_tokens(
            release, waiting, max_prefill_tokens=limit, chunked_prefill_size=chunk
        )

    assert admitted((0, 5, 12), 32768) == 15000
    assert admitted((0, 5, 13), 32768) == 20000
    assert admitted((0, 5, 13), 8192) == 8192
    assert admitted((0, 5, 13), -1) == 15000
    long = admitted_tokens(
        (0, 5, 13), [40000, 10], max_prefill_tokens=16384, chunked_prefill_size=-1
    )
    assert long == 40000
    chunk = admitted_tokens(
        (0, 5, 23), [40000], max_prefill_tokens=16384, chunked_prefill_size=32768
    )
    assert chunk == 32768


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50000), min_size=1, max_size=30),
    limit=st.integers(1, 40000),
    chunk=st.one_of(st.just(-1), st.integers(1, 40000)),
)
def test_no_batch_is_larger_than_the_bound(lengths: list[int], limit: int, chunk: int) -> None:
    bound = largest_prefill(
        max_prefill_tokens=limit, chunked_prefill_size=chunk, longest_prompt=max(lengths)
    )
    taken = admitted_tokens(
        (0, 5, 23), lengths, max_prefill_tokens=limit, chunked_prefill_size=chunk
    )
    assert bound is not None
    assert 0 < taken <= bound


def test_largest_prefill() -> None:
    def largest(chunk: int | None, prompt: int | None = None, pp: int = 1) -> int | None:
        return largest_prefill(
            max_prefill_tokens=16384,
            chunked_prefill_size=chunk,
            longest_prompt=prompt,
            dynamic_chunking=True,
            pp_size=pp,
        )

    assert largest(8192) == 8192
    assert largest(32768) == 32768
    assert largest(-1) is None
    assert largest(-1, 50000) == 50000
    assert largest(16384, pp=2) == 20480
    assert largest(8192, pp=2) == 16384
