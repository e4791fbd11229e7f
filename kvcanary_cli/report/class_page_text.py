"""A root-cause class as a page for people; needs no trace and no network."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.classes import ClassPage

_LABEL_WIDTH = 14
_WIDEST, _NARROWEST = 100, 40


def page_lines(page: ClassPage, width: int) -> Iterator[str]:
    """The page, wrapped to at most 100 columns.

    Args:
        page: The class.
        width: Columns of the terminal.
    """
    columns = max(_NARROWEST, min(width, _WIDEST))
    yield f"{page.name.replace('_', '-')}: {page.title}"
    yield ""
    for label, text in _lines(page):
        yield from textwrap.wrap(
            text,
            columns,
            initial_indent=label.ljust(_LABEL_WIDTH),
            subsequent_indent=" " * _LABEL_WIDTH,
            break_on_hyphens=False,
        )


def _lines(page: ClassPage) -> Iterator[tuple[str, str]]:
    yield "MEANING", page.meaning
    yield "CHECK", page.check
    yield "NEEDS", needs_words(page)
    yield from _under("LOOK AT", page.look_at)
    yield from _under(
        "SUB-TYPES",
        tuple(
            f"{s.name}: {s.meaning}" + (f". Remedy: {s.remedy}" if s.remedy else "")
            for s in page.subtypes
        ),
    )
    yield "REMEDY", page.remedy
    yield "STOP-GAP", page.stop_gap
    yield from _under("UPSTREAM", tuple(f"{fix.ref}: {fix.what}" for fix in page.upstream))
    yield "RELATED", ", ".join(page.related)


def _under(label: str, lines: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for line in lines:
        yield label, line
        label = ""


def needs_words(page: ClassPage) -> str:
    """Record families that show the class."""
    if page.name == "rank_divergence":
        return "traces of several ranks in one call"
    if not page.needs:
        return "as many families as possible: a clean verdict is worth what was recorded"
    ways = [" and ".join(sorted(way)) for way in page.needs]
    extra = " (with a sliding-window pool)" if page.name == "bad_translation" else ""
    return f"the families {', or '.join(ways)}{extra}, besides forward"
