"""A capacity with an unknown input still has bounds, and they hold for every value of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.serving.bounds import at_least, at_most
from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.check_result import Check, Status
from kvcanary_cli.serving.demand import stated_demands
from kvcanary_cli.serving.read_source import read_source_text
from kvcanary_cli.serving.read_sources import merge
from tests.serving.launches import launch

_SMALL = st.integers(1, 64)


def check(text: str, code: str, **peaks: int) -> Check:
    reading = merge([read_source_text(text, "c.yaml")], version="0.5.23")
    demands = stated_demands(peak_batch_size=peaks.get("batch"), peak_tokens=peaks.get("tokens"))
    (found,) = [one for one in build_report(reading, demands).checks if one.code == code]
    return found


def test_more_tokens_than_any_chunk_size_allows_fail() -> None:
    text = "cuda-graph-max-bs-decode: 8\nmax-running-requests: 8\n"
    found = check(text, "KVC-B04", tokens=20000)
    assert (found.status, found.limit) == (Status.FAILS, 16384)
    assert "at most 16384 fit, whatever chunked_prefill_size is" in found.cause
    assert "token count=20000 exceeds" in found.message
    # Below the bound nothing is certain without the chunk size.
    assert check(text, "KVC-B04", tokens=16384).status is Status.UNKNOWN


def test_more_requests_than_any_pool_holds_fail() -> None:
    text = "cuda-graph-max-bs-decode: 8\n"
    assert check(text, "KVC-B03", batch=4097).status is Status.FAILS
    assert check(text, "KVC-B03", batch=4096).status is Status.UNKNOWN
    assert check(text, "KVC-B05", batch=4097).status is Status.FAILS


@settings(max_examples=60, deadline=None)
@given(graph=_SMALL, running=_SMALL, prefill=_SMALL, chunk=st.integers(-1, 200))
def test_the_bounds_hold_for_every_chunk_size(
    graph: int, running: int, prefill: int, chunk: int
) -> None:
    values = {
        "cuda_graph_max_bs_decode": graph,
        "max_running_requests": running,
        "max_prefill_tokens": prefill,
    }
    open_one = launch("0.5.23", **values)
    part = open_one.capacity_parts()[2]
    low, high = at_least(open_one, part), at_most(open_one, part)
    assert part.value is None
    known = launch("0.5.23", **values, chunked_prefill_size=chunk).capacity_parts()[2].value
    assert known is not None
    assert low is not None
    assert high is not None
    assert low <= known <= high
