"""Opens a source and finds out what it is: YAML, launch command, log or server-info."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.log_lines import read_text
from kvcanary_cli.serving.read_raw import MAX_CONFIG_BYTES, MAX_SOURCE_BYTES, RawReading
from kvcanary_cli.serving.source_signs import LOG_SIGNS, MENTIONS_LAUNCH
from kvcanary_cli.serving.values import Place

SourceKind = Literal["yaml", "command", "container", "log", "server-info"]

STDIN = "-"
_BY_SUFFIX: dict[str, SourceKind] = {
    ".sh": "command",
    ".bash": "command",
    ".log": "log",
    ".json": "server-info",
    ".out": "log",
    ".err": "log",
}
_CONTAINER = re.compile(
    r"^\s*(?:-\s+)?(?:services|apiVersion|kind|spec|containers|command|args|image|entrypoint)\s*:",
    re.MULTILINE,
)
#: A manifest even without a launch command: no option of the server is called like this.
_MANIFEST = re.compile(
    r"^(?:services\s*:\s*$|apiVersion\s*:\s*\S|kind\s*:\s*[A-Z]\w+\s*$)", re.MULTILINE
)
_COMMENT = re.compile(r"(^|\s)#.*", re.MULTILINE)
_TRACE_SUFFIXES = (".pt", ".jsonl", ".zst", ".kvtrace")


def load(name: str) -> tuple[str, str]:
    """Text of a source, and how messages call it.

    Raises:
        InputError: It cannot be read, is too large, or is no text.
    """
    if name == STDIN:
        return read_text(sys.stdin.buffer, MAX_SOURCE_BYTES), "stdin"
    path = Path(name)
    if name.endswith(_TRACE_SUFFIXES):
        raise InputError(
            f"{name}: a trace is no server configuration",
            hint=f"give it with --trace {name}, beside the configuration",
        )
    try:
        if path.is_dir():
            raise InputError(f"{name}: is a folder", hint="give the file in it")
        with path.open("rb") as file:
            text = read_text(file, MAX_SOURCE_BYTES)
    except OSError as error:
        raise InputError(
            f"{name}: cannot be read: {error.strerror or error}", hint="check the path"
        ) from error
    except ValueError as error:
        raise InputError(f"{name!r}: is no path: {error}") from error
    if "\0" in text[:4096]:
        raise InputError(
            f"{name}: holds binary data, expected YAML, a launch command, a log or JSON"
        )
    return text, name


def detect(text: str, name: str) -> SourceKind:
    """What kind of source a text is; content first, the name where content leaves it open."""
    stripped = text.lstrip()
    suffix = Path(name).suffix.lower()
    if suffix in (".yaml", ".yml"):
        if MENTIONS_LAUNCH.search(_COMMENT.sub("", text)) and _CONTAINER.search(text):
            return "container"
        if _MANIFEST.search(text):
            return "container"
        return "yaml"
    if stripped.startswith('{"log":'):
        return "log"
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    if stripped.startswith("{"):
        return "server-info"
    if LOG_SIGNS.search(text):
        return "log"
    if text.startswith("#!"):
        return "command"
    if MENTIONS_LAUNCH.search(_COMMENT.sub("", text)):
        return "container" if _CONTAINER.search(text) else "command"
    return "yaml"


def read_source(name: str, *, pick: int | None = None) -> RawReading:
    """Read one source.

    Args:
        name: Path, or ``-`` for stdin.
        pick: Which launch command of a file counts, from 1.

    Raises:
        InputError: It cannot be read at all; what is wrong inside it is in ``problems``.
    """
    text, shown = load(name)
    return read_source_text(text, shown, pick=pick)


def read_source_text(text: str, name: str, *, pick: int | None = None) -> RawReading:
    """Read a source that is already in memory."""
    kind = detect(text, name)
    if kind not in ("log",) and len(text) > MAX_CONFIG_BYTES:
        reading = RawReading(name, kind)
        reading.problem(
            Place(name, 1, 1), f"{len(text):,} characters: too large for a {kind} source"
        )
        return reading
    # Each kind's reader is imported when it is needed: most runs need one.
    match kind:
        case "command":
            from kvcanary_cli.serving.read_command import read_script

            return read_script(text, name, pick=pick)
        case "container":
            from kvcanary_cli.serving.read_container import read_container

            return read_container(text, name, pick=pick)
        case "log":
            from kvcanary_cli.serving.read_log import read_log

            return read_log(text, name)
        case "server-info":
            from kvcanary_cli.serving.read_json import read_server_info

            return read_server_info(text, name)
        case "yaml":
            from kvcanary_cli.serving.read_yaml import read_yaml

            return read_yaml(text, name)
