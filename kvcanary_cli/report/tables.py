"""Tables that never cut: a table where it fits, blocks of ``name: value`` where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from kvcanary_cli.report.words import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

_PADDING = 2
NARROW_COLUMNS = 100


def data_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, right: frozenset[str]
) -> Table | Text:
    """Rows of data as a table, or as blocks if the terminal is narrower than 100 or the table.

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
    table = Table(box=None, pad_edge=False, padding=(0, _PADDING, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(Text(header), no_wrap=True, justify="right" if header in right else "left")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _blocks(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    name_width = max(cell_len(header) for header in headers)
    blocks = [
        "\n".join(
            f"{header.ljust(name_width)}  {cell}" for header, cell in zip(headers, row, strict=True)
        )
        for row in rows
    ]
    return Text("\n\n".join(blocks), overflow="fold")
