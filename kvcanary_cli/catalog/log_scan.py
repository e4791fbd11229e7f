"""Counts the canary's messages in a log of any size.

A log is read in blocks. Most lines hold none of a handful of words, so blocks are searched for
these words first; only lines that have one are decoded and matched.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import IO, TYPE_CHECKING, TypeVar

from kvcanary_cli.catalog.load import catalogue
from kvcanary_cli.catalog.log_result import Count, LogSummary, Place
from kvcanary_cli.catalog.match import VIOLATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.catalog.entry import Entry

_Key = TypeVar("_Key")

BLOCK_BYTES = 4 << 20
# Each message holds one of these; a test fills every template to see that it does.
NEEDLES = (
    b"canary",
    b"CANARY",
    b"Invalid value for ",
    b"SimplePhaseChecker",
    b"FutureTensors",
    b"full_to_swa_index_mapping is required",
    b"_OracleSampler",
    b"_build_generalized_req_id_per_token",
    b"fill_expected_inputs",
    b"Unsupported target_group_kind",
    b"presence does not match",
    b"req_to_verify_expected_tokens_valid_lens must be set",
    b"verify_offsets_scratch",
    b"num_sources must be in",
    b"slot_stride_bytes must hold",
    b"fail_reasons: ",
    b"total_violations=",
    b"AssertionError",
    b"KeyError: '",
)
# A longer line is matched piece by piece, each with the end of the one before it.
MAX_PIECE_BYTES = 64 << 10
_OVERLAP_BYTES = 4 << 10
# How far up a line without a time, or without a file name, looks for one.
_CONTEXT_BYTES = 8 << 10
_LINES_OF_A_FRAME = 4
_MAX_UNKNOWN_KINDS = 50
_MAX_SHOWN = 300
_TIME = re.compile(
    rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    rb"|\b\d\d-\d\d \d\d:\d\d:\d\d\b"
)
_TIME_COLUMNS = 120
_MESSAGE_START = re.compile(r"(?:kv-canary(?: \w+)?: |kv_canary |\[canary\] |KV cache canary )")
# A setting of a configuration file begins like a message and is none.
_SETTING = re.compile(
    r"[\s\-]*['\"]?kv-canary: *['\"]?(?:none|log|raise|on|off|true|false|null|~)?['\"]?\s*(?:#.*)?",
    re.IGNORECASE,
)
_VIOLATION_START = "kv_canary violation: "
_DIGIT = re.compile(r"\d")
_SHAPE_NUMBER = re.compile(r"0x[0-9a-f]{16}(?![0-9A-Za-z])|\d+")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class _Clock:
    """The time of a line: its own, or that of the nearest line above that has one."""

    def __init__(self) -> None:
        self._stamp: str | None = None
        self._stamp_at = 0
        self._looked_until = 0

    def at(self, start: int, line: bytes, before: bytes) -> str | None:
        """The time of ``line``.

        Args:
            start: Its offset in the log; does not decrease from call to call.
            line: The line, or its beginning.
            before: What stands before it.
        """
        match = _TIME.search(line[:_TIME_COLUMNS])
        if match is None:
            # Only what was not looked through for the line before: violations come in thousands.
            new = min(len(before), start - self._looked_until)
            above = _TIME.findall(before, len(before) - new) if new > 0 else []
            if above:
                self._stamp, self._stamp_at = above[-1].decode("ascii"), start
        else:
            self._stamp, self._stamp_at = match[0].decode("ascii"), start
        self._looked_until = start
        return self._stamp if start - self._stamp_at <= _CONTEXT_BYTES else None


def scan_log(stream: IO[bytes], path: str) -> LogSummary:
    """Count the messages of a log without holding more than a block of it.

    Args:
        stream: The log, open for reading bytes.
        path: How to call it.

    Raises:
        OSError: The stream cannot be read.
    """
    summary = LogSummary(path)
    clock = _Clock()
    rest, context = b"", b""
    while block := stream.read(BLOCK_BYTES):
        summary.size_bytes += len(block)
        block = rest + block
        base = summary.size_bytes - len(block)
        end = block.rfind(b"\n") + 1
        if end == 0 and len(block) > MAX_PIECE_BYTES:
            # A line longer than a block: what begins in its last stretch is looked at next time.
            limit = len(block) - _OVERLAP_BYTES
            _scan_block(block, context, summary, clock, base, limit=limit)
            rest = block[limit:]
            continue
        _scan_block(block[:end], context, summary, clock, base)
        context, rest = _before(block, end, context), block[end:]
    if rest:
        _scan_block(rest, context, summary, clock, summary.size_bytes - len(rest))
        summary.lines += 1
    return summary


def _scan_block(
    block: bytes,
    context: bytes,
    summary: LogSummary,
    clock: _Clock,
    base: int,
    *,
    limit: int | None = None,
) -> None:
    """Match the lines of ``block``.

    Args:
        block: Whole lines, or the beginning of one.
        context: What stood before it.
        summary: Where to count.
        clock: Knows the times.
        base: Offset of the block in the log.
        limit: Only messages that begin before this byte count; None = all.
    """
    limit = len(block) if limit is None else limit
    line_number, counted = summary.lines + 1, 0
    for start, end in _lines_with_needles(block):
        line_number += block.count(b"\n", counted, start)
        counted = start
        before = _before(block, start, context)
        time = clock.at(base + start, block[start : min(end, start + _TIME_COLUMNS)], before)
        for first, last, bound in _pieces(start, end):
            _match_line(
                block[first:last],
                before,
                Place(line_number, time, ""),
                summary,
                bound=min(bound, limit - first),
            )
    summary.lines += block.count(b"\n")


def _lines_with_needles(block: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each line that holds a needle, in order."""
    at = {needle: position for needle in NEEDLES if (position := block.find(needle)) >= 0}
    while at:
        position = min(at.values())
        start = block.rfind(b"\n", 0, position) + 1
        end = block.find(b"\n", position)
        end = len(block) if end < 0 else end
        yield start, end
        for needle in [needle for needle, place in at.items() if place < end]:
            position = block.find(needle, end)
            if position < 0:
                del at[needle]
            else:
                at[needle] = position


