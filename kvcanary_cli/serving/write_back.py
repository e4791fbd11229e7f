"""A user's YAML source with a suggestion in it, checked by reading it again among its sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.read_raw import RawOption
from kvcanary_cli.serving.read_source import load, read_source_text
from kvcanary_cli.serving.read_sources import merge
from kvcanary_cli.serving.rewrite_yaml import rewrite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcanary_cli.serving.check_result import Change, Suggestion
    from kvcanary_cli.serving.demand import Demand
    from kvcanary_cli.serving.read_raw import RawReading
    from kvcanary_cli.serving.read_sources import Reading
    from kvcanary_cli.serving.values import Given

_ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A YAML source before and after.

    Attributes:
        name: The source.
        old: Its text.
        new: The text with the suggestion.
        encoding: What its bytes are in, byte order mark included.
    """

    name: str
    old: str
    new: str
    encoding: str


def rewritten_source(
    best: Suggestion | None,
    parts: Sequence[RawReading],
    reading: Reading,
    demands: Sequence[Demand],
) -> Rewritten:
    """The YAML source in which the suggestion belongs, rewritten.

    Args:
        best: What to write; None = the text stays.
        parts: The sources one by one.
        reading: The same merged.
        demands: What the suggestion was verified with.

    Raises:
        UsageError: No source is a YAML file.
        InputError: The file cannot take the change, or something else beats what it says.
    """
    files = [part.name for part in parts if part.kind == "yaml" and part.name != "stdin"]
    if not files:
        raise _no_file(parts)
    names = [] if best is None else [one.name for one in best.fix.changes]
    name = _holder(reading, files, names)
    old = load(name)[0]
    encoding = _encoding(name, old)
    if best is None:
        return Rewritten(name, old, old, encoding)
    new = rewrite(old, best.fix.changes, best.report.resolution.version, name)
    again = [read_source_text(new, name) if part.name == name else part for part in parts]
    overrides = [one for one in reading.given if one.kind == "override"]
    merged = merge(again, overrides, version=best.report.resolution.version)
    passed = _last_passed(merged)
    for change in best.fix.changes:
        if change.flag.startswith("-"):
            _expect(change, passed, name)
    unseen = [one for one in best.given if one.name not in passed or _is_beaten(merged, one.name)]
    if build_report(merged.without_installed(), demands, unseen).failing:
        raise InputError(
            f"{name}: was not written: read again with the other sources, it does not pass",
            hint="use --as flags and change it by hand",
        )
    return Rewritten(name, old, new, encoding)


def _no_file(parts: Sequence[RawReading]) -> UsageError:
    """No YAML source; a script's own configuration could be one."""
    for part in parts:
        for item in part.items:
            if isinstance(item, RawOption) and item.form == "yaml" and item.place.file != part.name:
                return UsageError(
                    f"--write and --as diff change a YAML source; {item.place.file} was read as "
                    f"part of {part.name} only",
                    hint=f"name the file as well: suggest-flags {item.place.file} {part.name}",
                )
    return UsageError(
        "--write and --as diff change a YAML source, and none was given",
        hint="use --as flags or --as yaml",
    )


def _holder(reading: Reading, files: Sequence[str], names: Sequence[str]) -> str:
    """The last file that sets one of the options, or the last one."""
    for one in reversed(reading.given):
        if one.name in names and one.place is not None and one.place.file in files:
            return one.place.file
    return files[-1]


def _encoding(name: str, text: str) -> str:
    data = Path(name).read_bytes()
    for encoding in _ENCODINGS:
        if text.encode(encoding) == data:
            return encoding
    raise InputError(
        f"{name}: was not written: it holds bytes that are no UTF-8",
        hint="use --as flags and change it by hand",
    )


def _last_passed(reading: Reading) -> Mapping[str, Given]:
    """What each option was passed as; later sources win."""
    return {
        one.name: one for one in reading.given if one.kind == "argument" and one.value is not None
    }


def _is_beaten(reading: Reading, name: str) -> bool:
    """A log or an option of our command states another value."""
    return any(one.name == name and one.kind != "argument" for one in reading.given)


def _expect(change: Change, passed: Mapping[str, Given], name: str) -> None:
    one = passed.get(change.name)
    if one is not None and one.value == change.after:
        return
    where = "nowhere" if one is None else f"at {one.source}"
    raise InputError(
        f"{name}: was not written: {change.flag} is set {where}, which counts more than the file",
        hint="change it there; --as flags prints the new value",
    )
