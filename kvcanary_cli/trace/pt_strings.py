"""The string tables of segments: each has only the texts that its columns name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvcanary_cli.trace.columns import NULL_CODE, Column
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.jsonl import parse_text
from kvcanary_cli.trace.schema import FieldType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HINT = "write the trace again with `kvcanary trace convert`"
#: Types whose values are codes of strings.
CODED = (FieldType.STR, FieldType.STRS, FieldType.JSON)
_UNSEEN = -2


def column_name(file: str, kind: str, field_name: str) -> str:
    """How messages call a column."""
    return f"{file}, column {printable(kind)}.{printable(field_name)}"


def string_error(where: str, wrong: int, low: int, high: int) -> TraceError:
    """The error for a code that no string has."""
    return TraceError(
        where, f"names string {wrong}, expected {low} to {high} (its strings)", hint=HINT
    )


def check_json(column: Column, texts: list[str], where: str) -> None:
    """Check that the texts of a JSON column are JSON.

    Raises:
        TraceError: One is not.
    """
    values = column.values if column.present is None else column.values[column.present]
    for code in np.unique(values).tolist():
        parse_text(texts[code], where)


class SegmentStrings:
    """The string table of each segment in turn, filled with what its columns name.

    Args:
        strings: UTF-8 text of all strings of the file.
        offsets: [strings + 1] where each begins.

    Attributes:
        mine: [strings + 1] int32, by code of the file: code in this segment, or unseen. The last
            cell, at -1, stands for null.
        texts: By code of the segment.
    """

    def __init__(self, strings: NDArray[np.uint8], offsets: NDArray[Any]) -> None:
        self._bytes = memoryview(strings.data)
        self._offsets = offsets
        self.mine = np.full(max(1, len(offsets)), _UNSEEN, dtype=np.int32)
        self.mine[NULL_CODE] = NULL_CODE
        self._named: list[NDArray[np.int64]] = []
        # Neighbouring segments name the same requests, so the last one's texts are kept.
        self._kept: dict[int, str] = {}
        self._last_kept: dict[int, str] = {}
        self.texts: list[str] = []

    def begin(self) -> None:
        """Start the table of the next segment."""
        for codes in self._named:
            self.mine[codes] = _UNSEEN
        self._named = []
        self._last_kept, self._kept = self._kept, {}
        self.texts = []

    def add(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def translate(self, codes: NDArray[Any], where: str, *, nulls: bool) -> NDArray[np.int32]:
        """Codes of the file as codes of the segment.

        Raises:
            TraceError: A code is out of range, or its text is not UTF-8.
        """
        if not len(codes):
            return np.zeros(0, dtype=np.int32)
        smallest, largest = int(codes.min()), int(codes.max())
        low, high = NULL_CODE if nulls else 0, len(self._offsets) - 2
        if not (low <= smallest and largest <= high):
            raise string_error(where, smallest if smallest < low else largest, low, high)
        translated: NDArray[np.int32] = self.mine.take(codes)
        if int(translated.min()) == _UNSEEN:
            new = _distinct(codes[translated == _UNSEEN], smallest, largest)
            first = len(self.texts)
            self._name(new, [(first + len(new), where)])
            self.mine[new] = np.arange(first, len(self.texts), dtype=np.int32)
            self._named.append(new)
            translated = self.mine.take(codes)
        return translated

    def name_all(self, codes: NDArray[np.int64], ends: Sequence[tuple[int, str]]) -> None:
        """Begin the table of the next segment, and give it the texts of all that it names.

        Args:
            codes: Codes of the file, in the order of their codes in the segment.
            ends: How many of them were named up to a column's end, and its name, for messages.

        Raises:
            TraceError: A text is not UTF-8.
        """
        self._last_kept, self._kept = self._kept, {}
        self.texts = []
        self._name(codes, ends)

    def _name(self, codes: NDArray[np.int64], ends: Sequence[tuple[int, str]]) -> None:
        """Append the texts of codes that are new in this segment to its table."""
        if not len(codes):
            return
        listed = codes.tolist()
        texts: list[str | None] = list(map(self._last_kept.get, listed))
        new = [k for k, text in enumerate(texts) if text is None]
        if new:
            some = codes if len(new) == len(listed) else codes[new]
            starts, stops = self._offsets[some].tolist(), self._offsets[some + 1].tolist()
            for k, start, stop in zip(new, starts, stops, strict=True):
                try:
                    texts[k] = str(self._bytes[start:stop], "utf-8", "surrogatepass")
                except UnicodeDecodeError:
                    at = len(self.texts) + k
                    where = next(name for end, name in ends if end > at)
                    raise TraceError(where, f"string {listed[k]} is not UTF-8", hint=HINT) from None
        decoded = cast("list[str]", texts)
        self._kept.update(zip(listed, decoded, strict=True))
        self.texts += decoded


def _distinct(codes: NDArray[Any], low: int, high: int) -> NDArray[np.int64]:
    """The distinct ones of ``codes``, which lie in [low, high], sorted."""
    if high - low > 8 * len(codes):
        return np.unique(codes).astype(np.int64)
    is_there = np.zeros(high - low + 1, dtype=np.bool_)
    is_there[codes.astype(np.int64) - low] = True
    return np.flatnonzero(is_there) + low
