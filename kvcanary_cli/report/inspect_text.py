"""Answers of ``inspect`` for people: facts, then a table; lists as ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from kvcanary_cli.report.tables import data_table
from kvcanary_cli.report.words import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from kvcanary_cli.attribution.inspect_question import Answer

_LABEL_WIDTH = 21
# Runs shown of a list; --format json has all.
_MAX_RUNS = 16
_RIGHT = frozenset({"event", "step", "row", "prefix", "position", "token", "count", "since"})


def render(answer: Answer, *, width: int, max_rows: int | None) -> Iterator[RenderableType]:
    """The answer.

    Args:
        answer: What was found.
        width: Columns of the terminal.
        max_rows: Lines of the table, None = all; what is left out is counted.
    """
    yield Text(safe(answer.title), style="bold", overflow="fold")
    lines = [f"{name.ljust(_LABEL_WIDTH)}{_cell(name, value)}" for name, value in answer.facts]
    if lines:
        yield Text("\n".join(safe(line) for line in lines), overflow="fold")
    if not answer.rows:
        return
    yield ""
    shown = answer.rows[:max_rows]
    rows = [[_cell(name, line.get(name)) for name in answer.columns] for line in shown]
    yield data_table(answer.columns, rows, width=width, right=_RIGHT)
    left = len(answer.rows) - len(shown)
    if left:
        yield f"... {left:,} more lines (--max-rows 0 shows all, --format json has each)"
    if answer.left_out:
        yield f"... {answer.left_out:,} further lines were counted, not kept"


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if not isinstance(value, list):
        return str(value)
    if name == "tokens":
        return _few([str(token) for token in value], " ")
    return _few(runs(value), ", ") if value else "none"


def _few(words: Sequence[str], separator: str) -> str:
    more = len(words) - _MAX_RUNS
    if more <= 0:
        return separator.join(words) if words else "none"
    return separator.join(words[:_MAX_RUNS]) + f"{separator}... {more} more"


def runs(numbers: Sequence[int]) -> list[str]:
    """Consecutive numbers folded, in the order given: ``5-7``, ``3``."""
    out: list[str] = []
    first: int | None = None
    last = 0
    for number in numbers:
        if first is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            out.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    if first is not None:
        out.append(str(first) if first == last else f"{first}-{last}")
    return out
