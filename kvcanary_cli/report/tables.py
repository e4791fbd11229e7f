"""Tables that never cut: a table where it fits, blocks of ``name: value`` where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from kvcanary_cli.report.words import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

_PADDING = 2
NARROW_COLUMNS = 100


def data_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, right: frozenset[str]
) -> Text:
    """Rows of data as a table, or as blocks if the terminal is narrower than 100 or the table.

    No line ends in a blank, so that a diff of two outputs shows what changed.

    Args:
        headers: Column names.
        rows: Cells; control characters are escaped here.
        width: Columns of the terminal.
        right: Headers of right-aligned columns.
    """
    cells = [[safe(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(header), *(cell_len(row[c]) for row in cells)) if cells else cell_len(header)
        for c, header in enumerate(headers)
    ]
    if width < NARROW_COLUMNS or sum(widths) + _PADDING * len(widths) > width:
        return _blocks(headers, cells)
    aligned = [
        [
            _aligned(cell, wide, header in right)
            for cell, wide, header in zip(row, widths, headers, strict=True)
        ]
        for row in [list(headers), *cells]
    ]
    lines = [(" " * _PADDING).join(row).rstrip() for row in aligned]
    table = Text(lines[0], style="bold", no_wrap=True, overflow="ignore")
    body = Text("".join(f"\n{line}" for line in lines[1:]), style="not bold")
    return table.append_text(body)


def _aligned(cell: str, wide: int, right: bool) -> str:
    blanks = " " * (wide - cell_len(cell))
    return f"{blanks}{cell}" if right else f"{cell}{blanks}"


def _blocks(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    name_width = max(cell_len(header) for header in headers)
    blocks = [
        "\n".join(
            f"{header.ljust(name_width)}  {cell}".rstrip()
            for header, cell in zip(headers, row, strict=True)
        )
        for row in rows
    ]
    return Text("\n\n".join(blocks), overflow="fold")
