"""Small words that several renderers share: names, ranges, hashes, plurals."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str) -> str:
    """``text`` with control and formatting characters as escapes, so a terminal stays sane."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _UNSAFE
        else char
        for char in text
    )


def party(name: str | None) -> str:
    """An owner as people say it; None is the prefix cache, which the trace names ``tree``."""
    return f"the prefix cache ({TREE_OWNER})" if name in (None, TREE_OWNER) else f"request {name}"


def hex64(value: int) -> str:
    """An int64 bit pattern as ``0x`` and 16 digits (specification 6.2)."""
    return f"0x{value & 0xFFFFFFFFFFFFFFFF:016x}"


def ranges(numbers: Iterable[int]) -> str:
    """``5-7, 9`` for 5, 6, 7, 9."""
    out: list[str] = []
    first = last = None
    for number in sorted(set(numbers)):
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            out.append(_range(first, last))
        first = last = number
    if first is not None:
        out.append(_range(first, last))
    return ", ".join(out)


def _range(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
