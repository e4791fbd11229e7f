"""No line of a text output ends in a blank, and tables lose nothing for it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from kvcanary_cli.cli.main import main
from kvcanary_cli.report.tables import data_table
from tests.attribution.blocks import ROOT

S01 = "tests/data/scenarios/S01_use_after_free.jsonl"
SMALL = "tests/data/captures/ngram_clean.jsonl.zst"
CALLS = [
    ["replay", S01],
    ["replay", S01, "--max-rows", "0", "-v"],
    ["inspect", S01, "--slot", "5"],
    ["inspect", S01, "--req", "B"],
    ["inspect", S01, "--step", "2"],
    ["inspect", S01, "--row", "2"],
    ["inspect", S01, "--at", "12"],
    ["inspect", S01, "--who-wrote", "5@3"],
    ["inject", "--list"],
    ["selftest", SMALL, "--seeds", "1", "--kinds", "swapped_cells", "-q"],
]


@pytest.mark.parametrize("columns", ["60", "120", "200"])
@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_no_line_ends_in_a_blank(
    call: list[str], columns: str, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    main(call)
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if line != line.rstrip()] == []


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=8)


@given(st.lists(st.tuples(words, words, words), max_size=6), st.sampled_from([40, 120]))
def test_a_table_keeps_every_cell_in_its_column(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    headers = ("first", "second", "third")
    console = Console(file=io.StringIO(), width=width)
    console.print(data_table(headers, rows, width=width, right=frozenset({"second"})))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(line == line.rstrip() for line in lines)
    if width < 100:
        return
    assert len(lines) == len(rows) + 1
    wide = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    for line, row in zip(lines, [headers, *rows], strict=True):
        blanks = [size - cell_len(cell) for size, cell in zip(wide, row, strict=True)]
        whole = f"{row[0]}{' ' * blanks[0]}  {' ' * blanks[1]}{row[1]}  {row[2]}"
        assert line == whole.rstrip()
