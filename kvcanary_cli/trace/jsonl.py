"""Parse the lines of a JSONL trace into segments.

Lines end in LF or CRLF. A UTF-8 byte order mark at the start, lines of white space only, and a
missing newline after the last line are accepted.
"""

from __future__ import annotations

import json
import math
from array import array
from typing import TYPE_CHECKING, Any

from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.fields import FieldError
from kvcanary_cli.trace.located import LocatedSegment
from kvcanary_cli.trace.segment import SegmentBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOM = b"\xef\xbb\xbf"
_CUT_HINT = (
    "the recorder was killed or the copy is incomplete; remove the last line to use the rest"
)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _JsonError(f"the key {json.dumps(key)} is given twice in one object")
            seen.add(key)
    return out


class _JsonError(ValueError):
    """JSON that parses but that a trace must not hold."""


def _constant(text: str) -> float:
    raise _JsonError(f"{text} is not JSON; numbers are finite here")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _JsonError(f"the number {text} is too large; numbers are finite here")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)


def parse_line(line: bytes, where: str, *, complete: bool) -> Any:
    """Parse one line.

    Args:
        line: The line without its newline.
        where: File and line.
        complete: Whether a newline followed it.

    Raises:
        TraceError: It is not strict JSON.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(
            where,
            f"the line is not UTF-8 (byte {error.start} is 0x{line[error.start]:02x})",
            hint=_CUT_HINT if not complete else "save the trace as UTF-8",
        ) from None
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if not complete:
            raise TraceError(
                where, f"the last line is cut off after {len(line)} bytes", hint=_CUT_HINT
            ) from None
        raise _json_error(where, error) from None
    except (ValueError, RecursionError) as error:
        raise _json_error(where, error) from None


def parse_text(text: str, where: str) -> Any:
    """Parse one JSON text.

    Raises:
        TraceError: It is not strict JSON.
    """
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise _json_error(where, error) from None


def _json_error(where: str, error: Exception) -> TraceError:
    hint = "correct the line"
    match error:
        case _JsonError():
            what = str(error)
        case json.JSONDecodeError():
            what = f"column {error.colno} is not valid JSON ({error.msg})"
            hint = "every line of a trace is one JSON object"
        case RecursionError():
            what = "the JSON is nested too deeply"
        case _:
            # The interpreter's own limit on the digits of one integer.
            what = "an integer has too many digits; integers are 64-bit"
    return TraceError(where, what, hint=hint)


def read_header_line(lines: Iterator[tuple[int, bytes, bool]], name: str) -> tuple[Any, str]:
    """Parse the first line that is not blank.

    Returns:
        Its value, and where it stands.

    Raises:
        TraceError: There is none, or it is not strict JSON.
    """
    for number, line, complete in lines:
        where = f"{name}:{number}"
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            return parse_line(line, where, complete=complete), where
    raise TraceError(name, "the file is empty", hint="the first line of a trace is its header")


def parse_segments(
    lines: Iterator[tuple[int, bytes, bool]], name: str, *, tokens_absent: bool
) -> Iterator[LocatedSegment]:
    """Parse the lines after the header into segments of bounded size.

    Raises:
        TraceError: A line is not an event of the schema. The events before it come first.
    """
    builder = SegmentBuilder()
    numbers = array("q")
    try:
        for number, line, complete in lines:
            if not line.strip():
                continue
            where = f"{name}:{number}"
            event = parse_line(line, where, complete=complete)
            if not isinstance(event, dict):
                raise TraceError(
                    where, "expected an event (a JSON object)", hint="correct the line"
                )
            if event.get("kind") == "header":
                raise TraceError(
                    where,
                    "a second header: a trace has one, on its first line",
                    hint="give each rank or recording a file of its own",
                )
            try:
                builder.append(event, tokens_absent=tokens_absent)
            except FieldError as error:
                raise TraceError(
                    where, error.message, hint="see docs/trace-format.md, section Events"
                ) from None
            numbers.append(number)
            if builder.full:
                yield _located(builder, numbers, name)
                numbers = array("q")
    except TraceError:
        # An earlier event that is out of range is the error to report, so it must be seen first.
        if len(builder):
            yield _located(builder, numbers, name)
        raise
    if len(builder):
        yield _located(builder, numbers, name)


def _located(builder: SegmentBuilder, numbers: array[int], name: str) -> LocatedSegment:
    return LocatedSegment(builder.finish(), lambda k: f"{name}:{numbers[k]}")
