"""Default tables row by row and at their edges; graph sizes; mem_fraction_static."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.serving.graph_sizes import cut_at_pool, decode_sizes, prefill_sizes
from kvcanary_cli.serving.mem_fraction import (
    FractionInputs,
    default_fraction,
    multimodal_fraction,
)
from kvcanary_cli.serving.memory_defaults import memory_defaults
from kvcanary_cli.serving.versions import READ_VERSIONS

GIB = 1024
RELEASES = sorted({version.release for version in READ_VERSIONS})
releases = st.sampled_from(RELEASES)

# version, memory, C, G below four ranks, G from four ranks on
ROWS = [
    ((0, 5, 23), 20 * GIB - 1, 2048, 8, 8),
    ((0, 5, 23), 20 * GIB, 4096, 48, 160),
    ((0, 5, 20), 35 * GIB - 1, 4096, 48, 160),
    ((0, 5, 22), 35 * GIB, 4096, 32, 160),
    ((0, 5, 23), 60 * GIB - 1, 4096, 32, 160),
    ((0, 5, 23), 60 * GIB, 8192, 256, 512),
    ((0, 5, 23), 90 * GIB, 8192, 256, 512),
    ((0, 5, 23), 160 * GIB - 1, 8192, 256, 512),
    ((0, 5, 23), 160 * GIB, 16384, 512, 512),
    ((0, 5, 18), 20 * GIB - 1, 2048, 8, 8),
    ((0, 5, 18), 20 * GIB, 2048, 24, 80),
    ((0, 5, 4), 35 * GIB - 1, 2048, 24, 80),
    ((0, 5, 4), 35 * GIB, 4096, 32, 160),
    ((0, 5, 3), 24564, 2048, 16, 80),
    ((0, 5, 3), 81559, 8192, 256, 512),
    ((0, 5, 2), 35 * GIB - 1, 2048, 8, 80),
    ((0, 5, 2), 35 * GIB, 8192, None, None),
    ((0, 4, 7), 160 * GIB, 16384, None, None),
    ((0, 4, 6), 24999, 2048, 8, 80),
    ((0, 4, 6), 25000, 8192, None, None),
    ((0, 4, 5), 24999, 2048, 8, 80),
    ((0, 4, 5), 25000, 8192, None, None),
    ((0, 4, 4), 25000, 8192, 160, 160),
    ((0, 4, 0), 24999, 2048, 8, 80),
]


@pytest.mark.parametrize(("release", "memory", "chunk", "few", "many"), ROWS)
def test_memory_rows(
    release: tuple[int, int, int], memory: int, chunk: int, few: int | None, many: int | None
) -> None:
    for tp, graph in ((1, few), (3, few), (4, many), (16, many)):
        row = memory_defaults(release, memory_mib=memory, tp_size=tp)
        assert (row.chunked_prefill_size, row.cuda_graph_max_bs) == (chunk, graph)


def test_other_rows() -> None:
    unknown = memory_defaults((0, 5, 23), memory_mib=None, tp_size=8)
    assert (unknown.chunked_prefill_size, unknown.cuda_graph_max_bs) == (4096, 160)
    disaggregated = memory_defaults((0, 4, 6), memory_mib=81559, tp_size=4, disaggregated=True)
    assert disaggregated.chunked_prefill_size == 16384
    small = memory_defaults((0, 5, 12), memory_mib=32 * GIB - 1, tp_size=8, npu=True)
    assert (small.chunked_prefill_size, small.cuda_graph_max_bs) == (32768, 16)
    large = memory_defaults((0, 5, 12), memory_mib=64 * GIB - 1, tp_size=4, npu=True)
    assert (large.chunked_prefill_size, large.cuda_graph_max_bs) == (32768, 128)


@pytest.mark.parametrize(("maximum", "count"), [(32, 8), (256, 36), (512, 52)])
def test_counts_of_the_capture_list(maximum: int, count: int) -> None:
    assert len(decode_sizes((0, 5, 23), max_bs=maximum, speculation=False)) == count


@pytest.mark.parametrize(
    ("maximum", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (10, [1, 2, 4, 8, 10]),
        (24, [1, 2, 4, 8, 12, 16, 24]),
        (32, [1, 2, 4, 8, 12, 16, 24, 32]),
    ],
)
def test_generated_list(maximum: int, sizes: list[int]) -> None:
    assert decode_sizes((0, 5, 10), max_bs=maximum, speculation=False) == sizes
    # Until 0.5.9 a maximum that is not in the list is not appended.
    shared = [size for size in sizes if size in (1, 2, 4, 8, 12, 16, 24, 32)]
    assert decode_sizes((0, 5, 9), max_bs=maximum, speculation=False) == shared


def test_speculation_list() -> None:
    sizes = decode_sizes((0, 5, 16), max_bs=80, speculation=True)
    assert sizes == [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), 72, 80]
    assert decode_sizes((0, 5, 5), max_bs=80, speculation=True) == sizes
    # 64 came with 0.5.5.
    old = decode_sizes((0, 5, 4), max_bs=80, speculation=True)
    assert old == [size for size in sizes if size != 64]


def test_fixed_lists() -> None:
    plain = [1, 2, 4, *range(8, 161, 8)]
    for release in ((0, 4, 0), (0, 4, 4), (0, 5, 2)):
        assert decode_sizes(release, max_bs=None, speculation=False, memory_mib=81559) == plain
    assert decode_sizes((0, 4, 2), max_bs=None, speculation=True) == list(range(1, 33))
    assert decode_sizes((0, 4, 9), max_bs=None, speculation=True)[20:] == [
        40,
        48,
        56,
        *range(80, 161, 16),
    ]
    assert decode_sizes((0, 4, 2), max_bs=None, speculation=False, hip=True)[-1] == 256
    assert decode_sizes((0, 4, 5), max_bs=None, speculation=False, memory_mib=81920)[-1] == 160
    assert decode_sizes((0, 4, 5), max_bs=None, speculation=False, memory_mib=81921)[-1] == 256
    assert decode_sizes((0, 4, 6), max_bs=None, speculation=False, memory_mib=96 * GIB)[-1] == 160
    assert decode_sizes((0, 4, 7), max_bs=None, speculation=False, memory_mib=160000)[-1] == 256
    assert decode_sizes((0, 4, 7), max_bs=None, speculation=False, memory_mib=160001)[-1] == 512
    assert decode_sizes((0, 4, 6), max_bs=200, speculation=False)[-3:] == [160, 176, 192]
    assert decode_sizes((0, 4, 5), max_bs=200, speculation=False)[-1] == 160


def test_padding_disabled() -> None:
    def sizes(release: tuple[int, int, int], maximum: int | None) -> list[int]:
        return decode_sizes(release, max_bs=maximum, speculation=False, padding_disabled=True)

    assert sizes((0, 5, 23), 50) == list(range(1, 51))
    assert sizes((0, 4, 3), None) == [*range(1, 33), 64, 96, 128, 160]
    assert sizes((0, 4, 6), None) == [*range(1, 33), *range(40, 161, 16)]
    assert sizes((0, 5, 2), None) == [*range(1, 33), *range(48, 161, 16)]


def test_cut_at_the_request_pool() -> None:
    sizes = decode_sizes((0, 5, 12), max_bs=512, speculation=False)
    assert cut_at_pool((0, 5, 12), sizes, 50)[-2:] == [48, 50]
    assert cut_at_pool((0, 5, 12), sizes, 4096) == sizes
    assert cut_at_pool((0, 5, 12), sizes, 50, alignment=8)[-2:] == [48, 56]
    assert cut_at_pool((0, 5, 12), sizes, 50, alignment=8)[0] == 8
    assert cut_at_pool((0, 4, 6), sizes, 50)[-3:] == [48, 49, 50]
    assert cut_at_pool((0, 5, 12), [], 50) == []


def test_prefill_lists() -> None:
    assert len(prefill_sizes((0, 5, 16), 8192)) == 58
    assert prefill_sizes((0, 5, 16), 1000)[-2:] == [896, 960]
    assert 576 in prefill_sizes((0, 5, 9), 1024)
    assert 576 not in prefill_sizes((0, 5, 8), 1024)
    assert prefill_sizes((0, 5, 6), 4096)[-2:] == [3968, 4096]
    assert prefill_sizes((0, 5, 23), 0) == []


@settings(max_examples=200, deadline=None)
@given(
    release=releases,
    maximum=st.one_of(st.none(), st.integers(-1, 3000)),
    speculation=st.booleans(),
    padding_disabled=st.booleans(),
    memory=st.integers(8000, 300000),
    pool=st.integers(1, 5000),
    alignment=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_lists_ascend_and_stay_within(
    release: tuple[int, int, int],
    maximum: int | None,
    speculation: bool,
    padding_disabled: bool,
    memory: int,
    pool: int,
    alignment: int,
) -> None:
    sizes = decode_sizes(
        release,
        max_bs=maximum,
        speculation=speculation,
        padding_disabled=padding_disabled,
        memory_mib=memory,
    )
    assert sizes == sorted(set(sizes))
    if maximum is not None:
        assert all(1 <= size <= maximum for size in sizes)
        if release >= (0, 5, 10) and maximum >= 1:
            assert sizes[-1] == maximum
    cut = cut_at_pool(release, sizes, pool, alignment=alignment)
    assert cut == sorted(set(cut))
    assert all(size % alignment == 0 and size < pool + alignment for size in cut)


def _fraction(release: tuple[int, int, int], **values: object) -> float:
    base: dict[str, object] = {
        "memory_mib": 81559,
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 16384,
        "cuda_graph_max_bs": 256,
    }
    return default_fraction(release, FractionInputs(**{**base, **values}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tp", "fraction"), [(1, 0.88), (2, 0.87), (4, 0.85), (8, 0.81), (16, 0.79), (3, 0.87)]
)
def test_fraction_by_ranks(tp: int, fraction: float) -> None:
    assert _fraction((0, 4, 4), tp_size=tp, memory_mib=143771) == fraction
    assert _fraction((0, 4, 5), tp_size=tp) == fraction


def test_fraction_of_old_versions_on_large_gpus() -> None:
    assert _fraction((0, 4, 5), memory_mib=143771) == round((143771 - 13 * GIB) / 143771, 3)
    mib = 143771
    expected = min(0.88 + 48 * GIB * 0.12 / mib, (mib - 18 * GIB) / mib)
    assert _fraction((0, 4, 6), memory_mib=mib, tp_size=8) == expected
    assert _fraction((0, 4, 6), memory_mib=90000, tp_size=8) == 0.88
    assert _fraction((0, 4, 6), tp_size=2, pp_size=2) == 0.85


@pytest.mark.parametrize(
    ("release", "values", "reserved"),
    [
        ((0, 4, 8), {"memory_mib": 32607}, (2.8 + 0.1) * GIB),
        ((0, 4, 8), {}, (9.5 + 0.5) * GIB),
        ((0, 5, 2), {"memory_mib": 143771, "tp_size": 8}, (12 + 4) * GIB),
        ((0, 5, 2), {"memory_mib": 183359, "tp_size": 8}, 32 * GIB),
        ((0, 4, 8), {"speculative_algorithm": "EAGLE"}, 12 * GIB),
        ((0, 5, 1), {"speculative_algorithm": "STANDALONE"}, 12 * GIB),
        ((0, 5, 2), {"speculative_algorithm": "STANDALONE"}, 16 * GIB),
        ((0, 5, 2), {"dp_size": 2, "tp_size": 2}, (10.5 + 4) * GIB),
        # The floor of 10 GiB and what comes before and after it.
        ((0, 5, 3), {}, 512 + 12288 + 512 + 128),
        ((0, 5, 3), {"memory_mib": 49140}, 512 + 12288 + 512 + 128),
        ((0, 5, 3), {"chunked_prefill_size": 2048}, 10 * GIB),
        ((0, 5, 3), {"chunked_prefill_size": 2048, "memory_mib": 49140}, 512 + 3072 + 512 + 128),
        ((0, 5, 3), {"chunked_prefill_size": -1}, 512 + 24576 + 512 + 128),
        (
            (0, 5, 3),
            {"dp_size": 2, "tp_size": 2},
            512 + 12288 + 512 + 256 + 3 * 256 * 2,
        ),
        (
            (0, 5, 3),
            {"dp_size": 8, "tp_size": 8, "cuda_graph_max_bs": 512},
            512 + 12288 + 1024 + 1024 + 4.5 * 512 * 8,
        ),
        ((0, 5, 9), {"speculative_algorithm": "EAGLE"}, 13440 + 2 * GIB),
        ((0, 5, 10), {"speculative_algorithm": "EAGLE"}, 13440 + 4 * GIB),
        ((0, 5, 13), {"speculative_algorithm": "NGRAM"}, 13440),
        ((0, 5, 13), {"speculative_algorithm": "STANDALONE"}, 13440 + 6 * GIB),
        ((0, 5, 14), {"speculative_algorithm": "STANDALONE"}, 13440),
        ((0, 5, 6), {"prefill_sizes": (4,), "prefill_max_tokens": 4096}, 13440 + 1024),
        ((0, 5, 7), {"prefill_sizes": (4,), "prefill_max_tokens": 8192}, 13440 + 1024),
        ((0, 5, 8), {"prefill_sizes": tuple(range(58))}, 13440 + 464),
        ((0, 5, 9), {"prefill_sizes": tuple(range(58)), "mla": True}, 13440 + 464),
        ((0, 5, 10), {"prefill_sizes": tuple(range(58)), "mla": True}, 13440 + 1536),
        ((0, 5, 14), {"disaggregation_mode": "prefill"}, 13440),
        ((0, 5, 15), {"disaggregation_mode": "prefill"}, 512 + 12288 + 128),
        ((0, 5, 16), {"prefill_sizes": tuple(range(58))}, 13440 + 464),
        ((0, 5, 23), {"decode_graph": False}, 512 + 12288 + 128),
        ((0, 5, 23), {"disaggregation_mode": "prefill"}, 512 + 12288 + 128),
        (
            (0, 5, 23),
            {"disaggregation_mode": "decode", "max_running_requests": 4000, "draft_tokens": 4},
            512 + 24000 + 512 + 128,
        ),
        ((0, 5, 23), {"disaggregation_mode": "decode", "prefill_sizes": (4,)}, 10 * GIB),
        ((0, 5, 23), {"deepep": True}, 13440 + 2 * GIB),
        (
            (0, 5, 23),
            {"deepep": True, "breakable": True, "prefill_sizes": (4,)},
            13440 + 8 + 3 * GIB,
        ),
        ((0, 5, 23), {"xpu": True}, 13440 + 2 * GIB),
        ((0, 5, 16), {"post_capture": True}, 512 + 128),
        ((0, 5, 23), {"post_capture": True}, 1536 + 128),
    ],
)
def test_reserved_memory(
    release: tuple[int, int, int], values: dict[str, object], reserved: float
) -> None:
    mib = values.get("memory_mib", 81559)
    assert isinstance(mib, int)
    assert _fraction(release, **values) == round((mib - reserved) / mib, 3)


def test_unknown_memory() -> None:
    assert _fraction((0, 5, 18), memory_mib=None) == 0.88
    assert _fraction((0, 5, 20), memory_mib=None) == 0.95
    assert _fraction((0, 4, 9), memory_mib=None) == 0.88


def test_multimodal() -> None:
    assert multimodal_fraction((0, 4, 3), 0.7) == pytest.approx(0.665)
    same = multimodal_fraction((0, 5, 10), 0.8, vision_layers=24, vision_hidden=1024)
    assert same == pytest.approx(0.76)
    large = multimodal_fraction((0, 5, 10), 0.8, vision_layers=240, vision_hidden=1024)
    assert large == pytest.approx(0.8 * 0.95 * 0.8)
    small = multimodal_fraction((0, 5, 10), 0.8, vision_layers=1, vision_hidden=64)
    assert small == pytest.approx(0.8 * 0.95 * 1.05)


@settings(max_examples=200, deadline=None)
@given(
    release=releases.filter(lambda release: release >= (0, 5, 3)),
    memory=st.integers(24000, 300000),
    chunk=st.integers(-1, 8192),
    graph=st.integers(0, 512),
    more=st.integers(0, 512),
)
def test_larger_graphs_never_leave_more_for_the_cache(
    release: tuple[int, int, int], memory: int, chunk: int, graph: int, more: int
) -> None:
    one = _fraction(release, memory_mib=memory, chunked_prefill_size=chunk, cuda_graph_max_bs=graph)
    two = _fraction(
        release, memory_mib=memory, chunked_prefill_size=chunk, cuda_graph_max_bs=graph + more
    )
    assert two <= one < 1
