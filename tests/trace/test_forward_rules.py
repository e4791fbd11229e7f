"""The array checks of forwards against the same rules written row by row and token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvcanary_cli.trace.errors import TraceError
from tests.trace.helpers import read_events, write_jsonl
from tests.trace.strategies import Event, traces

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_EXTENDS = ("EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND", "DRAFT_EXTEND_V2")
_LISTS = (
    *("req_pool_indices", "seq_lens", "positions", "out_cache_loc"),
    *("extend_prefix_lens", "extend_seq_lens"),
)


def _row_is_good(event: Event, row: int, pool: dict[str, Any]) -> bool:
    padding = event["reqs"][row] is None
    table_row, seq_len = event["req_pool_indices"][row], event["seq_lens"][row]
    good = 0 <= table_row < pool["rows"] and padding == (table_row == 0) and seq_len >= 0
    good &= padding or seq_len <= pool["row_len"]
    if event["forward_mode"] in _EXTENDS:
        prefix, written = event["extend_prefix_lens"][row], event["extend_seq_lens"][row]
        good &= prefix >= 0 and written >= 0
        good &= padding or prefix + written <= pool["row_len"]
        if event["forward_mode"] == "DRAFT_EXTEND_V2":
            good &= padding or written <= seq_len
    return good


def _written(event: Event, row: int) -> int:
    match event["forward_mode"]:
        case "TARGET_VERIFY":
            return int(event["draft_token_num"])
        case mode if mode in _EXTENDS:
            return int(event["extend_seq_lens"][row])
        case "IDLE" if not event["positions"]:
            return 0
    return 1


def _is_good(event: Event, pool: dict[str, Any]) -> bool:
    rows = range(len(event["reqs"]))
    if not all(_row_is_good(event, row, pool) for row in rows):
        return False
    owners = [row for row in rows for _ in range(_written(event, row))]
    if event["forward_mode"] == "PREBUILT":
        owners = [None] * len(event["positions"])
    if len(owners) != len(event["positions"]):
        return False
    for row, position in zip(owners, event["positions"], strict=True):
        padding = row is not None and event["reqs"][row] is None
        if position < 0 or (position >= pool["row_len"] and not padding):
            return False
    last = pool.get("max_slot", pool["slots"])
    return all(-1 <= slot <= last for slot in event["out_cache_loc"])


@given(trace=traces(max_events=10), data=st.data())
@settings(max_examples=100, deadline=None)
def test_one_number_at_a_time(
    tmp_path_factory: pytest.TempPathFactory,
    trace: tuple[dict[str, Any], list[Event]],
    data: st.DataObject,
) -> None:
    header, events = trace
    # A tree or landed slots would be refused on their own account when lengths change.
    forwards = [k for k, e in enumerate(events) if e["kind"] == "forward" and "tree" not in e]
    assume(forwards)
    changed = data.draw(st.sampled_from(forwards))
    event = events[changed]
    name = data.draw(st.sampled_from([n for n in _LISTS if event.get(n)] or ["reqs"]))
    if event[name]:
        at = data.draw(st.integers(0, len(event[name]) - 1))
        if name == "reqs":
            event[name][at] = None
        else:
            event[name][at] = data.draw(st.integers(-3, 50))
    path: Path = write_jsonl(tmp_path_factory.mktemp("t") / "a.jsonl", header, events)
    refused = ""
    try:
        got = read_events(path)
    except TraceError as error:
        refused = error.message
    if _is_good(event, header["pool"]):
        assert not refused
        assert got == events
    else:
        assert f"a.jsonl:{changed + 2}: 'forward' " in refused
