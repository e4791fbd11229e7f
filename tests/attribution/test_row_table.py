"""Map events of rows: the newest of each cell is known, however long a trace is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import scale_traces
from kvcanary_cli.attribution import row_table
from kvcanary_cli.attribution.compiled_ledger import _drop_covered
from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.attribution.row_table import END, RowTable
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

ROWS, CELLS = 3, 12
WAYS: dict[str, Callable[[RowTable], int]] = {
    "python": RowTable.drop_covered,
    "compiled": _drop_covered,
}

Map = tuple[int, int, int]
MAPS = st.lists(
    st.tuples(
        st.integers(0, ROWS - 1), st.integers(0, CELLS - 1), st.integers(0, 4)
    ).map(lambda m: (m[0], m[1], min(CELLS, m[1] + m[2]))),
    max_size=120,
)  # fmt: skip


def _table(maps: Iterable[Map]) -> RowTable:
    table = RowTable()
    for event, (row, start, stop) in enumerate(maps):
        table.map(row, event, start, stop, event + 1000)
    return table


def _lists(table: RowTable) -> list[list[tuple[int, int, int, int]]]:
    return [list(table.newest_first(row)) for row in range(ROWS)]


def _runs(table: RowTable, row: int) -> list[list[tuple[int, int, int]]]:
    """Events of the row's runs, newest first: (event, start, stop)."""
    facts = [fact[:3] for fact in table.newest_first(row)]
    runs, node = [], int(table.heads[row])
    while node != END:
        count = int(table.runs["count"][node])
        runs.append(facts[:count])
        facts, node = facts[count:], int(table.runs["below"][node])
    return runs


def _free(table: RowTable) -> int:
    count, node = 0, table.free
    while node != END:
        count, node = count + 1, int(table.runs["below"][node])
    return count


@given(maps=MAPS)
@settings(max_examples=150, deadline=None)
def test_a_row_knows_its_map_events(maps: list[Map]) -> None:
    """All that are newest anywhere, in their order; none that the next newer one covers."""
    table = _table(maps)
    for row, facts in enumerate(_lists(table)):
        expected: list[tuple[int, int, int, int]] = []
        for event, (at, start, stop) in enumerate(maps):
            if at == row:
                while expected and start <= expected[-1][1] and stop >= expected[-1][2]:
                    expected.pop()
                expected.append((event, start, stop, event + 1000))
        assert facts[::-1] == expected


@pytest.mark.parametrize("way", WAYS)
@given(maps=MAPS)
@settings(max_examples=150, deadline=None)
def test_what_is_dropped_is_newest_nowhere(way: str, maps: list[Map]) -> None:
    table = _table(maps)
    before, free = [_runs(table, row) for row in range(ROWS)], _free(table)
    dropped = WAYS[way](table)
    kept = []
    for runs in before:
        seen: set[int] = set()
        kept.append([])
        for run in runs:
            cells = {cell for _, start, stop in run for cell in range(start, stop)}
            if not seen.issuperset(cells):
                kept[-1].append(run)
            seen |= cells
    assert [_runs(table, row) for row in range(ROWS)] == kept
    assert dropped == sum(map(len, before)) - sum(map(len, kept))
    assert _free(table) == free + dropped


@pytest.mark.parametrize("way", WAYS)
def test_lists_are_no_longer_than_rows_however_many_requests_they_serve(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_table, "_MANY", 1)
    monkeypatch.setattr(RowTable, "drop_covered", WAYS[way])
    table, random = RowTable(), np.random.default_rng(1)
    newest = np.zeros((ROWS, 40), dtype=np.int64)
    event = 0
    for _ in range(200):
        row, prompt, end = int(random.integers(ROWS)), int(random.integers(1, 20)), 40
        spans = [
            (0, prompt),
            *((at, at + 1) for at in range(prompt, end - int(random.integers(9)))),
        ]
        for start, stop in spans:
            event += 1
            table.map(row, event, start, stop, 7)
            newest[row, start:stop] = event
    assert len(table.runs) <= 4 * newest.size
    for row in range(ROWS):
        known = np.zeros(40, dtype=np.int64)
        for at, start, stop, _owner in reversed(list(table.newest_first(row))):
            known[start:stop] = at
        assert np.array_equal(known, newest[row])


def test_whole_events_compiled_leave_the_same_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_table, "_MANY", 1)
    path = tmp_path / "trace.pt"
    scale_traces.decode_heavy(
        path, tokens=4000, slots=700, batch=8, prefill=40, decode=32, shared=8, groups=4
    )
    tables = []
    for compiled in (False, True):
        reader = open_trace(path)
        diagnoser = Diagnoser(reader.header, reader.notes, ranks=False)
        options = ReplayOptions(backend="cpu", compiled=compiled)
        replay = diagnoser.replay = Replay(reader.header, options, NOT_CHECKED, diagnoser)
        replay.run(reader)
        tables.append(diagnoser.follower.context.table)
    general, whole = ([list(table.newest_first(row)) for row in range(9)] for table in tables)
    assert general == whole
    # A request's cells are told anew, and the lists of the former ones are gone.
    assert max(map(len, general)) > 20
    assert {len(table.runs) for table in tables} == {128}
