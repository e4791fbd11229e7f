"""Segments cut in compiled code, of files that no writer of ours would write."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace import pt_compiled
from kvcanary_cli.trace.pt_compiled import CompiledCutter, fits, pays
from kvcanary_cli.trace.pt_reader import StoredTrace, load_stored
from kvcanary_cli.trace.pt_slices import Cutter, StoredTable
from kvcanary_cli.trace.reader import open_trace
from tests.trace.helpers import small_trace, write_trace
from tests.trace.strategies import traces

if TYPE_CHECKING:
    from pathlib import Path

_FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_DTYPES: list[Any] = [np.uint8, np.int8, np.int16, np.int32, np.int64]


def _cut(make: type[Cutter], stored: StoredTrace, max_events: int) -> tuple[list[Any], str]:
    """The events, and how the reading ended."""
    events: list[Any] = []
    cutter, left = make(stored), len(stored.kind)
    try:
        while left:
            segment, _ = cutter.cut(max_events, 1 << 20)
            events += segment.events()
            left -= len(segment)
        cutter.check_end()
    except InputError as error:
        return [], str(error)
    return events, ""


@_FEW
@given(trace=traces(), data=st.data())
def test_what_is_wrong_with_a_column_is_said_in_the_same_words(
    trace: tuple[dict[str, Any], list[dict[str, Any]]], data: st.DataObject, tmp_path: Path
) -> None:
    """Codes that no string has, flags above 1, text that is no JSON, items of an absent field."""
    write_trace(tmp_path / "t.pt", *trace)
    stored = load_stored(tmp_path / "t.pt")
    columns = [(k, f) for k, table in stored.tables.items() for f in table.columns]
    assume(columns)
    kind, field = data.draw(st.sampled_from(columns))
    table = stored.tables[kind]
    column = table.columns[field]
    dtype = data.draw(st.sampled_from(_DTYPES))
    low, high = max(-3, int(np.iinfo(dtype).min)), int(np.iinfo(dtype).max)
    numbers = st.integers(low, 12) | st.sampled_from([high])
    count = len(column.values)
    values = data.draw(st.lists(numbers, min_size=count, max_size=count))
    changed = replace(column, values=np.array(values, dtype=dtype))
    if data.draw(st.booleans()):
        have = data.draw(st.lists(st.booleans(), min_size=table.rows, max_size=table.rows))
        changed.present = np.array(have, dtype=np.bool_)
    stored.tables[kind] = StoredTable(table.rows, {**table.columns, field: changed})
    # One segment: where texts are told first depends on what the segments before it named.
    assert _cut(CompiledCutter, stored, 1 << 20) == _cut(Cutter, stored, 1 << 20)


@_FEW
@given(trace=traces(), data=st.data(), max_events=st.integers(1, 6))
def test_kinds_that_do_not_fit_their_tables_are_refused(
    trace: tuple[dict[str, Any], list[dict[str, Any]]],
    data: st.DataObject,
    max_events: int,
    tmp_path: Path,
) -> None:
    write_trace(tmp_path / "t.pt", *trace)
    stored = load_stored(tmp_path / "t.pt")
    assume(stored.tables)
    codes = st.integers(0, len(stored.tables) - 1)
    count = len(stored.kind)
    stored.kind = np.array(data.draw(st.lists(codes, min_size=count, max_size=count)), np.int8)
    assert _cut(CompiledCutter, stored, max_events) == _cut(Cutter, stored, max_events)


@pytest.mark.parametrize("start", [0, 1])
def test_arrays_at_odd_addresses_are_left_to_numpy(start: int, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.pt", *small_trace())
    stored = load_stored(tmp_path / "t.pt")
    table = stored.tables["forward"]
    column = table.columns["positions"]
    raw = np.zeros(4 * len(column.values) + 1, dtype=np.uint8)
    moved = raw[start : start + 4 * len(column.values)].view(np.int32)
    moved[:] = column.values
    columns = {**table.columns, "positions": replace(column, values=moved)}
    stored.tables["forward"] = StoredTable(table.rows, columns)
    assert fits(stored) == (start == 0)
    found = [part.segment for part in stored.segments(compiled=True)]
    assert [event for segment in found for event in segment.events()] == small_trace()[1]


def test_only_large_traces_are_worth_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pays(1 << 20)
    assert pays(1 << 40)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    assert not pays(64 << 20)


@pytest.mark.parametrize("suffix", [".pt", ".kvtrace"])
def test_large_traces_are_read_in_compiled_code(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[StoredTrace] = []
    init = CompiledCutter.__init__

    def note(self: CompiledCutter, trace: StoredTrace) -> None:
        made.append(trace)
        init(self, trace)

    monkeypatch.setattr(CompiledCutter, "__init__", note)
    monkeypatch.setattr(pt_compiled, "_WORTH_LOADING", 1)
    monkeypatch.setattr(pt_compiled, "_WORTH_NUMBA", 1)
    path = tmp_path / f"t{suffix}"
    header, events = small_trace()
    write_trace(path, header, events)
    reader = open_trace(path)
    assert [event for segment in reader.segments() for event in segment.events()] == events
    assert made
