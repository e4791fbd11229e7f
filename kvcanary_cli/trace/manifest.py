"""The manifest of a ``.kvtrace`` folder: header and list of segments, replaced atomically."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.jsonl import parse_line

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest.json"
FOLDER_FORMAT = "kvcanary-trace-folder"
FOLDER_VERSIONS = (1,)
FOLDER_SUFFIX = ".kvtrace"
_SEGMENT_NAME = re.compile(r"([0-9]{6,})\.pt")
_HINT = "is this a .kvtrace folder? see docs/trace-format.md, section The folder form"


def segment_name(number: int) -> str:
    return f"{number:06d}.pt"


def segment_numbers(folder: Path) -> list[int]:
    """Numbers of the finished segments that lie in a folder, sorted."""
    found = (_SEGMENT_NAME.fullmatch(child.name) for child in folder.iterdir())
    numbers = sorted(int(match[1]) for match in found if match is not None)
    return [number for number in numbers if (folder / segment_name(number)).is_file()]


def unfinished_name(number: int) -> str:
    """Name of a segment while it is written; readers skip it."""
    return f".{segment_name(number)}.tmp"


def is_trace_folder(folder: Path) -> bool:
    """Whether a folder is one trace, be it an incomplete copy, and not a folder of traces."""
    if (folder / MANIFEST).exists() or segment_numbers(folder):
        return True
    # A recording is a folder of its ranks' traces and has their suffix, too.
    has_traces = any(child.name.endswith(FOLDER_SUFFIX) for child in folder.iterdir())
    return folder.name.endswith(FOLDER_SUFFIX) and not has_traces


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment as the manifest lists it.

    Attributes:
        file: Its name in the folder.
        events: Events in it; None for a segment that is there but not listed yet.
        first_i: ``i`` of its first event, None where ``events`` is.
        last_i: ``i`` of its last event, None where ``events`` is.
    """

    file: str
    events: int | None
    first_i: int | None
    last_i: int | None


@dataclass(slots=True)
class Manifest:
    """The parsed manifest.

    Attributes:
        header: The trace's header as in a JSONL line.
        segments: In order.
        complete: Whether the recorder has closed the trace.
    """

    header: dict[str, Any]
    segments: list[SegmentEntry] = field(default_factory=list)
    complete: bool = False

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest; a reader sees the old one or the new one."""
        state = {
            "format": FOLDER_FORMAT,
            "version": FOLDER_VERSIONS[-1],
            "header": self.header,
            "complete": self.complete,
            "segments": [
                {"file": s.file, "events": s.events, "first_i": s.first_i, "last_i": s.last_i}
                for s in self.segments
            ],
        }
        temporary = folder / f".{MANIFEST}.tmp"
        with temporary.open("wb") as file:
            file.write((json.dumps(state, indent=1) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / MANIFEST)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Raises:
        TraceError: It is malformed, or of another format or version.
    """
    obj = parse_line(data, where, complete=True)
    if not isinstance(obj, dict) or obj.get("format") != FOLDER_FORMAT:
        raise TraceError(where, f"expected an object with 'format' = '{FOLDER_FORMAT}'", hint=_HINT)
    version = obj.get("version")
    if type(version) is not int or version not in FOLDER_VERSIONS:
        known = ", ".join(map(str, FOLDER_VERSIONS))
        raise TraceError(
            where,
            f"folder version {str(version)[:40]} is not known; this kvcanary reads: {known}",
            hint="upgrade kvcanary",
        )
    listed, complete, header = obj.get("segments"), obj.get("complete"), obj.get("header")
    if not isinstance(listed, list) or not isinstance(complete, bool):
        raise TraceError(where, "expected 'segments' (a list) and 'complete' (a bool)", hint=_HINT)
    if not isinstance(header, dict):
        raise TraceError(where, "the header is missing: expected an object 'header'", hint=_HINT)
    entries = []
    for number, item in enumerate(listed):
        match item:
            case {
                "file": str(file),
                "events": int(events),
                "first_i": int(a),
                "last_i": int(b),
            } if file == segment_name(number) and events >= 0:
                entries.append(SegmentEntry(file, events, a, b))
            case _:
                raise TraceError(
                    where,
                    f"segments[{number}] must have 'file' = '{segment_name(number)}', 'events', "
                    "'first_i' and 'last_i'",
                    hint=_HINT,
                )
    return Manifest(header, entries, complete)
