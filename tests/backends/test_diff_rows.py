"""``diff_rows``: by hand, against the reference, and what it promises without running it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.backends import get_backend
from kvcanary_cli.backends.reference.backend import ReferenceBackend

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

UNTOUCHED = -77


@dataclass(frozen=True)
class Diff:
    """Inputs of a call; nothing in it is changed."""

    rows: list[int]
    lens: list[int]
    table: torch.Tensor
    shadow: torch.Tensor
    capacity: int
    width: int

    def run(self, backend: Backend) -> tuple[list[list[int]], int, list[list[int]]]:
        """Entries, count, and the shadow afterwards."""
        device = backend.device
        shadow = self.shadow.clone().to(device)
        entries = torch.full((self.capacity, 3), UNTOUCHED, dtype=torch.int64, device=device)
        count = torch.full((1,), UNTOUCHED, dtype=torch.int64, device=device)
        table = self.table.clone().to(device)
        backend.diff_rows(
            rows=torch.tensor(self.rows, dtype=torch.int64, device=device),
            lens=torch.tensor(self.lens, dtype=torch.int64, device=device),
            table=table,
            shadow=shadow,
            entries_out=entries,
            count_out=count,
            width=self.width,
        )
        assert torch.equal(table.cpu(), self.table)
        return entries.tolist(), int(count), shadow.tolist()


@st.composite
def diffs(draw: st.DrawFn, *, max_cells: int = 40) -> Diff:
    rows, row_len = draw(st.integers(1, 5)), draw(st.integers(1, max_cells))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    table = torch.arange(rows * row_len, dtype=dtype).view(rows, row_len) - 3
    shadow = table.clone()
    cells = st.tuples(st.integers(0, rows - 1), st.integers(0, row_len - 1))
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    for row, cell in draw(st.lists(cells, max_size=12)):
        (table if draw(st.booleans()) else shadow)[row, cell] = draw(st.sampled_from([low, high]))
    if draw(st.integers(0, 4)) == 0:
        shadow.fill_(low)
    count = draw(st.integers(0, 6))
    asked = draw(st.lists(st.integers(-1, rows), min_size=count, max_size=count))
    lens = draw(st.lists(st.integers(-1, row_len + 2), min_size=count, max_size=count))
    width = draw(st.sampled_from([row_len, row_len, row_len // 2, 0]))
    return Diff(asked, lens, table, shadow, draw(st.sampled_from([200, 200, 3, 1, 0])), width)


def test_by_hand(backend: Backend) -> None:
    table = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], dtype=torch.int32)
    shadow = torch.tensor([[0, 2, 0, 0], [5, 6, 7, 8], [0, 10, 0, 12]], dtype=torch.int32)
    entries, count, after = Diff([2, 1, 0, 9], [4, 4, 3, 4], table, shadow, 5, 4).run(backend)
    assert count == 4
    assert entries == [[2, 0, 9], [2, 2, 11], [0, 0, 1], [0, 2, 3], [UNTOUCHED] * 3]
    # Cell 3 of row 0 lies behind its length.
    assert after == [[1, 2, 3, 0], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_a_full_buffer_is_resumed(backend: Backend) -> None:
    table = torch.arange(1, 13, dtype=torch.int32).view(2, 6)
    shadow = torch.zeros_like(table)
    told: list[list[int]] = []
    counts = []
    for _ in range(4):
        entries, count, after = Diff([1, 0], [6, 6], table, shadow, 5, 6).run(backend)
        told += entries[: min(count, 5)]
        counts.append(count)
        shadow = torch.tensor(after, dtype=torch.int32)
    assert counts == [12, 7, 2, 0]
    assert told == [[row, cell, 1 + 6 * row + cell] for row in (1, 0) for cell in range(6)]


def test_a_row_asked_for_twice_is_told_twice(backend: Backend) -> None:
    table = torch.tensor([[4, 5]], dtype=torch.int64)
    entries, count, after = Diff([0, 0], [2, 1], table, table * 0, 3, 2).run(backend)
    assert (entries, count, after) == ([[0, 0, 4], [0, 1, 5], [0, 0, 4]], 3, [[4, 5]])


@given(diffs(max_cells=200))
@settings(max_examples=150, deadline=None)
def test_cpu_equals_the_reference(diff: Diff) -> None:
    assert diff.run(get_backend("cpu")) == diff.run(ReferenceBackend())


@given(diffs())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_triton_equals_the_reference(diff: Diff) -> None:
    assert diff.run(get_backend("triton")) == diff.run(ReferenceBackend())


@given(diffs(max_cells=200))
@settings(max_examples=60, deadline=None)
def test_what_is_told_applied_to_the_shadow_gives_the_table(diff: Diff) -> None:
    entries, count, after = diff.run(get_backend("cpu"))
    stored = min(count, diff.capacity)
    assert entries[stored:] == [[UNTOUCHED] * 3] * (diff.capacity - stored)
    rebuilt = diff.shadow.clone()
    for row, cell, value in entries[:stored]:
        assert int(diff.shadow[row, cell]) != value
        rebuilt[row, cell] = value
    assert rebuilt.tolist() == after
    if count <= diff.capacity:
        for row, length in zip(diff.rows, diff.lens, strict=True):
            seen = min(max(0, length), diff.width)
            if 0 <= row < len(after):
                assert after[row][:seen] == diff.table[row, :seen].tolist()


def _args(device: str) -> dict[str, Any]:
    return {
        "rows": torch.zeros(2, dtype=torch.int64, device=device),
        "lens": torch.zeros(2, dtype=torch.int64, device=device),
        "table": torch.zeros((3, 8), dtype=torch.int32, device=device),
        "shadow": torch.zeros((3, 8), dtype=torch.int32, device=device),
        "entries_out": torch.zeros((4, 3), dtype=torch.int64, device=device),
        "count_out": torch.zeros(1, dtype=torch.int64, device=device),
        "width": 8,
    }


@pytest.mark.parametrize(
    ("name", "bad", "text"),
    [
        ("table", torch.zeros((3, 8)), "table must have dtype int32 or int64, got torch.float32"),
        ("table", torch.zeros(8, dtype=torch.int32), r"table must be 2-D, got shape \(8,\)"),
        ("shadow", torch.zeros((3, 8), dtype=torch.int64), "shadow must have dtype torch.int32"),
        ("shadow", torch.zeros((2, 8), dtype=torch.int32), "shadow must have table's shape"),
        ("rows", torch.zeros(2, dtype=torch.int32), "rows must have dtype torch.int64"),
        ("lens", torch.zeros(3, dtype=torch.int64), "lens length must be 2, got 3"),
        ("entries_out", torch.zeros((4, 2), dtype=torch.int64), r"must be \[capacity, 3\]"),
        ("count_out", torch.zeros(2, dtype=torch.int64), "count_out length must be 1, got 2"),
        ("width", 9, "width must be from 0 to table's row length 8, got 9"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    backend: Backend, name: str, bad: Any, text: str
) -> None:
    args = _args(backend.device)
    backend.diff_rows(**args)
    bad = bad.to(backend.device) if torch.is_tensor(bad) else bad
    with pytest.raises(ValueError, match=f"kv-canary: .*{text}"):
        backend.diff_rows(**{**args, name: bad})


def test_cpu_refuses_tensors_of_another_device(cpu: Backend) -> None:
    with pytest.raises(ValueError, match="the cpu backend needs table on cpu, got meta"):
        cpu.diff_rows(**_args("meta"))