def _pieces(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """A line in pieces of bounded length.

    Yields:
        Begin and end of a piece, and the offset in it before which a message has to begin to be
        counted; one that begins later is seen whole in the next piece.
    """
    step = MAX_PIECE_BYTES - _OVERLAP_BYTES
    while end - start > MAX_PIECE_BYTES:
        yield start, start + MAX_PIECE_BYTES, step
        start += step
    yield start, end, end - start


def _before(block: bytes, start: int, context: bytes) -> bytes:
    """What stands before a line, as far back as is looked."""
    if start >= _CONTEXT_BYTES:
        return block[start - _CONTEXT_BYTES : start]
    return context[-(_CONTEXT_BYTES - start) :] + block[:start]


@lru_cache(maxsize=4096)
def _candidates(shape: str) -> tuple[tuple[str, Entry], ...]:
    """Anchors and entries that lines of this shape can hold, the most specific first.

    A log repeats few shapes in many lines, so most lines are done without looking for each anchor.

    Args:
        shape: A line with each number as one letter.
    """
    return tuple(
        (anchor, entry)
        for anchor, entry in _by_specificity()
        if anchor in shape or _DIGIT.search(anchor)
    )


@cache
def _by_specificity() -> tuple[tuple[str, Entry], ...]:
    """Anchors and entries, the most specific first."""
    entries = sorted(
        catalogue().values(), key=lambda entry: (-entry.matcher.specificity, entry.code)
    )
    return tuple((entry.matcher.anchor, entry) for entry in entries)


def _match_line(
    raw: bytes, before: bytes, where: Place, summary: LogSummary, *, bound: int
) -> None:
    if bound < len(raw):
        # Offsets have to be those of the bytes.
        text = raw.decode("latin-1")
    else:
        text = _ESCAPES.sub("", raw.decode("utf-8", errors="replace").rstrip("\r"))
    matches = [match for match in _messages(text, before) if match[2] < bound]
    started = _MESSAGE_START.search(text)
    if started is not None and not matches and _SETTING.fullmatch(text):
        return
    if not matches and (started is None or started.start() >= bound):
        return
    shown = text.strip()
    if len(shown) > _MAX_SHOWN:
        begin = matches[0][2] if matches else started.start() if started else 0
        shown = text[begin : begin + _MAX_SHOWN].strip() + " ..."
    place = Place(where.line, where.timestamp, shown)
    for entry, fields, _ in matches:
        _count(summary.kinds, entry.code, place)
        summary.last_fields[entry.code] = fields
        _note_fields(entry, fields, place, summary)
    if not matches and started is not None:
        form = _NUMBER.sub("N", text[started.start() :])[:_MAX_SHOWN]
        if form in summary.unknown or len(summary.unknown) < _MAX_UNKNOWN_KINDS:
            _count(summary.unknown, form, place)
        else:
            summary.unknown_dropped += 1


def _messages(text: str, before: bytes) -> Iterator[tuple[Entry, dict[str, str], int]]:
    """The messages of one line with their values and beginnings; overlaps go to the specific."""
    taken: list[tuple[int, int]] = []
    if _VIOLATION_START in text:
        # Violations come in thousands; a line that holds nothing else is done with one search.
        entry = catalogue()[VIOLATION]
        match = entry.matcher.strict.search(text)
        if match and "canary" not in text[: match.start()] + text[match.end() :]:
            yield entry, entry.matcher.values(match), match.start()
            return
    for anchor, entry in _candidates(_SHAPE_NUMBER.sub("N", text)):
        if anchor not in text:
            continue
        if entry.whole and not _ends_canary_traceback(before):
            continue
        for match in entry.matcher.strict.finditer(text):
            begin, end = match.span()
            if entry.whole and match[0] != text.strip():
                continue
            if any(begin < other_end and other < end for other, other_end in taken):
                continue
            taken.append((begin, end))
            yield entry, entry.matcher.values(match), begin


def _ends_canary_traceback(before: bytes) -> bool:
    """Whether the lines above are the innermost frame of a traceback, in a file of the canary."""
    at = before.rfind(b'File "')
    frame = before[at:] if at >= 0 else b""
    return b"kv_canary/" in frame.split(b"\n", 1)[0] and frame.count(b"\n") <= _LINES_OF_A_FRAME


def _note_fields(entry: Entry, fields: dict[str, str], place: Place, summary: LogSummary) -> None:
    """Keep what a few kinds say beyond their number."""
    if entry.code == VIOLATION:
        _count(summary.violations, (fields["launch_tag"], fields["fail_reason"]), place)
    elif entry.code == "KVC-L03":
        summary.most_violations = max(summary.most_violations, int(fields["v"]))
    elif entry.code == "KVC-V13":
        summary.most_violations = max(summary.most_violations, int(fields["total"]))
        summary.ring_overflow |= fields["over"] == "True"


def _count(counts: dict[_Key, Count], key: _Key, place: Place) -> None:
    known = counts.get(key)
    if known is None:
        counts[key] = Count(place, place)
    else:
        known.add(place)
