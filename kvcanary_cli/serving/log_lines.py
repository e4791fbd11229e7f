"""Lines of a server log without what runs put around them: colours, container prefixes, bars."""

from __future__ import annotations

import json
import re
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
#: The server's own prefix: time, then rank parts such as ``DP0 TP0 EP0`` (SPEC_SERVING_ARGS 4).
PREFIX = re.compile(r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?((?: [A-Z]+\d+)*)\] ?")
#: Longer lines exist (argument dumps), but not longer than this.
MAX_LINE_CHARS = 4 << 20


def log_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line with its 1-based number; a progress bar's steps are lines of the same number."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE_CHARS:
            line = line[:MAX_LINE_CHARS]
        if '{"log":' in line[:80]:
            line = _docker_json(line)
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        if "\r" in line:
            for part in line.split("\r"):
                if part:
                    yield number, part
        else:
            yield number, line


def _docker_json(line: str) -> str:
    """The text of a line that a container runtime wrapped in JSON."""
    try:
        record = json.loads(line[line.index("{") :])
    except (ValueError, RecursionError):
        return line
    text = record.get("log") if isinstance(record, dict) else None
    return text.rstrip("\n") if isinstance(text, str) else line


def read_text(file: IO[bytes], limit: int) -> str:
    """Decode a log; bytes that are no UTF-8 are replaced, they stand in no line of interest."""
    data = file.read(limit)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")
